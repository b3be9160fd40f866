// SPDX-License-Identifier: Apache-2.0
// Starting coordinators, and a job that obeys.
#include "tests/coordinator/fake_job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <zmq.hpp>

#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"

namespace commensal::node {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

std::uint64_t own_start_ticks() {
  std::ifstream file{"/proc/self/stat"};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  std::istringstream fields{text.substr(text.rfind(')') + 1)};
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return std::stoull(field);
}

/// The life of the child process: one connection after another, until it is killed.
class ObedientProcess {
 public:
  ObedientProcess(std::filesystem::path folder, std::string instance, wire::Register hello,
                  Holding holding)
      : folder_(std::move(folder)),
        instance_(std::move(instance)),
        hello_(std::move(hello)),
        holding_(holding) {
    told_truth = 0;
    std::signal(SIGUSR1, [](int) { told_truth = 1; });
    hello_.pid = getpid();
    hello_.start_ticks = own_start_ticks();
    memfd_ = wire::make_page_memfd("fake-job");
    mapped_ = wire::MappedPage{memfd_.get(), wire::kPageSize, true};
    auto* page = mapped_.as<wire::JobPage>();
    page->header = {wire::kJobPageMagic, wire::kPageVersion, wire::kPageSize, 0, 0};
    std::strncpy(page->job_id, hello_.job_id.c_str(), wire::kIdSize - 1);
  }

  [[noreturn]] void live() {
    for (;;) {
      try {
        connection();
      } catch (const std::exception&) {
        std::this_thread::sleep_for(20ms);  // no coordinator: try again
      }
    }
  }

