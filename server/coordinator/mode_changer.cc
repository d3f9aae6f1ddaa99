#include "server/coordinator/mode_changer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

constexpr size_t kLastChangesMax = 16;
constexpr char kSchedule[] = "schedule";

int IndexOfLast(const wire::View& view) { return view.phase_size() - 1; }

const wire::Phase& Last(const wire::View& view) {
  return view.phase(IndexOfLast(view));
}

// A phase by all-reduce, or the job in one, ends at this clock.
bool AllReduceEndsAt(const wire::View& view, Clock clock) {
  for (int i = 0; i < view.phase_size(); ++i) {
    const Clock end =
        i < IndexOfLast(view) ? view.phase(i + 1).from() : view.steps_total();
    if (view.phase(i).mode() == wire::ALLREDUCE && end == clock) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> ModeChanger::Start(wire::View* view) {
  std::vector<std::string> log;
  view->clear_phase();
  reasons_.clear();
  Clock from = 0;
  const auto add = [&](const SyncMode& mode) {
    if (from >= view->steps_total()) {
      log.push_back(absl::StrCat("phase ", ModeText(mode),
                                 " would begin at "
                                 "step ",
                                 from, "; the job has ", view->steps_total(),
                                 " steps, so it is left out"));
      return;
    }
    if (view->phase_size() > 0 && Last(*view).from() == from) {
      log.push_back(absl::StrCat("phase ", ModeText(Last(*view)),
                                 " would end at step ", from,
                                 ", where it begins, so it is left out"));
      view->mutable_phase()->RemoveLast();
    }
    if (view->phase_size() > 0 && SyncModeOf(Last(*view)) == mode)
      return;  // It goes on.
    wire::Phase& phase = *view->add_phase();
    PutSyncMode(mode, &phase);
    phase.set_from(from);
  };
  if (sync_.has_auto_()) {
    add({.mode = wire::ALLREDUCE});
  } else if (sync_.phase_size() == 0) {
    add(ConfiguredMode(sync_));
  }
  const double total = static_cast<double>(view->steps_total());
  for (const config::Phase& phase : sync_.phase()) {
    add(ConfiguredMode(phase));
    const double end =
        phase.until_epoch() * static_cast<double>(view->steps_per_epoch());
    from = std::max<Clock>(from, std::llround(std::min(end, total)));
  }
  reasons_.assign(static_cast<size_t>(view->phase_size()), kSchedule);
  return log;
}

// ---- Changes ----------------------------------------------------------------

std::string ModeChanger::WhyNot(const wire::View& view,
                                const std::vector<Worker>& workers) const {
  if (wanted_.has_value()) {
    return absl::StrCat("the mode is just changing from ", ModeText(Last(view)),
                        " to ", ModeText(wanted_->mode),
                        "; try again when it has");
  }
  if (view.entered() < IndexOfLast(view)) {
    const int next = view.entered() + 1;
    return absl::StrCat("the mode changes to ", ModeText(view.phase(next)),
                        " at step ", view.phase(next).from(), " (",
                        reasons_.at(static_cast<size_t>(next)),
                        "); try again when it has");
  }
  for (const Worker& worker : workers) {
    if (worker.done || worker.clock + kStepLimitAhead >= view.steps_total()) {
      return absl::StrCat("the job is about to end: worker ", worker.rank,
                          " has completed ", worker.clock, " of ",
                          view.steps_total(), " steps");
    }
  }
  return "";
}

void ModeChanger::Want(const SyncMode& mode, const std::string& reason) {
  SL_CHECK(!wanted_.has_value(), "a change of mode is under way already");
  wanted_ = {.mode = mode, .reason = reason};
  limits_.clear();
}

void ModeChanger::OnStepLimit(Incarnation incarnation,
                              const wire::StepLimit& limit,
                              const wire::View& view) {
  if (!view.has_change() || view.change().id() != limit.change()) return;
  Clock& known = limits_.try_emplace(incarnation, limit.clock()).first->second;
  known = std::max(known, limit.clock());
}

void ModeChanger::OnArrive(Incarnation incarnation, const wire::Arrive& arrive,
                           const wire::View& view) {
  if (!AllReduceEndsAt(view, arrive.clock())) return;
  Clock& known =
      arrived_.try_emplace(incarnation, arrive.clock()).first->second;
  known = std::max(known, arrive.clock());
}

std::string ModeChanger::OnEntered(int32_t rank, Incarnation incarnation,
                                   const wire::Entered& entered,
                                   const wire::View& view) {
  int index = view.entered() + 1;
  while (index <= IndexOfLast(view) &&
         view.phase(index).from() != entered.from()) {
    ++index;
  }
  // A phase that all have entered already: repeated, or of a worker that has
  // joined since and took another state.
  if (index > IndexOfLast(view)) return "";
  int& last = entered_.try_emplace(incarnation, index).first->second;
  last = std::max(last, index);
  std::vector<Report>& reports = reports_[index];
  for (const Report& other : reports) {
    if (other.incarnation == incarnation) return "";  // Repeated.
  }
  reports.push_back(
      {.rank = rank, .incarnation = incarnation, .entered = entered});
  for (const Report& other : reports) {
    const uint64_t theirs = other.entered.model_hash();
    if (theirs == 0 || entered.model_hash() == 0 ||
        theirs == entered.model_hash()) {
      continue;
    }
    return absl::StrFormat(
        "the workers' models differ where the mode changes from %s to %s, at "
        "step %d: worker %d has hash %016x, worker %d has %016x",
        ModeText(view.phase(index - 1)), ModeText(view.phase(index)),
        entered.from(), other.rank, theirs, rank, entered.model_hash());
  }
  return "";
}

ModeChanger::News ModeChanger::Advance(const std::vector<Worker>& workers,
                                       uint64_t number, double seconds,
                                       wire::View* view) {
  News news;
  const bool opened = Open(number, view);
  const bool settled = Settle(workers, view, &news);
  const bool gathered = Gather(workers, view);
  const bool entered = Enter(workers, seconds, view, &news);
  news.view_changed = opened || settled || gathered || entered;
  return news;
}

bool ModeChanger::Open(uint64_t number, wire::View* view) const {
  if (!wanted_.has_value() || view->has_change() || view->move_size() > 0) {
    return false;
  }
  wire::ModeChange& change = *view->mutable_change();
  change.set_id(number);
  PutSyncMode(wanted_->mode, &change);
  return true;
}

bool ModeChanger::Settle(const std::vector<Worker>& workers, wire::View* view,
                         News* news) {
  if (!view->has_change()) return false;
  Clock from = Last(*view).from() + 1;
  bool all = true;
  for (const Worker& worker : workers) {
    const auto limit = limits_.find(worker.incarnation);
    if (worker.done) {
      from = view->steps_total();  // It is past any earlier clock.
    } else if (limit == limits_.end()) {
      all = false;
    } else {
      from = std::max(from, limit->second);
    }
  }
  const std::string sentence = absl::StrCat("from ", ModeText(Last(*view)),
                                            " to ", ModeText(wanted_->mode));
  if (from >= view->steps_total()) {
    news->log.push_back(absl::StrCat(
        "the mode does not change ", sentence, ": the job ends at step ",
        view->steps_total(), ", before all workers could"));
  } else if (all) {
    wire::Phase& phase = *view->add_phase();
    PutSyncMode(wanted_->mode, &phase);
    phase.set_from(from);
    reasons_.push_back(wanted_->reason);
    news->log.push_back(absl::StrCat("the mode changes ", sentence, " at step ",
                                     from, ": ", wanted_->reason));
  } else {
    return false;
  }
  view->clear_change();
  wanted_.reset();
  limits_.clear();
  return true;
}

bool ModeChanger::Gather(const std::vector<Worker>& workers,
                         wire::View* view) const {
  Clock all = std::numeric_limits<Clock>::max();
  bool any = false;
  for (const Worker& worker : workers) {
    if (worker.done) continue;
    const auto clock = arrived_.find(worker.incarnation);
    if (clock == arrived_.end()) return false;
    all = std::min(all, clock->second);
    any = true;
  }
  if (!any || all <= view->arrived()) return false;
  view->set_arrived(all);
  return true;
}

bool ModeChanger::Enter(const std::vector<Worker>& workers, double seconds,
                        wire::View* view, News* news) {
  bool changed = false;
  while (!reports_.empty()) {
    const int next = view->entered() + 1;
    for (const Worker& worker : workers) {
      if (worker.done) continue;
      const auto index = entered_.find(worker.incarnation);
      if (index == entered_.end() || index->second < next) return changed;
    }
    run::ModeRecord record = RecordOf(next, seconds, *view);
    news->log.push_back(absl::StrFormat(
        "the mode has changed from %s to %s at step %d: the workers stood "
        "still for at most %.1f ms, connecting %.1f ms and moving %d bytes "
        "%.1f ms of it",
        record.from(), record.to(), record.from_clock(),
        static_cast<double>(record.pause_micros()) / 1000,
        static_cast<double>(record.connect_micros()) / 1000, record.bytes(),
        static_cast<double>(record.transfer_micros()) / 1000));
    ++changes_;
    if (last_changes_.size() == kLastChangesMax) last_changes_.pop_front();
    last_changes_.push_back(record);
    news->changes.push_back(std::move(record));
    reports_.erase(next);
    view->set_entered(next);
    changed = true;
  }
  return changed;
}

run::ModeRecord ModeChanger::RecordOf(int phase, double seconds,
                                      const wire::View& view) const {
  run::ModeRecord record;
  record.set_seconds(seconds);
  record.set_from_clock(view.phase(phase).from());
  record.set_from(ModeText(view.phase(phase - 1)));
  record.set_to(ModeText(view.phase(phase)));
  record.set_reason(reasons_.at(static_cast<size_t>(phase)));
  const auto reports = reports_.find(phase);
  if (reports == reports_.end()) return record;  // All who knew are gone.
  for (const Report& report : reports->second) {
    const wire::Entered& entered = report.entered;
    record.set_pause_micros(
        std::max(record.pause_micros(), entered.pause_micros()));
    record.set_connect_micros(
        std::max(record.connect_micros(), entered.connect_micros()));
    record.set_transfer_micros(
        std::max(record.transfer_micros(), entered.transfer_micros()));
    record.set_bytes(record.bytes() + entered.bytes());
    if (entered.model_hash() != 0) {
      record.set_model_hash(entered.model_hash());
    }
  }
  record.set_workers(static_cast<int32_t>(reports->second.size()));
  return record;
}

// ---- What has to wait -------------------------------------------------------

std::string ModeChanger::WhyNothingMoves(
    const wire::View& view, const std::vector<Worker>& workers) const {
  const int entered = view.entered();
  if (view.phase(entered).mode() == wire::ALLREDUCE) {
    return "the workers hold the model while they all-reduce; shards can move "
           "once the mode has changed";
  }
  if (wanted_.has_value()) return WhyNot(view, workers);
  if (entered == IndexOfLast(view)) return "";
  // A scheduled phase may lie far ahead. How far the workers are is known with
  // some delay, so a move can still be under way when it begins.
  const wire::Phase& next = view.phase(entered + 1);
  const bool begun =
      reasons_.at(static_cast<size_t>(entered) + 1) != kSchedule ||
      !reports_.empty() ||
      std::any_of(workers.begin(), workers.end(), [&](const Worker& worker) {
        return worker.clock + kStepLimitAhead >= next.from();
      });
  return begun ? WhyNot(view, workers) : "";
}

std::string ModeChanger::WhyNoneJoins(const wire::View& view) {
  for (int i = view.entered(); i < view.phase_size(); ++i) {
    if (view.phase(i).mode() != wire::ALLREDUCE) continue;
    if (i == IndexOfLast(view)) {
      return view.arrived() < view.steps_total() ? ""
                                                 : "the job is about to end";
    }
    if (view.arrived() < view.phase(i + 1).from()) continue;
    return absl::StrCat("the mode is just changing from allreduce to ",
                        ModeText(view.phase(i + 1)));
  }
  return "";
}

}  // namespace slackline
