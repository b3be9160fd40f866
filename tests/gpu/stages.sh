#!/usr/bin/env bash
# One stage of run_all.sh, whose stages/toolchain.py sets what is used here: stages.sh STAGE. What is built is compiled
# by hand, since a bare machine has no CMake; the CMake files say why each part is what it is.
# shellcheck disable=SC2153,SC2154,SC2317  # set by stages/toolchain.py; called by name
set -uo pipefail

# Some machines' compilers have only the static C++ library: each of our libraries would get its own,
# and an exception that goes from one to another ends the process. The shared one is everywhere.
cxx_library=()
if "${compiler:-g++}" -shared -o /dev/null -x c++ /dev/null -l:libstdc++.so.6 2>/dev/null; then
  cxx_library=(-l:libstdc++.so.6)
fi

# Fails where a library has a C++ library of its own.
shares_cxx_library() {
  local library
  for library in "$@"; do
    if nm -D --defined-only "$library" | grep -q ' __cxa_throw'; then
      printf '%s has a C++ library of its own: there is no libstdc++.so.6 to link\n' "$library" >&2
      return 1
    fi
  done
}

# compile FOLDER [FLAG...] -- SOURCE...: objects into a folder of $work; those that were carried, or
# are there from before, stay where nothing that they are made of has changed.
[ ! -e "$work/carried_does_not_do" ] || carried=
compile() { "$PYTHON" "$here/stages/objects.py" "$work/$1" "${@:2}"; }

minor=$(cut -d. -f1,2 <<<"$torch_version")
torch_headers=(-isystem "$torch_dir/include")
carried_headers=()
carried_libraries=()
if [ -n "${BUNDLE:-}" ]; then
  carried_headers=(-isystem "$BUNDLE/include")
  carried_libraries=("-L$BUNDLE/lib")
fi
gtest_headers=()
gtest_libraries=()
if [ -n "${GTEST_ROOT:-}" ]; then
  gtest_headers=(-isystem "$GTEST_ROOT/include")
  gtest_libraries=("-L$GTEST_ROOT/lib" "-Wl,-rpath,$GTEST_ROOT/lib")
fi

