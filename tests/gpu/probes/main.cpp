// SPDX-License-Identifier: Apache-2.0
// Asks the GPU of this machine what the project needs to know, and writes the answers as JSON.
//
// Every probe runs in a process of its own, so that one that crashes or hangs takes no other with
// it. No setting of the card is touched, and no probe takes more than half of the free memory.
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "child.h"
#include "device.h"
#include "driver.h"
#include "kernels.h"
#include "monitor.h"
#include "probe.h"

namespace probes {
namespace {

// Exit codes, as README.md lists them.
constexpr int kAnswered = 0;
constexpr int kUsage = 2;
constexpr int kNoDevice = 3;
constexpr int kFailed = 4;

constexpr const char* kHelp =
    "usage: commensal-gpu-probes [--out FILE] [--only ID]... [--deadline SECONDS]\n"
    "       commensal-gpu-probes --list | --compile-kernels ARCH | --help\n"
    "\n"
    "Answers questions about this machine's first GPU; writes one JSON object to FILE, or to\n"
    "stdout. --only asks some of them; --deadline ends each that takes longer (default: its own\n"
    "limit, 20 to 120 s). --list names the questions. --compile-kernels checks that the kernels\n"
    "compile, for example for sm_90, which needs no GPU.\n"
    "\n"
    "exit code: 0 every question is answered, or the answer says why it cannot be had here;\n"
    "2 wrong usage; 3 no CUDA driver or no device here; 4 a probe failed.\n";

struct Options {
  std::string out;
  std::vector<std::string> only;
  std::chrono::seconds deadline{0};  // 0: each probe's own
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> text{};
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string describe_machine() {
  utsname system{};
  ::uname(&system);
  JsonObject machine;
  machine.text("kernel", system.release);
  machine.text("processor", processor());
  machine.number("cores", static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)));
  machine.number("memory_bytes", static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                                     static_cast<double>(::sysconf(_SC_PAGESIZE)));
  return machine.json();
}

std::string describe_driver() {
  int version = 0;
  CU(cuDriverGetVersion, &version);
  JsonObject driver;
  driver.text("version", driver_version());
  driver.number("cuda_version", version);
  driver.number("headers_cuda_version", CUDA_VERSION);
  driver.text("nvrtc", compiler_version());
  return driver.json();
}

std::string describe_device(const Device& device) {
  JsonObject object;
  object.text("name", device.name());
  object.text("architecture", device.architecture());
  object.number("multiprocessors", device.multiprocessors());
  object.number("memory_bytes", static_cast<double>(device.memory_total()));
  object.number("memory_free_bytes", static_cast<double>(device.memory_free()));
  object.number("l2_bytes", device.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  object.boolean("virtual_memory",
                 device.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0);
  object.boolean(
      "host_numa_memory",
      device.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0);
  object.boolean(
      "gpu_direct_rdma",
      device.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0);
  if (const auto state = card_state(device.uuid())) {
    object.number("sm_clock_mhz", state->sm_clock_mhz);
    object.number("memory_clock_mhz", state->memory_clock_mhz);
    object.number("temperature_c", state->temperature_c);
    object.number("power_w", state->power_w);
  }
  return object.json();
}

std::string result_json(const Probe& probe, const char* status, const std::string& reason,
                        const Answer& answer, double seconds) {
  JsonObject result;
  result.text("id", probe.id);
  result.text("question", probe.question);
  result.text("status", status);
  if (!reason.empty()) result.text("reason", reason);
  result.number("seconds", seconds);
  result.raw("facts", answer.facts().json());
  result.raw("figures", answer.figures().json());
  return result.json();
}

// Answers one question in this process; returns its JSON.
std::string ask(const Probe& probe) {
  Answer answer;
  const std::uint64_t start = now_ns();
  const auto result = [&](const char* status, const std::string& reason) {
    return result_json(probe, status, reason, answer, us_since(start) / 1e6);
  };
  try {
    Device device;
    probe.run(device, answer);
    return result("answered", "");
  } catch (const NotRun& reason) {
    const bool nothing = answer.facts().empty() && answer.figures().empty();
    return result(nothing ? "not_run" : "answered_in_part", reason.what());
  } catch (const std::exception& error) {
    return result("failed", error.what());
  }
}

// Answers one question in a process of its own.
std::string ask_apart(const Probe& probe, std::chrono::seconds deadline,
                      const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / probe.id;
  const std::uint64_t start = now_ns();
  const int code =
      run_program({"/proc/self/exe", "--ask", probe.id, "--out", file.string()}, {}, deadline);
  if (code == kAnswered) return read_file(file);
  const std::string reason = code == -SIGKILL
                                 ? "not done within " + std::to_string(deadline.count()) + " s"
                             : code < 0 ? "its process died of signal " + std::to_string(-code)
                                        : "its process ended with code " + std::to_string(code);
  return result_json(probe, "failed", reason, Answer{}, us_since(start) / 1e6);
}

const Probe& find_probe(const std::string& id) {
  for (const Probe& probe : all_probes()) {
    if (id == probe.id) return probe;
  }
  throw UsageError("no such question: " + id + " (see --list)");
}

bool failed(const std::string& result) {
  return result.find("\"status\": \"failed\"") != std::string::npos;
}

int ask_all(const Options& options) {
  std::string head;
  {
    const Device device;  // says at once where there is none
    JsonObject object;
    object.number("schema", 1);
    object.text("program", "commensal-gpu-probes");
    object.text("date", date_now());
    object.boolean("simulated", driver_is_simulated());
    object.raw("machine", describe_machine());
    object.raw("driver", describe_driver());
    object.raw("device", describe_device(device));
    head = object.json();
  }
  std::vector<const Probe*> asked;
  for (const std::string& id : options.only) asked.push_back(&find_probe(id));
  if (asked.empty()) {
    for (const Probe& probe : all_probes()) asked.push_back(&probe);
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "probes-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  bool any_failed = false;
  std::string results;
  std::string text;
  head.back() = ',';
  for (const Probe* probe : asked) {
    const bool own = options.deadline.count() == 0;
    const std::string result = ask_apart(*probe, own ? probe->deadline : options.deadline, pattern);
    any_failed = any_failed || failed(result);
    std::cerr << probe->id << ": " << (failed(result) ? "FAILED" : "ok") << '\n';
    results += (results.empty() ? "\n  " : ",\n  ") + result;
    text = head + "\n \"probes\": [" + results + "\n ]}\n";
    // After each: an end from outside loses no answer.
    if (!options.out.empty()) write_file(options.out, text);
  }
  std::filesystem::remove_all(pattern);
  if (options.out.empty()) std::cout << text;
  return any_failed ? kFailed : kAnswered;
}

// For the probe of the multi-process service: does it work in this environment?
int can(const std::string& what) {
  if (what != "green-contexts") throw UsageError("unknown: " + what);
  Device device;
  Answer answer;
  green_contexts(device, answer);
  return kAnswered;
}

std::chrono::seconds seconds_from(const std::string& text) {
  std::size_t used = 0;
  int seconds = 0;
  try {
    seconds = std::stoi(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || seconds <= 0) throw UsageError("no time: " + text);
  return std::chrono::seconds{seconds};
}

int run(const std::vector<std::string>& arguments) {
  Options options;
  std::string role;
  std::string asked;
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    const std::string& name = arguments[index];
    const auto value = [&]() -> const std::string& {
      if (index + 1 == arguments.size()) throw UsageError(name + " needs a value");
      return arguments[++index];
    };
    if (name == "--help") {
      std::cout << kHelp;
      return kAnswered;
    }
    if (name == "--list") {
      for (const Probe& probe : all_probes()) {
        std::cout << probe.id << "  " << probe.question << '\n';
      }
      return kAnswered;
    }
    if (name == "--compile-kernels") {
      const std::string& architecture = value();
      std::cout << compile_kernels(architecture).size() << " bytes for " << architecture << '\n';
      return kAnswered;
    }
    if (name == "--out") {
      options.out = value();
    } else if (name == "--only") {
      options.only.push_back(find_probe(value()).id);
    } else if (name == "--deadline") {
      options.deadline = seconds_from(value());
    } else if (name == "--ask") {
      asked = value();
    } else if (name == "--can") {
      return can(value());
    } else if (name == "--role") {
      role = value();
    } else if (name == "--page") {
      return run_role(role, std::stoi(value()));
    } else {
      throw UsageError("unknown option " + name);
    }
  }
  if (!asked.empty()) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_file(options.out, ask(find_probe(asked)));
    return kAnswered;
  }
  return ask_all(options);
}

}  // namespace

const std::vector<Probe>& all_probes() {
  using namespace std::chrono_literals;
  static const std::vector<Probe> probes{
      // What the next steps of the design wait for; none of these takes 8 s on a card.
      {"memory-5.4.7",
       "Do another process's launches and allocations wait while chunks are made on the host or "
       "memory is registered?",
       &stall_of_another_process, 20s},
      {"memory-5.3.host",
       "How fast are chunks on the host made and freed, by size and number of threads?",
       &making_host_chunks, 20s},
      {"memory-5.3.access",
       "Is one call to set access or to unmap many chunks cheaper than one each?",
       &many_chunks_in_one_call, 20s},
      {"compute-9.11",
       "What does an event of the whole context cost, by number of streams, idle and busy?",
       &recording_a_context, 20s},
      {"compute-9.10",
       "What does a switch cost where a neighbour's kernel ends, and is a step slower right after "
       "its burst, and the clocks?",
       &step_after_a_burst, 20s},
      {"compute-9.6c",
       "What does a second process with 10, 25, 50 or 100 % of the threads take from the first "
       "under the multi-process service, if all do the same work, also in small grids?",
       &shares_of_threads, 30s},
      {"compute-9.12",
       "Can a gate stand in the legacy stream and in a graph, how fast does work begin after it "
       "opens and end after it closes?",
       &gates_in_default_stream_and_graph, 20s},
      {"memory-5.4.6",
       "Is a chunk on the host counted as memory of the card, for everybody or for its process?",
       &who_counts_host_chunks, 20s},
      {"memory-5.3.staging",
       "How fast does memory leave beside a loop of matrix products if its copy on the card is "
       "hashed instead of the one on the host, and what does that cost the loop?",
       &moving_beside_a_loop, 20s},
      {"memory-5.4.8",
       "Can another process have a chunk by its descriptor, what does that take, and does the "
       "chunk stay when its maker releases it?",
       &handing_chunks_over, 20s},
      {"compute-9.13",
       "What does a fence take behind up to 1,024 launches, and how many are queued before one "
       "waits?",
       &fence_behind_launches, 20s},
      // All else.
      {"memory-5.4.3",
       "Can kernels, float atomics, copies and the CPU use a chunk on the host, and do pointer "
       "queries answer for it?",
       &host_located_chunk},
      {"memory-5.4.1a", "Do the mapping calls stall other streams, and for how long?",
       &stall_of_other_streams, 60s},
      {"memory-5.4.1b", "Does creating memory clear it, and at which rate?",
       &creating_and_clearing},
      {"memory-5.4.2", "Is memory on the host's NUMA node allowed, in which units, how fast is it?",
       &host_numa_memory},
      {"memory-5.4.4", "Does a captured graph replay after a host chunk took its range's place?",
       &remap_under_a_graph},
      {"memory-5.4.5",
       "Does a process with registered or host-located memory survive a driver checkpoint?",
       &checkpoint_with_host_memory, 90s},
      {"memory-5.3.vmm", "What do the mapping calls take, by size of the chunk?", &mapping_times},
      {"memory-5.3.copies", "How fast is the link, each way and both at once?", &copy_ceilings},
      {"memory-5.3.pinning", "How fast does pinned memory come, by way and number of threads?",
       &pinning_times, 90s},
      {"memory-5.3.kernels", "How fast do kernels read and write memory on the host?",
       &kernels_on_host_memory},
      {"compute-9.1", "How noisy are equal steps: is 1 % measurable?", &noise_of_steps, 60s},
      {"compute-9.2", "How long is a slice between two processes, what does a switch cost?",
       &slices_and_switches, 60s},
      {"compute-9.3", "How long does the queue drain after the gate closes?", &draining_the_queue},
      {"compute-9.4", "How fast does another process see a word that a stream writes?",
       &completion_written_to_memory, 60s},
      {"compute-9.5", "How fast does a stream that waits for a word open, whom does it slow?",
       &gate_by_a_waiting_stream, 60s},
      {"compute-9.6a", "Do green contexts give a part of the multiprocessors?", &green_contexts},
      {"compute-9.6b",
       "Does the multi-process service start without a change of the compute mode, and do "
       "priority and green contexts work under it?",
       &multi_process_service, 120s},
      {"compute-9.7", "How long does locking a process take, and does it go on afterwards?",
       &locking_a_process, 60s},
      {"compute-9.8", "Does a process that shortens its own slice change the shares?",
       &changing_the_slice},
      {"compute-9.9", "What does an op callback cost?", &cost_of_the_callback},
  };
  return probes;
}

}  // namespace probes

int main(int count, char** values) {
  try {
    return probes::run({values + 1, values + count});
  } catch (const probes::UsageError& error) {
    std::cerr << "commensal-gpu-probes: " << error.what() << '\n';
    return probes::kUsage;
  } catch (const probes::NoDevice& error) {
    std::cerr << "commensal-gpu-probes: " << error.what() << '\n';
    return probes::kNoDevice;
  } catch (const std::exception& error) {
    std::cerr << "commensal-gpu-probes: " << error.what() << '\n';
    return probes::kFailed;
  }
}
