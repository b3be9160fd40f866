// SPDX-License-Identifier: Apache-2.0
// The kernels of the probes, compiled at run time by NVRTC: no nvcc is needed.
#include "kernels.h"

#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <vector>

#include "driver.h"

namespace probes {

const char* const kKernelSource = R"cuda(
typedef unsigned long long u64;

__device__ __forceinline__ u64 now() {
  u64 nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

extern "C" __global__ void put(unsigned* where, unsigned value) { *where = value; }

// Reads the clock until `nanoseconds` are over. One thread notes each stretch of more than
// `threshold` in which it did not run: the end before it and the beginning after it.
extern "C" __global__ void spin(u64 nanoseconds, u64 threshold, u64* pauses, unsigned capacity,
                                unsigned* count) {
  const bool notes = threadIdx.x == 0 && blockIdx.x == 0 && pauses != 0;
  const u64 start = now();
  u64 last = start;
  while (last - start < nanoseconds) {
    const u64 time = now();
    if (notes && time - last > threshold) {
      const unsigned index = *count;
      if (index < capacity) {
        pauses[2 * index] = last;
        pauses[2 * index + 1] = time;
        *count = index + 1;
      }
    }
    last = time;
  }
}

// The same amount of arithmetic each time, without memory.
extern "C" __global__ void work(unsigned rounds, float* never) {
  float a = threadIdx.x, b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
  for (unsigned i = 0; i < rounds; ++i) {
    a = a * 1.0001f + 0.5f;
    b = b * 1.0001f + 0.5f;
    c = c * 1.0001f + 0.5f;
    d = d * 1.0001f + 0.5f;
  }
  if (a + b + c + d == -1.0f) *never = a;
}

// Each block notes where it runs, and stays for a while, so that others go elsewhere.
extern "C" __global__ void visit(unsigned* seen, unsigned capacity) {
  unsigned where;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(where));
  if (threadIdx.x == 0 && where < capacity) seen[where] = 1;
  const u64 start = now();
  while (now() - start < 20000) {
  }
}

extern "C" __global__ void add_one(unsigned* values, u64 count) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) values[i] += 1;
}

extern "C" __global__ void add_atomically(float* sums, unsigned slots) {
  atomicAdd(&sums[(blockIdx.x * blockDim.x + threadIdx.x) % slots], 1.0f);
}

extern "C" __global__ void read_all(const uint4* from, u64 count, unsigned* out) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  unsigned mixed = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 value = from[i];
    mixed ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  if (mixed == 0x12345679u) *out = mixed;
}

extern "C" __global__ void write_all(uint4* to, u64 count, unsigned value) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = make_uint4(value, value, value, value);
  }
}

extern "C" __global__ void count_others(const unsigned* values, u64 count, unsigned wanted,
                                        unsigned* others) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (values[i] != wanted) atomicAdd(others, 1u);
  }
}

// The product of two matrices of n x n, n a multiple of 64: a block makes 64 x 64 of it with 256
// threads, each of them 4 x 4.
extern "C" __global__ void multiply(const float* a, const float* b, float* c, unsigned n) {
  __shared__ float rows[64][17], columns[16][64];
  const unsigned tiles = n / 64, row = blockIdx.x / tiles * 64, column = blockIdx.x % tiles * 64;
  const unsigned y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
  float sums[4][4] = {};
  for (unsigned k = 0; k < n; k += 16) {
    for (unsigned i = threadIdx.x; i < 1024; i += 256) {
      rows[i / 16][i % 16] = a[(u64)(row + i / 16) * n + k + i % 16];
      columns[i / 64][i % 64] = b[(u64)(k + i / 64) * n + column + i % 64];
    }
    __syncthreads();
    for (unsigned j = 0; j < 16; ++j) {
      for (unsigned i = 0; i < 16; ++i) {
        sums[i / 4][i % 4] += rows[y + i / 4][j] * columns[j][x + i % 4];
      }
    }
    __syncthreads();
  }
  for (unsigned i = 0; i < 16; ++i) {
    c[(u64)(row + y + i / 4) * n + column + x + i % 4] = sums[i / 4][i % 4];
  }
}