compile_probes() { compile probes -- "$here"/probes/*.cpp; }
link_probes() { "$compiler" -o "$work/commensal-gpu-probes" "$work"/probes/*.o -ldl -lpthread; }

# The elastic allocator and its source on a GPU, for the adaptor and for the suites.
compile_allocator() {
  compile allocator -- "$root"/allocator/*.cpp "$root"/allocator/cuda/*.cpp \
    "$root/allocator/host/own_threads.cpp"
}

compile_adaptor() {
  compile_allocator &&
    compile "adaptor-$minor" -fvisibility=hidden "${torch_headers[@]}" -- \
      "$root"/torch_ext/cuda/{[!s]*,stream_*}.cpp && # but what needs a session
    compile "testing-$minor" "${torch_headers[@]}" -- "$root/tests/torch_ext/cuda/test_support.cpp"
}
link_adaptor() {
  local link=(-L"$torch_dir/lib" -lc10_cuda -lc10 -ldl "${cxx_library[@]}")
  "$compiler" -shared -o "$work/libcommensal_torch_cuda-$minor.so" "$work/adaptor-$minor"/*.o \
    "$work"/allocator/*.o "${link[@]}" &&
    "$compiler" -shared -o "$work/libcommensal_cuda_testing.so" "$work/testing-$minor"/*.o \
      "$work/adaptor-$minor"/*.o "$work"/allocator/*.o "${link[@]}" &&
    shares_cxx_library "$work"/libcommensal_*.so
}

# The suites of the CUDA memory source and of the allocator on it, as one program.
compile_memory() {
  compile_allocator &&
    compile memory '-DCOMMENSAL_SIMULATED_CUDA="libcuda.so.1"' "${gtest_headers[@]}" -- \
      "$root"/tests/allocator/cuda/{cuda_machine,cuda_contract_test,cuda_memory_source_test,cuda_faults_test,elastic_on_cuda_test,peer_access_test,pinned_memory_test}.cpp
}
link_memory() {
  "$compiler" -o "$work/commensal-gpu-memory" "$work"/memory/*.o "$work"/allocator/*.o \
    "${gtest_libraries[@]}" -lgmock_main -lgmock -lgtest -ldl -lpthread
}

# The documented rules of the driver, by its API alone.
compile_rules() {
  compile rules "${gtest_headers[@]}" -- "$root"/tests/simulated_cuda/rules/*_test.cpp
}
link_rules() {
  local driver
  driver=$(on_driver "$PYTHON" -c '
import ctypes

ctypes.CDLL("libcuda.so.1")
print(next(line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line))') || return 1
  "$compiler" -o "$work/commensal-gpu-rules" "$work"/rules/*.o "${gtest_libraries[@]}" \
    -lgmock_main -lgmock -lgtest "$driver" -lpthread
}

has_gtest() {
  "$compiler" -std=c++20 "${gtest_headers[@]}" -fsyntax-only -include gmock/gmock.h -x c++ /dev/null && return
  printf 'no GoogleTest: set GTEST_ROOT to a folder that has it\n' >&2
  return 1
}

# What Python's bindings are compiled with: those of the Python that is meant, else those of PYTHON.
find_python() {
  python_suffix=${PYTHON_SUFFIX:-$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')}
  python_include=${PYTHON_HEADERS:-$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')}
  [ -e "$python_include/Python.h" ] || [ ! -e "${BUNDLE:-}/python/Python.h" ] || python_include=$BUNDLE/python
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
}

compile_product() {
  local pybind defines
  find_python
  pybind=$("$PYTHON" -c 'import pybind11; print(pybind11.get_include())') || return 1
  defines=("-DCOMMENSAL_VERSION=\"$version\"" "${carried_headers[@]}")
  local torch=("${torch_headers[@]}" -isystem "$torch_dir/include/torch/csrc/api/include")
  compile runtime "${defines[@]}" -- "$root"/allocator/{,host/}*.cpp \
    "$root"/coordinator/wire/*.cpp "$root"/torch_ext/{gate,runtime}/*.cpp &&
    compile keys "${defines[@]}" -- "$root"/coordinator/keys/*.cpp &&
    compile node "${defines[@]}" -DSPDLOG_COMPILED_LIB -DSPDLOG_SHARED_LIB \
      -DSPDLOG_FMT_EXTERNAL -- "$root"/coordinator/node/*.cpp &&
    compile "torch-$minor" -fvisibility=hidden "${defines[@]}" "${torch[@]}" -- "$root"/torch_ext/*.cpp &&
    compile "torch_cuda-$minor" -fvisibility=hidden "${defines[@]}" "${torch[@]}" -- \
      "$root"/allocator/cuda/*.cpp "$root"/torch_ext/cuda/*.cpp || return 1
  compile "core$python_suffix" -fvisibility=hidden "${defines[@]}" -isystem "$python_include" \
    -isystem "$pybind" -- "$root"/python/src/*.cpp && return
  [ -e "$python_include/Python.h" ] || printf 'no headers of Python: no Python.h in %s\n' "$python_include" >&2
  return 1
}

# commensal itself, as `pip install .` would lay it out, in $work/product: a folder for PYTHONPATH, and
# bin/ for PATH.
link_product() {
  local product=$work/product
  find_python
  rm -rf "$product" && mkdir -p "$product/bin" && cp -r "$root/python/commensal" "$product/" &&
    mkdir -p "$product/commensal/lib" "$product/commensal/demo/examples" &&
    cp "$root"/examples/{char_transformer,digits_cnn}.py "$product/commensal/demo/examples/" || return 1
  # Libraries of ours lie beside each other; PyTorch's are in the process already.
  local lib=$product/commensal/lib
  local ours=("-L$lib" -lcommensal_runtime "${cxx_library[@]}")
  "$compiler" -shared -o "$lib/libcommensal_runtime.so" "$work"/runtime/*.o "${carried_libraries[@]}" -lzmq \
    -lxxhash -ldl -lpthread "${cxx_library[@]}" &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN" -o "$lib/libcommensal_torch-$minor.so" "$work/torch-$minor"/*.o \
      "${ours[@]}" "-L$torch_dir/lib" -ltorch_cpu -ltorch -lc10 -ldl &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN" -o "$lib/libcommensal_torch_cuda-$minor.so" \
      "$work/torch_cuda-$minor"/*.o "${ours[@]}" "-L$torch_dir/lib" -ltorch_cuda -ltorch_cpu -lc10_cuda -lc10 \
      -ldl &&
    "$compiler" -shared "-Wl,-rpath,\$ORIGIN/lib" -o "$product/commensal/_core$python_suffix" \
      "$work/core$python_suffix"/*.o "$work"/keys/*.o "${ours[@]}" "${carried_libraries[@]}" -lzmq -lfmt &&
    "$compiler" -o "$product/bin/commensald" "$work"/node/*.o "$work"/keys/*.o "$work"/runtime/coordinator.wire.*.o \
      "${carried_libraries[@]}" -lspdlog -lfmt -lzmq -ldl -lpthread "${cxx_library[@]}" &&
    shares_cxx_library "$lib"/*.so "$product"/commensal/_core*.so || return 1
  printf '#!/usr/bin/env bash\nexec "%s" -m commensal "$@"\n' "$PYTHON" >"$product/bin/commensal"
  chmod +x "$product/bin/commensal"
  # What pip would write: PyTorch finds the entry point by it.
  local told=$product/commensal-$version.dist-info
  mkdir -p "$told"
  printf 'Metadata-Version: 2.1\nName: commensal\nVersion: %s\n' "$version" >"$told/METADATA"
  printf '[torch.backends]\ncommensal = commensal._activation:autoload\n' >"$told/entry_points.txt"
  in_product commensal version
}

build() {
  local part
  for part in "$@"; do "compile_$part" && "link_$part" || return 1; done
}

# Runs a command with the product on its paths.
in_product() {
  if [ "$PRODUCT" = installed ]; then
    PATH="$(dirname -- "$(command -v -- "$PYTHON")"):$PATH" "$@"
  else
    PYTHONPATH="$work/product${PYTHONPATH:+:$PYTHONPATH}" PATH="$work/product/bin:$PATH" "$@"
  fi
}

# Runs a stage's program on the product and on the driver that is meant.
stage_program() {
  local program="$here/stages/$1"
  shift
  if [ -z "$simulated" ]; then
    in_product "$PYTHON" "$program" "$@"
  else
    SIMULATED_CUDA_LIBRARY_DIR="$simulated" COMMENSAL_SIMULATED_RUN=1 in_product "$PYTHON" \
      "$root/tests/simulated_cuda/run.py" MEMORY="${SIMULATED_CUDA_MEMORY:-536870912}" \
      LEDGER="$work/ledger" -- "$program" "$@"
  fi
}

# Runs a program on the driver that is meant: the machine's, or the simulated one.
on_driver() {
  if [ -z "$simulated" ]; then
    "$@"
  else
    env LD_LIBRARY_PATH="$simulated:$LD_LIBRARY_PATH" TRITON_LIBCUDA_PATH="$simulated" \
      SIMULATED_CUDA_MEMORY="${SIMULATED_CUDA_MEMORY:-536870912}" "$@"
  fi
}

stage_build() {
  local parts=(probes adaptor)
  [ "$PRODUCT" = installed ] || parts+=(product)
  if ! build "${parts[@]}"; then
    [ -d "$carried" ] || return 1
    echo "what was carried does not do here: all is compiled"
    touch "$work/carried_does_not_do"
    carried=
    rm -rf "$work"/{allocator,adaptor-*,testing-*,memory,rules,probes,runtime,keys,node,torch-*,torch_cuda-*,core*}
    build "${parts[@]}" || return 1
  fi
  # For bundle.sh, so that the next time nothing is left to compile.
  [ ! -e "${python_include:-}/Python.h" ] || [ -d "${BUNDLE:-}/python" ] ||
    tar -C "$python_include" -czf "$OUT/python$python_suffix.tar.gz" .
}
# For tests/python/test_gpu_product.py.
stage_product() { build product; }
# For bundle.sh: all that another machine would compile.
stage_objects() {
  local part
  for part in probes adaptor memory rules product; do "compile_$part" || return 1; done
}

stage_probes() {
  on_driver "$PYTHON" "$here/stages/probes_stage.py" "$work/commensal-gpu-probes" --out "$OUT"
}

stage_adaptor() {
  local card=1 some=()
  if [ -n "$simulated" ]; then # then the tests start their scripts on the simulated driver
    card=0 some=(-k "streams or pools or fraction")
    echo "some of the tests: ./scripts/test runs all of them on the simulated driver"
  elif "$PYTHON" -c 'import xdist' 2>/dev/null; then # scripts wait for PyTorch's import mostly
    some=(-n "$(($(nproc) / 2 + 1))")
  fi
  COMMENSAL_TEST_ON_GPU=$card SIMULATED_CUDA_LIBRARY_DIR="$simulated" \
    COMMENSAL_TEST_CUDA_LIBRARY_DIR="$work" "$PYTHON" -m pytest -q \
    -p no:cacheprovider --rootdir "$root" --junit-xml="$OUT/$STAGE_CARD-adaptor.xml" \
    "${some[@]}" "$root"/tests/python/test_cuda_{allocator,elastic}.py
}

stage_memory() {
  local card=1
  [ -z "$simulated" ] || card=0
  has_gtest && build memory && COMMENSAL_TEST_REAL_CUDA=$card on_driver "$work/commensal-gpu-memory" \
    --gtest_output="xml:$OUT/$STAGE_CARD-memory.xml"
}

stage_rules() {
  has_gtest && build rules && on_driver "$work/commensal-gpu-rules" --gtest_output="xml:$OUT/$STAGE_CARD-rules.xml"
}

stage_scripts() { stage_program scripts_stage.py --out "$OUT"; }
stage_figures() { stage_program figures_stage.py --out "$OUT"; }
stage_pair_e1() { stage_program pair_stage.py e1 --out "$OUT"; }
stage_pair_e2() { stage_program pair_stage.py e2 --out "$OUT"; }
stage_pair_e3() { stage_program pair_stage.py e3 --out "$OUT"; }
stage_demo() { stage_program demo_stage.py --out "$OUT"; }

"stage_${1//-/_}"
