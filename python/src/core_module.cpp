// SPDX-License-Identifier: Apache-2.0
// The Python module commensal._core: session and control client, converted and forwarded.
#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "allocator/host/child_watch.h"
#include "allocator/host/file_system.h"
#include "allocator/host/own_descriptors.h"
#include "allocator/host/spill_file.h"
#include "allocator/host/stop_probe.h"
#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/control_client.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/laws.h"
#include "coordinator/wire/pages.h"
#include "coordinator/wire/terms.h"
#include "torch_ext/runtime/session.h"

namespace py = pybind11;

namespace commensal {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// Raised for an answer of the coordinator that is an error or cannot be used.
class CoordinatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Stands for the process's session; asks for it at each call, because a forked child has none.
struct SessionHandle {
  [[nodiscard]] static Session& get() {
    Session* const session = Session::current();
    if (session == nullptr) throw SessionError("commensal is not active in this process");
    return *session;
  }
};

JobClass to_job_class(std::string_view text) {
  if (const auto job_class = value_of<JobClass>(text)) return *job_class;
  throw std::invalid_argument("neither guaranteed nor opportunistic: '" + std::string{text} + "'");
}

MemberRole to_role(std::string_view text) {
  if (text == "main") return MemberRole::kMain;
  if (text == "rank") return MemberRole::kRank;
  if (text == "helper") return MemberRole::kHelper;
  throw std::invalid_argument("not a role (main, rank, helper): '" + std::string{text} + "'");
}

std::optional<Bytes> to_bytes(std::optional<std::uint64_t> count) {
  return count ? std::optional{Bytes{*count}} : std::nullopt;
}

/// Asks on a thread with our own descriptors: ZeroMQ ends the process when the program closes one
/// of its own.
template <typename Ask>
std::invoke_result_t<Ask> on_own_thread(Ask ask) {
  std::packaged_task<std::invoke_result_t<Ask>()> task(std::move(ask));
  auto answer = task.get_future();
  own_descriptors::start_thread([&task] { task(); }).join();
  return answer.get();
}

wire::Message ask(const std::string& socket_path, std::int64_t timeout_ms,
                  const wire::Message& question) {
  const wire::ControlClient client{socket_path, std::chrono::milliseconds{timeout_ms}};
  try {
    wire::Message answer = on_own_thread([&] { return client.request(question); });
    if (const auto* error = std::get_if<wire::Error>(&answer)) throw CoordinatorError(error->what);
    return answer;
  } catch (const wire::BadMessage& error) {
    throw CoordinatorError(std::string{"the coordinator's answer cannot be used: "} + error.what());
  }
}

/// Hands on one frame as it is, and the answer.
std::string control_frame(const std::string& socket_path, const std::string& frame,
                          std::int64_t timeout_ms) {
  const wire::ControlClient client{socket_path, std::chrono::milliseconds{timeout_ms}};
  return on_own_thread([&] { return client.request_frame(frame); });
}

/// The same to a coordinator on another machine, with keys of a folder.
std::string remote_frame(const std::string& address, const std::string& folder,
                         const std::string& key, const std::string& frame,
                         std::int64_t timeout_ms) {
  keys::check_address(address);
  const keys::KeyFolder keys{folder};
  const keys::RemoteClient client{address, keys.load(key),
                                  keys.load_public(std::string{keys::kCoordinatorKey}),
                                  std::chrono::milliseconds{timeout_ms}};
  return on_own_thread([&] { return client.request_frame(frame); });
}

std::string keys_create(const std::string& folder, const std::string& name) {
  return keys::KeyFolder{folder}.create(name).hex();
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void keys_allow(const std::string& folder, const std::string& name, const std::string& key,
                const std::string& role, const std::vector<std::string>& tenants) {
  const keys::AllowedKey allowed{.name = name,
                                 .key = keys::parse_public_key(key),
                                 .role = keys::parse_role(role),
                                 .tenants = tenants,
                                 .created_ms = now_ms(),
                                 .revoked_ms = std::nullopt};
  keys::AllowedStore{keys::KeyFolder{folder}}.change(
      [&](keys::AllowedKeys list) { return keys::with_allowed(std::move(list), allowed); });
}

void keys_revoke(const std::string& folder, const std::string& name) {
  keys::AllowedStore{keys::KeyFolder{folder}}.change(
      [&](keys::AllowedKeys list) { return keys::with_revoked(std::move(list), name, now_ms()); });
}

using AllowedEntry = std::tuple<std::string, std::string, std::string, std::vector<std::string>,
                                std::int64_t, std::optional<std::int64_t>>;

std::vector<AllowedEntry> keys_list(const std::string& folder) {
  std::vector<AllowedEntry> entries;
  for (const keys::AllowedKey& key : keys::AllowedStore{keys::KeyFolder{folder}}.read()) {
    entries.emplace_back(key.name, key.key.hex(), keys::to_string(key.role), key.tenants,
                         key.created_ms, key.revoked_ms);
  }
  return entries;
}

std::string control_status(const std::string& socket_path, std::string job,
                           std::int64_t timeout_ms) {
  const wire::Message answer =
      ask(socket_path, timeout_ms, wire::StatusRequest{.job = std::move(job)});
  if (const auto* reply = std::get_if<wire::StatusReply>(&answer)) return reply->status.dump();
  throw CoordinatorError("the coordinator answered a status request with another message");
}

std::string control_map(const std::string& socket_path, std::string job,
                        std::optional<std::int64_t> pid, std::int64_t timeout_ms) {
  const wire::Message answer =
      ask(socket_path, timeout_ms, wire::MapRequest{std::move(job), pid, {}});
  const auto* reply = std::get_if<wire::MapReply>(&answer);
  if (reply == nullptr) {
    throw CoordinatorError("the coordinator answered a map request with another message");
  }
  if (reply->map.is_null()) throw CoordinatorError(reply->reason);
  return reply->map.dump();
}

std::string control_explain(const std::string& socket_path, std::string job, double seconds,
                            bool series, std::int64_t timeout_ms) {
  const wire::Message answer =
      ask(socket_path, timeout_ms, wire::ExplainRequest{std::move(job), seconds, series});
  const auto* reply = std::get_if<wire::ExplainReply>(&answer);
  if (reply == nullptr) {
    throw CoordinatorError("the coordinator answered an explain request with another message");
  }
  return reply->explanation.dump();
}

// --- terms ------------------------------------------------------------------------------------

void from_python(const py::handle& value, auto& term) {
  term = value.cast<std::decay_t<decltype(term)>>();
}
void from_python(const py::handle& value, MemoryRange& range) {
  const auto [min, max] = value.cast<std::pair<std::uint64_t, std::optional<std::uint64_t>>>();
  range = {Bytes{min}, to_bytes(max)};
}
void from_python(const py::handle& value, ShareRange& range) {
  const auto [min, max] = value.cast<std::pair<double, double>>();
  range = {min, max};
}

/// @param terms  values by their names; a range is a pair.
wire::TermsPatch to_terms(const py::dict& terms) {
  wire::TermsPatch patch;
  std::size_t known = 0;
  wire::for_each_term([&](const auto& term) {
    if (!terms.contains(term.name)) return;
    ++known;
    from_python(terms[term.name], (patch.*term.change).emplace());
  });
  if (known != terms.size())
    throw py::type_error("terms that there are not: " + std::string(py::repr(terms)));
  return patch;
}

py::list terms() {
  py::list rows;
  wire::for_each_term([&rows](const auto& term) {
    const char* const only = *term.refusal == '\0' ? "" : to_string(term.only).data();
    rows.append(py::make_tuple(term.name, std::string{to_string(term.kind)}, term.help,
                               term.otherwise, only, term.refusal, term.most));
  });
  return rows;
}

std::tuple<std::string, Revision, std::string, std::string> control_set(
    const std::string& socket_path, std::string job, std::int64_t timeout_ms, const py::dict& terms,
    std::optional<bool> paused, std::optional<std::string> job_class) {
  wire::SetRequest request;
  if (job_class) request.job_class = to_job_class(*job_class);
  request.job = std::move(job);
  request.paused = paused;
  request.terms = to_terms(terms);
  const py::gil_scoped_release released;
  const wire::Message answer = ask(socket_path, timeout_ms, request);
  if (const auto* reply = std::get_if<wire::SetReply>(&answer)) {
    return {reply->job_id, reply->revision, std::string{to_string(reply->outcome)}, reply->reason};
  }
  throw CoordinatorError("the coordinator answered a set request with another message");
}

SessionHandle start(JobId job_id, std::string name, std::string tenant, std::string_view job_class,
                    const py::dict& terms, std::string_view role, int rank, int world_size,
                    std::string instance, std::string runtime_dir, std::string device,
                    std::string later_device, std::string spill_dir, std::optional<Bytes> host_cap,
                    std::string sm_held_by, std::string inherited_cpus, bool elastic_threads,
                    std::string summary_file, std::string_view memory_policy,
                    std::int64_t ask_wait_ms, std::optional<std::int64_t> park_idle_ms,
                    std::optional<Bytes> background_rate, bool sample_ops, bool quiet) {
  SessionConfig config;
  config.job_id = std::move(job_id);
  config.name = std::move(name);
  config.tenant = std::move(tenant);
  config.job_class = to_job_class(job_class);
  wire::apply(to_terms(terms), config.terms);
  config.role = to_role(role);
  config.rank = rank;
  config.world_size = world_size;
  config.instance = std::move(instance);
  config.runtime_dir = std::move(runtime_dir);
  config.device = std::move(device);
  config.later_device = std::move(later_device);
  config.spill_dir = std::move(spill_dir);
  config.host_cap = host_cap;
  config.sm_held_by = std::move(sm_held_by);
  config.inherited_cpus = std::move(inherited_cpus);
  config.elastic_threads = elastic_threads;
  config.summary_file = std::move(summary_file);
  config.memory_policy = to_memory_policy(memory_policy);
  config.ask_wait = std::chrono::milliseconds{ask_wait_ms};
  if (park_idle_ms) config.park_idle = std::chrono::milliseconds{*park_idle_ms};
  config.background_rate = background_rate;
  config.sample_ops = sample_ops;
  config.quiet = quiet;
  const py::gil_scoped_release released;  // connecting may wait
  Session::start(std::move(config));
  return {};
}

AddressRange range_of(std::uintptr_t address, std::uint64_t size_bytes) {
  return {reinterpret_cast<std::byte*>(address), Bytes{size_bytes}};
}

void bind_errors(py::module_& m) {
  py::register_exception<SessionError>(m, "SessionError", PyExc_RuntimeError);
  py::register_exception<wire::CoordinatorUnreachable>(m, "CoordinatorUnreachable",
                                                       PyExc_ConnectionError);
  py::register_exception<CoordinatorError>(m, "CoordinatorError", PyExc_RuntimeError);
  py::register_exception<keys::KeyProblem>(m, "KeyProblem", PyExc_ValueError);
  py::register_exception<keys::KeyRefused>(m, "KeyRefused", PyExc_PermissionError);
}

void bind_session(py::module_& m) {
  py::class_<LimitTicket>(m, "LimitTicket", "What came of a change of the limit; sizes in bytes.")
      .def_readonly("revision", &LimitTicket::revision)
      .def_property_readonly("limit_bytes", [](const LimitTicket& t) { return t.limit.count(); })
      .def_property_readonly("done_bytes", [](const LimitTicket& t) { return t.done.count(); })
      .def_property_readonly("deferred_bytes",
                             [](const LimitTicket& t) { return t.deferred.count(); })
      .def_readonly("reason", &LimitTicket::reason);

  py::class_<TagTicket>(m, "TagTicket", "What came of moving a tag; sizes in bytes.")
      .def_property_readonly("done_bytes", [](const TagTicket& t) { return t.done.count(); })
      .def_property_readonly("deferred_bytes",
                             [](const TagTicket& t) { return t.deferred.count(); })
      .def_property_readonly("missing_bytes", [](const TagTicket& t) { return t.missing.count(); })
      .def_readonly("reason", &TagTicket::reason);

  py::class_<SessionHandle>(m, "Session", "The one session of this process.")
      .def(
          "become_rank",
          [](const SessionHandle& s, int rank, int world_size) {
            s.get().become_rank(rank, world_size);
          },
          py::arg("rank"), py::arg("world_size"), ReleaseGil())
      .def(
          "step", [](const SessionHandle& s) { s.get().step(); }, ReleaseGil())
      .def(
          "set_memory_limit",
          [](const SessionHandle& s, std::uint64_t limit_bytes) {
            return s.get().set_memory_limit(Bytes{limit_bytes});
          },
          py::arg("limit_bytes"), ReleaseGil())
      .def(
          "set_compute_share",
          [](const SessionHandle& s, double share) { s.get().set_compute_share(share); },
          py::arg("share"), ReleaseGil())
      .def(
          "open_tag",
          [](const SessionHandle& s, const std::string& name, bool keep) {
            return s.get().open_tag(name, TagOptions{keep});
          },
          py::arg("name"), py::kw_only(), py::arg("keep"), ReleaseGil())
      .def(
          "park_tag",
          [](const SessionHandle& s, const std::string& name) { return s.get().park_tag(name); },
          py::arg("name"), ReleaseGil())
      .def(
          "drop_tag",
          [](const SessionHandle& s, const std::string& name) { return s.get().drop_tag(name); },
          py::arg("name"), ReleaseGil())
      .def(
          "wake_tag",
          [](const SessionHandle& s, const std::string& name) { return s.get().wake_tag(name); },
          py::arg("name"), ReleaseGil())
      .def(
          "keep_in_place",
          [](const SessionHandle& s, std::uintptr_t address, std::uint64_t size_bytes,
             const std::string& why) {
            return s.get().keep_in_place(range_of(address, size_bytes), why).count();
          },
          py::arg("address"), py::arg("size_bytes"), py::arg("why"), ReleaseGil())
      .def(
          "may_move",
          [](const SessionHandle& s, std::uintptr_t address, std::uint64_t size_bytes,
             const std::string& why) { s.get().may_move(range_of(address, size_bytes), why); },
          py::arg("address"), py::arg("size_bytes"), py::arg("why"), ReleaseGil())
      .def(
          "memory_map_json",
          [](const SessionHandle& s, bool with_blocks) {
            return s.get().memory_map_json(with_blocks);
          },
          py::kw_only(), py::arg("with_blocks"), ReleaseGil())
      .def(
          "pause", [](const SessionHandle& s) { s.get().pause(); }, ReleaseGil())
      .def(
          "resume", [](const SessionHandle& s) { s.get().resume(); }, ReleaseGil())
      .def(
          "stats_json", [](const SessionHandle& s) { return s.get().stats_json(); }, ReleaseGil())
      .def(
          "active_line", [](const SessionHandle& s) { return s.get().active_line(); }, ReleaseGil())
      .def(
          "shutdown",
          [](const SessionHandle&) {
            if (Session* const session = Session::current()) session->shutdown();
          },
          ReleaseGil());

  m.def(
      "start",
      [](std::string job_id, std::string name, std::string tenant, const std::string& job_class,
         const py::dict& terms, const std::string& role, int rank, int world_size,
         std::string instance, std::string runtime_dir, std::string device,
         std::string later_device, std::string spill_dir,
         std::optional<std::uint64_t> host_cap_bytes, std::string sm_held_by,
         std::string inherited_cpus, bool elastic_threads, std::string summary_file,
         const std::string& memory_policy, std::int64_t ask_wait_ms,
         std::optional<std::int64_t> park_idle_ms,
         std::optional<std::uint64_t> background_rate_bytes, bool sample_ops, bool quiet) {
        return start(JobId{std::move(job_id)}, std::move(name), std::move(tenant), job_class, terms,
                     role, rank, world_size, std::move(instance), std::move(runtime_dir),
                     std::move(device), std::move(later_device), std::move(spill_dir),
                     to_bytes(host_cap_bytes), std::move(sm_held_by), std::move(inherited_cpus),
                     elastic_threads, std::move(summary_file), memory_policy, ask_wait_ms,
                     park_idle_ms, to_bytes(background_rate_bytes), sample_ops, quiet);
      },
      py::kw_only(), py::arg("job_id"), py::arg("name"), py::arg("tenant"), py::arg("job_class"),
      py::arg("terms"), py::arg("role"), py::arg("rank"), py::arg("world_size"),
      py::arg("instance"), py::arg("runtime_dir"), py::arg("device"), py::arg("later_device"),
      py::arg("spill_dir"), py::arg("host_cap_bytes"), py::arg("sm_held_by"),
      py::arg("inherited_cpus"), py::arg("elastic_threads"), py::arg("summary_file"),
      py::arg("memory_policy"), py::arg("ask_wait_ms"), py::arg("park_idle_ms"),
      py::arg("background_rate_bytes"), py::arg("sample_ops"), py::arg("quiet"),
      "Start the session of this process.");
  m.def(
      "current",
      [] { return Session::current() == nullptr ? std::nullopt : std::optional{SessionHandle{}}; },
      "Return the session; None before `start` and in a forked child.");
  m.def(
      "optimizer_step_begin",
      [] {
        if (Session* const session = Session::current()) session->optimizer_step_begin();
      },
      ReleaseGil(), "Tell the step tracker.");
  m.def(
      "optimizer_step_end",
      [] {
        if (Session* const session = Session::current()) session->optimizer_step_end();
      },
      ReleaseGil(), "Tell the step tracker; may wait at the safe point.");
  // These are quick, and wait for nobody: giving up the lock would cost more.
  m.def(
      "batch_awaited",
      [] {
        if (Session* const session = Session::current()) session->batch_awaited();
      },
      "Tell that a fetch looks for a batch of another process.");
  m.def(
      "batch_arrived",
      [] {
        if (Session* const session = Session::current()) session->batch_arrived();
      },
      "Tell that the batch has come and is still to be unpacked.");
  m.def(
      "batch_handed_over",
      [] {
        if (Session* const session = Session::current()) session->batch_handed_over();
      },
      "Tell that a thread of the loader has a batch for the one that fetches.");
  m.def(
      "work_begins",
      [] {
        if (Session* const session = Session::current()) session->touch();
      },
      "Tell that the device gets work that no allocation shows.");
  m.def(
      "synchronised",
      [] {
        if (Session* const session = Session::current()) session->synchronised();
      },
      "Tell that this thread has waited for its GPU.");
  m.def(
      "checkpoint_begin",
      [] {
        Session* const session = Session::current();
        return session != nullptr && session->checkpoint_begin();
      },
      "Tell that a checkpoint is written; return whether checkpoint_end must follow.");
  m.def(
      "checkpoint_end",
      [] {
        if (Session* const session = Session::current()) session->checkpoint_end();
      },
      "Tell that it has been written.");
}

void bind_keys(py::module_& m) {
  m.def("remote_frame", &remote_frame, py::arg("address"), py::arg("folder"), py::arg("key"),
        py::arg("frame"), py::arg("timeout_ms"), ReleaseGil(),
        "Ask a coordinator on another machine by one frame; return its answer.");
  m.def("check_address", &keys::check_address, py::arg("address"),
        "Check an address of the form tcp://HOST:PORT.");
  m.def(
      "default_key_folder", [] { return keys::default_key_folder().native(); },
      "Return the key folder of the environment.");
  m.def("keys_create", &keys_create, py::arg("folder"), py::arg("name"), ReleaseGil(),
        "Make a pair of keys; return the public one.");
  m.def("keys_allow", &keys_allow, py::arg("folder"), py::arg("name"), py::arg("key"),
        py::arg("role"), py::arg("tenants"), ReleaseGil(), "Allow a key.");
  m.def("keys_revoke", &keys_revoke, py::arg("folder"), py::arg("name"), ReleaseGil(),
        "Revoke the key of a name.");
  m.def("keys_list", &keys_list, py::arg("folder"), ReleaseGil(),
        "Return (name, key, role, tenants, created_ms, revoked_ms) of each key.");
}

void bind_control(py::module_& m) {
  m.def("control_frame", &control_frame, py::arg("socket_path"), py::arg("frame"),
        py::arg("timeout_ms"), ReleaseGil(), "Ask a coordinator by one frame; return its answer.");
  m.def("control_status", &control_status, py::arg("socket_path"), py::arg("job"),
        py::arg("timeout_ms"), ReleaseGil(), "Ask a coordinator for its status, as JSON.");
  m.def("control_map", &control_map, py::arg("socket_path"), py::arg("job"), py::arg("pid"),
        py::arg("timeout_ms"), ReleaseGil(),
        "Ask where the memory of a job's process lies, as JSON.");
  m.def("control_explain", &control_explain, py::arg("socket_path"), py::arg("job"),
        py::arg("seconds"), py::arg("series"), py::arg("timeout_ms"), ReleaseGil(),
        "Ask what happened to a job within the last seconds, as JSON.");
  m.def("control_set", &control_set, py::arg("socket_path"), py::arg("job"), py::arg("timeout_ms"),
        py::kw_only(), py::arg("terms"), py::arg("paused"), py::arg("job_class"),
        "Ask a coordinator for a change; return job id, revision, outcome, reason.");
  py::list laws;
  for (const wire::LawId law : wire::kLaws) laws.append(std::string{to_string(law)});
  m.attr("LAWS") = py::tuple(laws);
  m.def("terms", &terms,
        "Return name, kind, help, what holds otherwise, the only class that has it, what the other "
        "is told, and the most, of each term.");
}

/// Opens a spill file in the folder, as the host source would, and lets go of it again.
std::string probe_spill_dir(std::string folder) {
  ChildWatch watch;
  SpillFile::Options options;
  options.folder = std::move(folder);
  std::string reason;
  const auto file = SpillFile::open(options, watch, reason);
  return file ? std::string{} : reason;
}

void bind_host(py::module_& m) {
  m.def("probe_spill_dir", &probe_spill_dir, py::arg("path"), ReleaseGil(),
        "Return why the folder cannot take a spill file; empty: it can.");
  m.def(
      "spill_dir_warning",
      [](const std::string& folder) {
        return spill_folder_warning(folder, file_system_of(folder));
      },
      py::arg("path"), ReleaseGil(),
      "Return what to expect of a spill file there; empty: nothing.");
  m.def("probe_thread_stops", &probe_thread_stops, ReleaseGil(),
        "Return why a thread that blocks signals would keep memory in place; empty: it would not.");
}

/// The page of another process's session, read-only.
class JobPageView {
 public:
  /// @throws std::invalid_argument saying why the file is no such page.
  explicit JobPageView(const std::string& path) : mapping_(map(path)) {
    const char* const wrong = wire::check_page(&page(), wire::kPageSize, wire::kJobPageMagic);
    if (*wrong != '\0') throw std::invalid_argument(wrong);
  }

  [[nodiscard]] bool device_works() const noexcept { return wire::queue_works(page()); }
  /// Returns one word; each is valid alone, two may not belong together.
  [[nodiscard]] std::uint64_t word(wire::Word wire::JobPage::*field) const noexcept {
    return (page().*field).load(std::memory_order_acquire);
  }

 private:
  [[nodiscard]] const wire::JobPage& page() const noexcept {
    return *mapping_.as<const wire::JobPage>();
  }
  static wire::MappedPage map(const std::string& path) {
    const wire::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    try {
      return wire::MappedPage{file.get(), wire::kPageSize, false};
    } catch (const std::system_error& error) {
      throw std::invalid_argument(error.what());
    }
  }

  wire::MappedPage mapping_;
};

void bind_job_page(py::module_& m) {
  const auto reads = [](wire::Word wire::JobPage::*field) {
    return [field](const JobPageView& page) { return page.word(field); };
  };
  py::class_<JobPageView>(m, "JobPage", "What a process publishes of its job, read-only.")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def_property_readonly("activity", reads(&wire::JobPage::activity))
      .def_property_readonly("wait_phase", reads(&wire::JobPage::wait_phase))
      .def_property_readonly("device_works", &JobPageView::device_works)
      .def_property_readonly("step_number", reads(&wire::JobPage::step_number))
      .def_property_readonly("device_bytes", reads(&wire::JobPage::memory_device));
  const auto number = [](wire::Activity activity) { return static_cast<int>(activity); };
  m.attr("ACTIVITIES") =
      py::make_tuple(number(wire::Activity::kUnknown), number(wire::Activity::kBusy),
                     number(wire::Activity::kWaiting), number(wire::Activity::kPaused));
  py::tuple phases(wire::kGapPhases);
  for (std::size_t i = 0; i < wire::kGapPhases; ++i) {
    phases[i] = py::str(wire::kGapPhaseNames[i].data(), wire::kGapPhaseNames[i].size());
  }
  m.attr("GAP_PHASES") = phases;
  m.attr("JOB_PAGE_NAME") = wire::kJobPageName;
}

}  // namespace
}  // namespace commensal

PYBIND11_MODULE(_core, m) {
  m.doc() = "Bindings over libcommensal_runtime; users import commensal.";
  commensal::bind_errors(m);
  commensal::bind_session(m);
  commensal::bind_control(m);
  commensal::bind_keys(m);
  commensal::bind_host(m);
  commensal::bind_job_page(m);
}