// Adds a fingerprint of `count` pairs of words to `sum`; their order counts.
extern "C" __global__ void hash_all(const ulonglong2* from, u64 count, u64* sum) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  u64 mixed = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    const ulonglong2 value = from[i];
    u64 word = (value.x + i) * 0xd6e8feb86659fd93ull ^ value.y;
    word ^= word >> 32;
    mixed += word * 0xd6e8feb86659fd93ull;
  }
  for (int step = 16; step > 0; step /= 2) mixed += __shfl_down_sync(0xffffffffu, mixed, step);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mixed);
}
)cuda";

namespace {

struct Compiler {
  decltype(&::nvrtcVersion) version = nullptr;
  decltype(&::nvrtcCreateProgram) create = nullptr;
  decltype(&::nvrtcCompileProgram) compile = nullptr;
  decltype(&::nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&::nvrtcGetProgramLog) log = nullptr;
  decltype(&::nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&::nvrtcGetCUBIN) cubin = nullptr;
  decltype(&::nvrtcDestroyProgram) destroy = nullptr;

  [[nodiscard]] bool complete() const {
    return version != nullptr && create != nullptr && compile != nullptr && log_size != nullptr &&
           log != nullptr && cubin_size != nullptr && cubin != nullptr && destroy != nullptr;
  }
};

Compiler load_compiler() {
  Compiler compiler;
  void* library = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so"}) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return compiler;
  const auto find = [library](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  find(compiler.version, "nvrtcVersion");
  find(compiler.create, "nvrtcCreateProgram");
  find(compiler.compile, "nvrtcCompileProgram");
  find(compiler.log_size, "nvrtcGetProgramLogSize");
  find(compiler.log, "nvrtcGetProgramLog");
  find(compiler.cubin_size, "nvrtcGetCUBINSize");
  find(compiler.cubin, "nvrtcGetCUBIN");
  find(compiler.destroy, "nvrtcDestroyProgram");
  return compiler;
}

const Compiler& compiler() {
  static const Compiler loaded = load_compiler();
  return loaded;
}

void check_compiler(const char* what, nvrtcResult result) {
  if (result != NVRTC_SUCCESS) {
    throw std::runtime_error(std::string{what} + ": NVRTC error " +
                             std::to_string(static_cast<int>(result)));
  }
}

}  // namespace

std::string compiler_version() {
  int major = 0;
  int minor = 0;
  if (!compiler().complete() || compiler().version(&major, &minor) != NVRTC_SUCCESS) return {};
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string compile_kernels(const std::string& architecture) {
  const Compiler& use = compiler();
  if (!use.complete()) {
    throw NotRun("no NVRTC (libnvrtc.so.13) on the library path: kernels cannot be compiled");
  }
  nvrtcProgram program = nullptr;
  check_compiler("nvrtcCreateProgram",
                 use.create(&program, kKernelSource, "probes.cu", 0, nullptr, nullptr));
  const std::string target = "--gpu-architecture=" + architecture;
  const std::array<const char*, 1> options{target.c_str()};
  const nvrtcResult compiled = use.compile(program, 1, options.data());
  std::size_t size = 0;
  if (compiled != NVRTC_SUCCESS) {
    check_compiler("nvrtcGetProgramLogSize", use.log_size(program, &size));
    std::string log(size, '\0');
    check_compiler("nvrtcGetProgramLog", use.log(program, log.data()));
    throw std::runtime_error("the kernels do not compile for " + architecture + ": " + log);
  }
  check_compiler("nvrtcGetCUBINSize", use.cubin_size(program, &size));
  std::string image(size, '\0');
  check_compiler("nvrtcGetCUBIN", use.cubin(program, image.data()));
  check_compiler("nvrtcDestroyProgram", use.destroy(&program));
  return image;
}

}  // namespace probes
