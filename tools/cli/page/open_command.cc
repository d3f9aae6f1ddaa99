#include "tools/cli/page/open_command.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/cluster_config.h"
#include "common/mutex.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/page/earlier_points.h"
#include "tools/cli/page/job_orders.h"
#include "tools/cli/page/page_state.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

using Json = nlohmann::ordered_json;

// An order waits for the next look at the orders, and for the coordinator.
constexpr absl::Duration kOrdersLookEvery = absl::Milliseconds(50);
constexpr int kOrdersMax = 16;
// Who has given it has seen by then that it takes long, and may have gone.
constexpr absl::Duration kOrderAgeMax = absl::Seconds(5);

// What is not UTF-8 (a path, say) is shown with marks in its place.
std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What the thread that speaks with the job and those of the server share.
class SharedPage {
 public:
  SharedPage(Configured configured, std::vector<Json> earlier)
      : state_(std::move(configured), std::move(earlier)) {}

  void Update(const wire::StatusReply& status) {
    const MutexLock lock(mutex_);
    state_.Update(status);
  }
  void SetSilence(const std::string& why) {
    const MutexLock lock(mutex_);
    state_.SetSilence(why);
  }
  void SetEnd(const std::string& how) {
    const MutexLock lock(mutex_);
    state_.SetEnd(how);
  }
  std::string Now() const {
    Json now;
    {
      const MutexLock lock(mutex_);
      now = state_.Now();
    }
    return Text(now);
  }
  std::string History() const {
    Json history;
    {
      const MutexLock lock(mutex_);
      history = state_.History();
    }
    return Text(history);
  }

  // Waits until TakeOrder() has given it to who carries it out.
  absl::StatusOr<std::string> Order(absl::string_view body) {
    Json order = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (order.is_discarded())
      return absl::InvalidArgumentError("an order is a JSON object");
    std::future<absl::StatusOr<std::string>> answer;
    {
      const MutexLock lock(mutex_);
      if (closed_) return absl::UnavailableError("slackline open ends");
      if (orders_.size() >= kOrdersMax) {
        return absl::ResourceExhaustedError(
            "too many orders wait for the coordinator");
      }
      Given& given = orders_.emplace_back();
      given.order = std::move(order);
      given.given_at = TimeSource().Now();
      answer = given.answer.get_future();
    }
    return answer.get();
  }
  struct Given {
    Json order;
    absl::Time given_at;
    std::promise<absl::StatusOr<std::string>> answer;
  };
  std::optional<Given> TakeOrder() {
    const MutexLock lock(mutex_);
    if (orders_.empty()) return std::nullopt;
    Given given = std::move(orders_.front());
    orders_.pop_front();
    return given;
  }
  // Nobody takes orders any more.
  void Close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    for (Given& given : orders_)
      given.answer.set_value(absl::UnavailableError("slackline open ends"));
    orders_.clear();
  }

 private:
  mutable Mutex mutex_;
  PageState state_ ABSL_GUARDED_BY(mutex_);
  std::deque<Given> orders_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Asks once more. False: the job has ended, and nobody needs to be asked again.
bool Look(const OpenOptions& options, JobConnection* job, SharedPage* page) {
  if (HasEnded(options.job.config)) {
    const absl::StatusOr<RunResult> run = ReadRunResult(options.job.config);
    page->SetEnd(
        run.ok() ? absl::StrCat("the job has ended: ", EndText(run->summary))
                 : "the job has ended");
    return false;
  }
  if (const absl::Status refreshed = job->Refresh(); !refreshed.ok()) {
    page->SetSilence(std::string(refreshed.message()));
    return true;
  }
  page->Update(job->status());
  return !IsOver(job->status().view());
}

// The address that a browser on another machine can use, if this one listens at
// all of its own.
std::string NamedUrl(const OpenOptions& options, const PageServer& server) {
  const std::string& host = options.page.host;
  std::array<char, HOST_NAME_MAX + 1> name = {};
  if ((host != "0.0.0.0" && host != "::") ||
      gethostname(name.data(), name.size() - 1) != 0) {
    return server.url();
  }
  return absl::StrReplaceAll(server.url(),
                             {{host == "::" ? "[::]" : host, name.data()}});
}

std::string AddressText(const OpenOptions& options, const PageServer& server) {
  std::string text = absl::StrCat("page: ", NamedUrl(options, server), "\n");
  if (IsLoopback(options.page.host)) {
    const std::string& host = options.page.host;
    const std::string there =
        absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host;
    absl::StrAppend(&text, "from another machine: ssh -L ", server.port(), ":",
                    there, ":", server.port(), " THIS-HOST, and there ",
                    absl::StrReplaceAll(server.url(), {{there, "127.0.0.1"}}),
                    "\n");
  } else {
    absl::StrAppend(&text,
                    "without encryption: whoever reads this address on its way "
                    "can stop the job\n");
  }
  return absl::StrCat(text, "Ctrl-C ends the page, not the job\n");
}

// What the run in the folder has recorded so far; nothing, if that cannot be
// read here.
std::vector<Json> PointsOfRun(const std::string& config, double until) {
  if (!IsRunFolder(config)) return {};
  const std::string path = absl::StrCat(config, "/metrics.jsonl");
  std::error_code error;  // To open a pipe waits for whoever writes to it.
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream metrics(path);
  return EarlierPoints(metrics, until, PageState::kEarlierPointsMax);
}

absl::Status Serve(const OpenOptions& options) {
  if (HasEnded(options.job.config)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run in ", options.job.config,
                     " has ended; `slackline status` shows how, and "
                     "docs/manual/run.ipynb draws what it has left"));
  }
  // Before the connection, whose threads must not take the signals.
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SharedPage page(ConfiguredBy(job.config()),
                  PointsOfRun(options.job.config, job.status().run_seconds()));
  page.Update(job.status());
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<PageServer> server,
      PageServer::Start(
          options.page,
          {.now = [&page] { return page.Now(); },
           .history = [&page] { return page.History(); },
           .order =
               [&page](absl::string_view body) { return page.Order(body); }}));
  PrintResult(AddressText(options, *server));
  JobOrders orders(&job);
  absl::Time next = TimeSource().Now() + options.interval;
  bool goes_on = !IsOver(job.status().view());
  while (signals->Wait(kOrdersLookEvery).all() == 0) {
    bool ordered = false;
    if (std::optional<SharedPage::Given> given = page.TakeOrder()) {
      given->answer.set_value(
          TimeSource().Now() - given->given_at > kOrderAgeMax
              ? absl::DeadlineExceededError(
                    "not ordered: the coordinator does not answer")
              : orders.Give(given->order));
      ordered = true;
    }
    if (!goes_on || (TimeSource().Now() < next && !ordered)) continue;
    next = TimeSource().Now() + options.interval;
    orders.Look();
    goes_on = Look(options, &job, &page);
  }
  page.Close();
  return absl::OkStatus();
}

}  // namespace

int OpenPage(const OpenOptions& options) {
  const absl::Status served = Serve(options);
  return served.ok() ? kExitDone : Fail("open", served);
}

}  // namespace slackline
