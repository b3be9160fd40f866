// SPDX-License-Identifier: Apache-2.0
// The model, and what happens to it.
#include "tests/coordinator/store_script.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;

constexpr WallTime kStart{1'790'000'000'000ms};
constexpr std::size_t kAll = 1'000'000;

}  // namespace

Contents contents(Store& store) {
  StoredState state = store.load();
  return {.open = std::move(state.jobs),
          .ended = store.ended(kAll),
          .tenants = std::move(state.tenants),
          .drained = std::move(state.drained),
          .bad_inputs = std::move(state.bad_inputs),
          .events = store.events(0, kAll),
          .next_job = state.next_job};
}

// --- the model ---------------------------------------------------------------------------------

void Model::line(Transition transition) {
  transition.number = events_.size() + 1;
  events_.push_back(std::move(transition));
}

JobId Model::add(const JobSpec& spec, const std::string& request, WallTime now) {
  if (const auto found = requests_.find({spec.tenant, request}); found != requests_.end()) {
    return found->second;
  }
  JobRecord record;
  record.id = JobId{std::to_string(jobs_.size() + 1)};
  record.spec = spec;
  record.reason = "submitted";
  record.submitted = record.changed = now;
  if (!request.empty()) requests_[{spec.tenant, request}] = record.id;
  line({.job = record.id,
        .number = 0,
        .at = now,
        .from = JobState::kSubmitted,
        .to = JobState::kSubmitted,
        .attempt = 0,
        .reason = "submitted"});
  jobs_[jobs_.size() + 1] = {record, 0};
  return record.id;
}

void Model::put(const JobRecord& record, const std::optional<Transition>& transition) {
  Kept& kept = jobs_.at(std::stoull(record.id.str()));
  if (!is_end(record.state)) {
    kept.ended = 0;
  } else if (transition || kept.ended == 0) {
    kept.ended = events_.size() + 1;
  }
  kept.record = record;
  if (transition) line(*transition);
}

std::optional<JobRecord> Model::job(const JobId& id) const {
  const auto found = jobs_.find(std::stoull(id.str()));
  return found == jobs_.end() ? std::nullopt : std::optional{found->second.record};
}

Contents Model::contents() const {
  Contents all;
  std::vector<Kept> ended;
  for (const auto& [number, kept] : jobs_) {
    if (is_end(kept.record.state)) {
      ended.push_back(kept);
    } else {
      all.open.push_back(kept.record);
    }
  }
  std::ranges::reverse(ended);  // of equal numbers the later job first
  std::ranges::stable_sort(ended, std::greater<>{}, &Kept::ended);
  for (const Kept& kept : ended) all.ended.push_back(kept.record);
  for (const auto& [name, tenant] : tenants_) all.tenants.push_back(tenant);
  for (const auto& [name, node] : drained_) all.drained.push_back(node);
  for (const auto& [key, input] : bad_inputs_) all.bad_inputs.push_back(input);
  all.events = events_;
  all.next_job = jobs_.size() + 1;
  return all;
}

// --- the script --------------------------------------------------------------------------------

JobSpec made_up_spec(std::uint32_t number) {
  JobSpec spec;
  spec.name = "job " + std::to_string(number);
  spec.tenant = number % 3 == 0 ? "vision" : "language";
  spec.asked = static_cast<policies::AskedClass>(number % 3);
  spec.gpus = static_cast<std::int32_t>(1U << number % 4);
  spec.cpu_milli = 1000 * (number % 7);
  spec.host_memory_mib = 512 * (number % 5);
  if (number % 2 == 0) spec.terms.memory = MemoryRange{Bytes{number + 1ULL}, std::nullopt};
  if (number % 5 == 0) spec.terms.share = ShareRange{0.25, 0.5};
  if (number % 4 == 0) spec.time_limit = std::chrono::seconds{number};
  const FlatRule rule{std::chrono::seconds{60 + number}, 0.02};
  if (number % 6 == 0) spec.end_when_flat = rule;
  if (number % 6 == 1) spec.park_when_flat = rule;
  if (number % 6 == 2) spec.pre_run = std::chrono::seconds{number};
  spec.environment = {{"SEED", std::to_string(number)}};
  spec.command = {"python", "train.py", "--text", std::string(number % 97, 'x')};
  spec.directory = "/home/ann";
  return spec;
}

