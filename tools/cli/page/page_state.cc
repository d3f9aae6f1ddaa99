#include "tools/cli/page/page_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/metrics/histogram.h"
#include "common/metrics/refusals.h"
#include "common/metrics/step_phases.h"
#include "common/status.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/load_tables.h"
#include "tools/cli/job/mode_text.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/stacks.h"
#include "tools/cli/page/members_by_index.h"

namespace slackline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kShardsShown = 12;
constexpr int kBinsShown = 48;

// How many gradients missed 0, 1, 2, ... clocks, over all servers; the last bin
// has the rest.
Json StalenessOf(const wire::StatusReply& status) {
  run::Histogram missed;
  for (const run::ServerStats& server : status.server())
    MergeHistogram(server.missed_clocks(), &missed);
  Json bins = Json::array();
  for (int i = 0; i < missed.bin_size(); ++i) {
    if (i < kBinsShown) {
      bins.push_back(missed.bin(i));
    } else {
      bins.back() = bins.back().get<uint64_t>() + missed.bin(i);
    }
  }
  return {{"bins", bins},
          {"p50", HistogramPercentile(missed, 0.5)},
          {"p99", HistogramPercentile(missed, 0.99)},
          {"max", missed.max()}};
}

// Of a step, in their order.
Json PhaseNames() {
  Json names = Json::array();
  for (const auto& [name, seconds] : PhasesOf(run::StepPhases()))
    names.push_back(name);
  return names;
}

// Of a sentence of the stall watch, what stays the same while it holds.
std::string LastingPart(const std::string& sentence) {
  return sentence.substr(0, sentence.find(", without progress for"));
}

// Without what grows with the model: the page shows the busiest shards only.
wire::StatusReply WithoutShards(wire::StatusReply status) {
  wire::View& view = *status.mutable_view();
  view.clear_table();
  view.clear_owner_server();
  view.clear_owner_thread();
  view.clear_split();
  view.clear_follower();
  for (run::ServerStats& server : *status.mutable_server()) {
    for (run::ThreadLoad& thread : *server.mutable_thread())
      thread.clear_shard();
    server.clear_follower();
    server.clear_missed_clocks();
    server.clear_missed_updates();
    server.clear_lead();
  }
  return status;
}

Json TextsOf(const wire::StatusReply& status, const Configured& configured) {
  Progress progress;
  progress.Update(status, absl::UnixEpoch());
  const wire::View& view = status.view();
  return {{"state", StateName(view.state())},
          {"headline", progress.Headline()},
          {"mode", ModeOutlook(status)},
          {"end", view.end().reason()},
          {"members", MembersText(status, configured)},
          {"copies", CopiesLine(status, configured)},
          {"checkpoint", CheckpointText(status)},
          {"refused", RefusalsText(status.refused())}};
}

}  // namespace

PageState::PageState(Configured configured, std::vector<Json> earlier)
    : configured_(std::move(configured)), earlier_(std::move(earlier)) {
  SL_CHECK(earlier_.size() <= kEarlierPointsMax, "earlier points are bounded");
}

void PageState::Update(const wire::StatusReply& status) {
  silence_.clear();
  now_ = {{"status", StatusJson(WithoutShards(status), configured_)},
          {"text", TextsOf(status, configured_)},
          {"shards", ShardsJson(status, kShardsShown)},
          {"phases", PhaseNames()},
          {"staleness", StalenessOf(status)}};
  Json& servers = now_["status"]["server"];
  for (int i = 0; i < status.server_size(); ++i) {
    const ServerLoad load = LoadOf(status, status.server(i));
    servers[static_cast<size_t>(i)]["load"] = {{"busiest", load.busiest},
                                               {"share", load.share},
                                               {"queue_ms", load.queue_ms}};
  }
  over_ = IsOver(status.view());
  Notice(status);
  if (status.view().state() == wire::RUNNING) Remember(status);
}

void PageState::SetSilence(const std::string& why) {
  if (silence_ != why)
    Tell(now_["status"]["run_seconds"].get<double>(), "warning", why);
  silence_ = why;
}

void PageState::SetEnd(const std::string& how) {
  over_ = true;
  SetSilence(how);
}

Json PageState::Now() const {
  Json now = now_;
  now["events"] = events_;
  now["silence"] = silence_;
  now["over"] = over_;
  now["history"] = {{"every", every_},
                    {"count", earlier_.size() + points_.size()},
                    {"last", points_.empty() ? Json() : points_.back()}};
  return now;
}

Json PageState::History() const {
  Json points = earlier_;
  for (const Json& point : points_) points.push_back(point);
  return {{"every", every_}, {"points", std::move(points)}};
}

void PageState::Remember(const wire::StatusReply& status) {
  if (replies_++ % every_ != 0) return;
  Json point = {{"t", status.run_seconds()}, {"loss", nullptr},
                {"test_loss", nullptr},      {"test_accuracy", nullptr},
                {"clock", Json::array()},    {"examples", Json::array()},
                {"work", Json::array()},     {"wait", Json::array()},
                {"busy", Json::array()}};
  double loss = 0;
  int losses = 0;
  for (const run::WorkerStats& worker : status.worker()) {
    PutAt(worker.rank(), worker.clock(), &point["clock"]);
    PutAt(worker.rank(), worker.examples(), &point["examples"]);
    PutAt(worker.rank(), worker.compute_seconds(), &point["work"]);
    PutAt(worker.rank(), worker.wait_seconds(), &point["wait"]);
    if (worker.clock() == 0) continue;
    loss += worker.train_loss();
    ++losses;
  }
  if (losses > 0) point["loss"] = loss / losses;
  for (const run::MetricRecord& record : status.latest()) {
    if (record.kind() != run::MetricRecord::EVAL) continue;
    if (record.has_loss()) point["test_loss"] = record.loss();
    if (record.has_accuracy()) point["test_accuracy"] = record.accuracy();
  }
  for (const run::ServerStats& server : status.server())
    PutAt(server.index(), LoadOf(status, server).busiest, &point["busy"]);
  points_.push_back(std::move(point));
  if (earlier_.size() + points_.size() <= kPointsMax) return;
  for (size_t i = 0; 2 * i < points_.size(); ++i)
    points_[i] = std::move(points_[2 * i]);
  points_.resize((points_.size() + 1) / 2);
  every_ *= 2;
  // This reply is the newest point that stays, and the next one comes `every_`
  // replies later.
  replies_ = 1;
}