 private:
  /// Makes what it holds so: pages up to `held_`, those above it returned.
  void hold() {
    mapped_.as<wire::JobPage>()->memory_taken = held_;
    if (holding_ == Holding::kNothing || holding_ == Holding::kHalf) return;
    if (block_ == nullptr) {
      block_ = mmap(nullptr, kMostHeld, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (block_ == MAP_FAILED) throw std::runtime_error("cannot hold memory");
    }
    auto* const bytes = static_cast<char*>(block_);
    if (held_ > filled_) {
      std::memset(bytes + filled_, 1, held_ - filled_);
      filled_ = held_;
    } else if (filled_ > held_ && (holding_ == Holding::kHonest || told_truth != 0)) {
      if (madvise(bytes + held_, filled_ - held_, MADV_DONTNEED) != 0) {
        throw std::runtime_error("cannot give back memory");
      }
      filled_ = held_;
    }
  }

  void connection() {
    const wire::UniqueFd pages =
        wire::connect_handover(wire::pages_socket_path(folder_, instance_).native());
    wire::Handover handover;
    handover.job_id = hello_.job_id;
    handover.pid = getpid();
    handover.fds.emplace_back(fcntl(memfd_.get(), F_DUPFD_CLOEXEC, 0));
    handover.fds.push_back(wire::open_pidfd(getpid()));
    wire::send_handover(pages.get(), handover);
    zmq::socket_t socket{context_, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.connect(wire::ipc_endpoint(wire::control_socket_path(folder_, instance_)));
    hello_.devices.front().held_bytes = held_;
    hello_.devices.front().revision = revision_;
    if (revision_ > 0) hello_.devices.front().limit_bytes = held_;
    say(socket, hello_);
    for (;;) {
      std::vector<zmq::pollitem_t> items{{socket.handle(), 0, ZMQ_POLLIN, 0},
                                         {nullptr, pages.get(), ZMQ_POLLIN, 0}};
      zmq::poll(items, 50ms);
      if (items[1].revents != 0) {
        const auto handed = wire::receive_handover(pages.get());
        if (!handed) return;
        if (handed->kind == wire::HandoverKind::kDevicePage) watch(handed->fds.at(0).get());
      }
      hold();
      zmq::message_t frame;
      while (socket.recv(frame, zmq::recv_flags::dontwait)) {
        if (!hear(socket, wire::decode(frame.to_string()))) return;
      }
      say(socket, wire::Stats{hello_.job_id,
                              getpid(),
                              {{"schema", 1}, {"memory", {{"device_bytes", held_}}}},
                              false});
    }
  }

  /// It takes nothing that its page forbids: it takes what it is told, and that comes later.
  void watch(int device_page) {
    if (holding_ != Holding::kHalf) return;
    const wire::MappedPage page{device_page, wire::kPageSize, false};
    mapped_.as<wire::JobPage>()->memory_page = page.as<wire::DevicePage>()->header.made_ns;
  }

  static void say(zmq::socket_t& socket, const wire::Message& message) {
    const std::string frame = wire::encode(message);
    if (!socket.send(zmq::buffer(frame), zmq::send_flags::dontwait)) {
      throw std::runtime_error("queue full");
    }
  }

  [[nodiscard]] std::uint64_t part_of(std::uint64_t limit) const {
    return holding_ == Holding::kHalf ? limit / 2 : limit;
  }

  bool hear(zmq::socket_t& socket, const wire::Message& message) {
    if (const auto* registered = std::get_if<wire::Registered>(&message)) {
      held_ = part_of(registered->limit_bytes);
      hold();
      revision_ = registered->revision;
    } else if (const auto* change = std::get_if<wire::Change>(&message)) {
      revision_ = change->revision;
      if (change->limit_bytes) held_ = part_of(*change->limit_bytes);  // fills it at once
      hold();
      hello_.job_class = change->job_class.value_or(hello_.job_class);
      wire::Answer answer{hello_.job_id, getpid(), change->revision, wire::Outcome::kApplied, 0, 0,
                          held_,         ""};
      answer.job_class = hello_.job_class;
      say(socket, answer);
    } else if (const auto* error = std::get_if<wire::Error>(&message)) {
      return error->code != "unknown_job";
    }
    return true;
  }

  std::filesystem::path folder_;
  std::string instance_;
  wire::Register hello_;
  wire::UniqueFd memfd_;
  wire::MappedPage mapped_;
  zmq::context_t context_{1};
  static constexpr std::size_t kMostHeld = std::size_t{1} << 30U;
  inline static volatile std::sig_atomic_t told_truth = 0;
  Holding holding_;
  void* block_ = nullptr;
  std::uint64_t filled_ = 0;
  std::uint64_t held_ = 0;
  Revision revision_ = 0;
};

}  // namespace

bool eventually(const std::function<bool()>& done) {
  const auto deadline = Steady::now() + 30s;
  while (Steady::now() < deadline) {
    if (done()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return done();
}

DaemonFolder::DaemonFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "commensald-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder");
  path_ = pattern;
}

DaemonFolder::~DaemonFolder() {
  for (const auto& file : std::filesystem::directory_iterator{path_}) {
    if (file.path().extension() == ".lock") stop(SIGKILL, file.path().stem().string());
  }
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Finished DaemonFolder::start(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--runtime-dir", path_.string()});
  return run(std::move(arguments));
}

Finished DaemonFolder::run(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  wire::UniqueFd reader{ends[0]};
  wire::UniqueFd writer{ends[1]};
  const pid_t child = fork();
  if (child == 0) {
    dup2(writer.get(), STDOUT_FILENO);
    dup2(writer.get(), STDERR_FILENO);
    std::vector<char*> argv{const_cast<char*>(COMMENSALD)};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(COMMENSALD, argv.data());
    _exit(127);
  }
  writer.reset();
  Finished finished;
  std::array<char, 512> buffer;
  ssize_t n = 0;
  // Ends when nobody has the pipe any more: a daemon that kept it would hang the test.
  while ((n = read(reader.get(), buffer.data(), buffer.size())) > 0) {
    finished.output.append(buffer.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  waitpid(child, &status, 0);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return finished;
}

pid_t DaemonFolder::pid(const std::string& instance) const {
  std::ifstream file{wire::lock_path(path_, instance)};
  pid_t pid = 0;
  file >> pid;
  return pid;
}

wire::ControlClient DaemonFolder::client(const std::string& instance) const {
  return wire::ControlClient{wire::control_socket_path(path_, instance), 30s};
}

nlohmann::json DaemonFolder::status(const std::string& job, const std::string& instance) const {
  return std::get<wire::StatusReply>(client(instance).request(wire::StatusRequest{job})).status;
}

bool DaemonFolder::stop(int signal, const std::string& instance) const {
  const pid_t daemon = pid(instance);
  if (daemon <= 0) return true;
  try {
    const wire::UniqueFd pidfd = wire::open_pidfd(daemon);
    if (::kill(daemon, signal) != 0) return errno == ESRCH;
    pollfd end{pidfd.get(), POLLIN, 0};
    return poll(&end, 1, 30000) == 1;
  } catch (const std::system_error&) {
    return true;  // gone already
  }
}

FakeJob::FakeJob(const DaemonFolder& folder, wire::Register hello, const std::string& instance,
                 Holding holding)
    : FakeJob(folder.path(), std::move(hello), instance, holding) {}

FakeJob::FakeJob(const std::filesystem::path& folder, wire::Register hello,
                 const std::string& instance, Holding holding) {
  pid_ = fork();
  if (pid_ != 0) return;
  ObedientProcess{folder, instance, std::move(hello), holding}.live();
}

FakeJob::~FakeJob() { kill(); }

void FakeJob::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

wire::Register registration(const std::string& job, JobClass job_class, std::uint64_t min_bytes,
                            std::optional<std::uint64_t> max_bytes) {
  wire::Register hello;
  hello.job_id = job;
  hello.name = "name-" + job;
  hello.tenant = "default";
  hello.job_class = job_class;
  hello.terms.memory.min = Bytes{min_bytes};
  if (max_bytes) hello.terms.memory.max = Bytes{*max_bytes};
  hello.role = "main";
  return hello;
}

}  // namespace commensal::node