namespace {

/// Does everything to the model and to the store.
class Player {
 public:
  Player(std::uint32_t seed, std::uint32_t number, Model& model, Store* store)
      : random_{seed * 1'000'003U + number},
        now_(kStart + std::chrono::seconds{number}),
        model_(model),
        store_(store) {}

  void change() {
    switch (below(11)) {
      case 0:
      case 1:
      case 2: return add();
      case 3: return both([&](auto& to) { to.put(tenant_); }, draw_tenant());
      case 4: return both([&](auto& to) { to.put(node_); }, draw_node());
      case 5: return both([&](auto& to) { to.undrain(node_.node); }, draw_node());
      case 6: return both([&](auto& to) { to.put(input_); }, draw_input());
      case 7: return both([&](auto& to) { to.remove(input_.key); }, draw_input());
      default: return step();
    }
  }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

 private:
  template <typename Change>
  void both(Change to, bool) {
    to(model_);
    if (store_ != nullptr) to(*store_);
  }

  bool draw_tenant() {
    tenant_ = {"tenant-" + std::to_string(below(4)), std::nullopt};
    if (below(3) != 0) tenant_.quota = static_cast<std::int32_t>(below(64));
    return true;
  }
  bool draw_node() {
    node_ = {"node-" + std::to_string(below(4)), "reason " + std::to_string(below(100)), now_};
    return true;
  }

  bool draw_input() {
    const auto number = [&](std::uint32_t below_it) { return std::to_string(below(below_it)); };
    input_ = {};
    input_.key = {"tenant-" + number(2), "data-" + number(2), "shard:" + number(5)};
    input_.reason = "reason " + number(100);
    input_.since = now_;
    input_.listed = below(2) == 0;
    for (std::uint32_t left = below(3); left > 0; --left) {
      input_.reports.push_back({{JobId{number(9)}, below(4)}, below(2) == 0, below(2) == 0});
    }
    return true;
  }

  void add() {
    const JobSpec spec = made_up_spec(below(1000));
    const std::string request = below(2) == 0 ? "" : "request-" + std::to_string(below(30));
    const JobId id = model_.add(spec, request, now_);
    if (store_ != nullptr && store_->add(spec, request, now_) != id) {
      throw std::logic_error("the store gave another id than " + id.str());
    }
  }

  void step() {
    if (model_.jobs() == 0) return;
    JobRecord record =
        *model_.job(JobId{std::to_string(1 + below(static_cast<std::uint32_t>(model_.jobs())))});
    Transition transition{.job = record.id,
                          .number = 0,
                          .at = now_,
                          .from = record.state,
                          .to = static_cast<JobState>(below(11)),
                          .attempt = record.attempt,
                          .reason = "because of " + std::string(below(400), 'r')};
    record.reason = transition.reason;
    record.attempt += below(2);
    record.retries += below(2);
    record.job_class = static_cast<JobClass>(below(2));
    record.placement.assign(below(5), {"node-" + std::to_string(below(4)), 3});
    record.cancel_asked = below(2) == 0;
    record.finish_asked = below(3) == 0;
    record.park_asked = below(3) == 0;
    record.unheld = below(3) == 0;
    record.lowering = below(3) == 0;
    record.exit_code = below(2) == 0 ? std::nullopt : std::optional{3};
    if (below(4) != 0) {
      record.state = transition.to;
      record.changed = now_;
      return both([&](auto& to) { to.put(record, transition); }, true);
    }
    both([&](auto& to) { to.put(record, std::nullopt); }, true);
  }

  std::mt19937 random_;
  WallTime now_;
  Model& model_;
  Store* store_;
  TenantRecord tenant_;
  DrainedNode node_;
  BadInput input_;
};

}  // namespace

void apply_batch(std::uint32_t seed, std::uint32_t number, Model& model, Store* store) {
  Player player{seed, number, model, store};
  for (std::uint32_t left = 1 + player.below(12); left > 0; --left) player.change();
}

// --- files -------------------------------------------------------------------------------------

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "commensal-store-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot be read: " + file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot be written: " + file.string());
}

}  // namespace commensal::cluster
