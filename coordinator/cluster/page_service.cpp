// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/page_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <fstream>
#include <system_error>
#include <utility>

#include "coordinator/page/token.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kPublishAgain = 250ms;  // while somebody listens
constexpr auto kNodeAgain = 2s;
constexpr std::size_t kMostRequests = 64;

wire::UniqueFd make_event() {
  wire::UniqueFd fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!fd) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

/// The port of before, which open pages still ask; none: nothing that is one.
std::optional<std::uint16_t> port_in(const std::filesystem::path& file) {
  std::ifstream stream{file};
  unsigned port = 0;
  if (!(stream >> port) || port == 0 || port > 65535) return std::nullopt;
  return static_cast<std::uint16_t>(port);
}

}  // namespace

PageService::PageService(const PageOptions& options, const std::filesystem::path& state_dir,
                         const std::string& version, page::NodeStatus::Ask ask_node,
                         std::shared_ptr<spdlog::logger> log, std::string node_name)
    : log_(std::move(log)),
      token_file_(state_dir / "page-token"),
      port_file_(state_dir / "page-port"),
      wake_(make_event()),
      metrics_(version),
      board_([this] { wake(); }, page::kMostListeners),
      requests_([this] { wake(); }, kMostRequests),
      node_(board_, std::move(ask_node), kNodeAgain, std::move(node_name)) {
  if (!options.address) return;
  try {
    serve(options);
  } catch (const std::runtime_error& error) {
    if (options.required) throw;
    server_.reset();
    log_->error("there is no page: {}", error.what());
  }
}

PageService::~PageService() = default;

void PageService::serve(const PageOptions& options) {
  page::HttpOptions http;
  http.address = *options.address;
  http.hosts = options.hosts;
  http.port_before = port_in(port_file_);
  http.token = page::token_in(token_file_);
  page::HttpSources sources;
  sources.board = &board_;
  sources.requests = &requests_;
  sources.look = [this] { node_.refresh(SteadyClock::instance().now()); };
  sources.metrics = [this] {
    metrics_.listeners(board_.listeners());
    return metrics_.text();
  };
  sources.served = [this](const std::string& path, int status) { metrics_.served(path, status); };
  server_.emplace(std::move(http), std::move(sources));
  std::ofstream{port_file_, std::ios::trunc} << server_->address().port << '\n';
  log_->info("the page is at {}", url());
}

std::string PageService::url() const {
  return server_ ? fmt::format("http://{}/", to_string(server_->address())) : "";
}

std::string PageService::token_file() const { return server_ ? token_file_.native() : ""; }

void PageService::wake() const noexcept {
  const std::uint64_t one = 1;
  // It cannot be full; a signal in between is no reason: nobody sends one to these threads.
  (void)!::write(wake_.get(), &one, sizeof one);
}

void PageService::drain() const noexcept {
  std::uint64_t ignored = 0;
  (void)!::read(wake_.get(), &ignored, sizeof ignored);
}

std::vector<page::RequestBox::Request> PageService::take() {
  drain();
  return requests_.take();
}

void PageService::answer(page::RequestBox::Number number, json answer) {
  requests_.answer(number, std::move(answer));
}

void PageService::count(const json& request, const json& answer) {
  const auto text = [](const json& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() && found->is_string()
               ? found->get<std::string>()
               : "";
  };
  const bool failed = text(answer, "type") == "error";
  metrics_.answered(text(request, "type"), failed ? text(answer, "code") : "ok");
}

void PageService::publish(ShownCluster& cluster, TimePoint now, const Reports& reports) {
  next_ = TimePoint::max();
  if (!server_) return;
  const std::uint64_t question = board_.asked();
  const bool listened = board_.listeners() > 0;
  const bool asked = question > answered_;
  note_load(cluster, now);
  if (cluster.revision() != shown_ && (asked || listened)) {
    if (asked || now - last_ >= kPublishAgain) {
      put_up(cluster);
      last_ = now;
    } else {
      next_ = std::min(next_, last_ + kPublishAgain);
    }
  }
  if (reports && (asked || (listened && now >= next_reports_))) {
    put_up_reports(reports);
    next_reports_ = now + kNodeAgain;
  }
  if (reports && listened) next_ = std::min(next_, next_reports_);  // they come without a change
  if (asked) board_.answered(question);
  answered_ = question;
}

void PageService::put_up(ShownCluster& cluster) {
  try {
    const json picture = cluster.picture({});
    std::map<std::string, std::string> parts;
    for (const auto& [name, part] : picture.items()) {
      parts.emplace(name, part.dump(-1, ' ', false, json::error_handler_t::replace));
    }
    board_.put(std::move(parts));
    metrics_.show(picture);
    shown_ = cluster.revision();
  } catch (const std::exception& error) {
    log_->error("the page shows what was before: {}", error.what());
  }
}

void PageService::note_load(const ShownCluster& cluster, TimePoint now) {
  if (cluster.revision() == noted_) return;
  if (!history_.is_due(now)) {
    next_ = std::min(next_, history_.due());
    return;
  }
  noted_ = cluster.revision();
  const auto [guaranteed, opportunistic, waiting] = cluster.counts();
  if (history_.add({guaranteed, opportunistic, waiting}, now,
                   cluster.wall_time().time_since_epoch())) {
    board_.put({{"load", history_.list().dump()}});
  }
}

void PageService::put_up_reports(const Reports& reports) {
  try {
    board_.put({{"reports", reports().dump(-1, ' ', false, json::error_handler_t::replace)}});
  } catch (const std::exception& error) {
    log_->error("the page shows reports of before: {}", error.what());
  }
}

void PageService::moved(const JobRecord& before, const JobRecord& after) noexcept {
  if (is_end(after.state) && !is_end(before.state)) metrics_.ended(to_string(after.state));
  if (after.state != JobState::kStarting || before.state == JobState::kStarting) return;
  metrics_.started(to_string(after.job_class), after.changed - before.changed);
}

void PageService::begins(Work work) noexcept { begun_[work] = SteadyClock::instance().now(); }

void PageService::ended(Work work) noexcept {
  const page::Metrics::Seconds took = SteadyClock::instance().now() - begun_[work];
  work == Work::kDecision ? metrics_.decided(took) : metrics_.wrote(took);
}

}  // namespace commensal::cluster