void PageState::Tell(double seconds, const char* kind,
                     const std::string& text) {
  events_.push_back({{"t", seconds}, {"kind", kind}, {"text", text}});
  if (events_.size() > kEventsMax) events_.pop_front();
}

void PageState::NoticeMembers(const wire::StatusReply& status) {
  std::set<std::string> members;
  for (const run::ServerStats& server : status.server())
    members.insert(absl::StrCat("server ", server.index()));
  for (const run::WorkerStats& worker : status.worker())
    members.insert(absl::StrCat("worker ", worker.rank()));
  const double seconds = status.run_seconds();
  // Those of the first reply were there, whoever looks.
  const bool first = state_ == wire::JOB_STATE_UNSPECIFIED;
  for (const std::string& name : members) {
    if (!first && members_.count(name) == 0)
      Tell(seconds, "member", absl::StrCat(name, " has joined"));
  }
  for (const std::string& name : members_) {
    if (members.count(name) == 0)
      Tell(seconds, "warning", absl::StrCat(name, " is gone"));
  }
  members_ = std::move(members);
}

void PageState::NoticeStacks(const wire::StatusReply& status) {
  std::map<std::string, std::string> stood_still;
  for (const wire::MemberStacks& stacks : status.stacks()) {
    const std::string who = MemberText(stacks.of());
    const std::string& where = stacks.stacks().where();
    const auto before = stood_still_.find(who);
    stood_still[who] = where;
    if (where.empty() ||
        (before != stood_still_.end() && before->second == where)) {
      continue;
    }
    Tell(stacks.seconds(), "warning",
         absl::StrCat(who, " stands still in ", where));
  }
  stood_still_ = std::move(stood_still);
}

void PageState::Notice(const wire::StatusReply& status) {
  const double seconds = status.run_seconds();
  NoticeMembers(status);
  const wire::View& view = status.view();
  if (view.state() != state_) {
    state_ = view.state();
    Tell(
        seconds, state_ == wire::FAILED ? "warning" : "job",
        absl::StrCat(
            "the job ",
            state_ == wire::FAILED || state_ == wire::FINISHED ? "has " : "is ",
            StateName(state_),
            view.end().reason().empty()
                ? ""
                : absl::StrCat(": ", view.end().reason())));
  }
  std::set<std::string> held_up;
  for (const std::string& sentence : status.held_up()) {
    const std::string part = LastingPart(sentence);
    if (held_up_.count(part) == 0) Tell(seconds, "warning", sentence);
    held_up.insert(part);
  }
  held_up_ = std::move(held_up);
  NoticeStacks(status);
  std::set<std::string> slow;
  for (const run::Straggler& straggler : status.straggler()) {
    const std::string who =
        straggler.has_server() ? absl::StrCat("server ", straggler.server())
        : straggler.has_rank() ? absl::StrCat("worker ", straggler.rank())
                               : "all workers";
    if (slow_.count(who) == 0) Tell(seconds, "warning", straggler.sentence());
    slow.insert(who);
  }
  for (const std::string& who : slow_) {
    if (slow.count(who) == 0)
      Tell(seconds, "job", absl::StrCat("no longer slow: ", who));
  }
  slow_ = std::move(slow);
  double changed_at = mode_changed_at_;
  for (const run::ModeRecord& record : status.mode_changed()) {
    if (record.seconds() <= mode_changed_at_) continue;
    Tell(record.seconds(), "mode",
         absl::StrCat("the mode has ", ModeChangeText(record)));
    changed_at = std::max(changed_at, record.seconds());
  }
  mode_changed_at_ = changed_at;
  // Another coordinator may have counted fewer.
  const int64_t moved =
      std::clamp<int64_t>(status.moves() - moves_, 0, status.moved_size());
  moves_ = status.moves();
  for (int i = status.moved_size() - static_cast<int>(moved);
       i < status.moved_size(); ++i) {
    const run::MoveRecord& move = status.moved(i);
    Tell(move.seconds(), "move",
         absl::StrCat("shard ", move.name(), " has moved from ",
                      move.from_server(), ".", move.from_thread(), " to ",
                      move.to_server(), ".", move.to_thread(),
                      move.reason().empty() ? "" : ": ", move.reason()));
  }
  if (status.last_checkpoint().folder() != checkpoint_) {
    checkpoint_ = status.last_checkpoint().folder();
    if (!checkpoint_.empty()) {
      Tell(status.last_checkpoint().seconds(), "checkpoint",
           absl::StrCat("a checkpoint of step ",
                        status.last_checkpoint().clock(), " is in ",
                        checkpoint_));
    }
  }
  if (status.checkpoint_failed() != checkpoint_failed_) {
    checkpoint_failed_ = status.checkpoint_failed();
    if (!checkpoint_failed_.empty())
      Tell(seconds, "warning", checkpoint_failed_);
  }
}

}  // namespace slackline
