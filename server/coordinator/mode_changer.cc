#include "server/coordinator/mode_changer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "common/view/initializer.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

constexpr size_t kLastChangesMax = 16;
constexpr char kSchedule[] = "schedule";
constexpr char kInitialValues[] = "initial values of a worker";

int IndexOfLast(const wire::View& view) { return view.phase_size() - 1; }

const wire::Phase& Last(const wire::View& view) {
  return view.phase(IndexOfLast(view));
}

// A phase in which the workers have the model, or the job in one, ends at this
// clock.
bool WorkersGiveModelAt(const wire::View& view, Clock clock) {
  for (int i = 0; i < view.phase_size(); ++i) {
    const Clock end = EndOfPhase(view, i);
    if (WorkersHaveModel(FirstStepOf(view.phase(i))) && end == clock)
      return true;
  }
  return false;
}

absl::Status CheckpointUnderWay() {
  return absl::UnavailableError(
      "a checkpoint is just being taken; try again when it is there");
}

}  // namespace

std::vector<std::string> ModeChanger::Start(ViewEditor* editor) {
  const Clock steps_total = editor->view().steps_total();
  std::vector<std::string> log;
  std::vector<wire::Phase> phases;
  reasons_.clear();
  Clock from = 0;
  const auto add = [&](const sync::Mode& mode) {
    if (from >= steps_total) {
      log.push_back(absl::StrCat("phase ", ModeText(mode),
                                 " would begin at "
                                 "step ",
                                 from, "; the job has ", steps_total,
                                 " steps, so it is left out"));
      return;
    }
    if (!phases.empty() && phases.back().from() == from) {
      log.push_back(absl::StrCat("phase ", ModeText(phases.back().mode()),
                                 " would end at step ", from,
                                 ", where it begins, so it is left out"));
      phases.pop_back();
    }
    if (!phases.empty() && SameMode(phases.back().mode(), mode))
      return;  // It goes on.
    wire::Phase& phase = phases.emplace_back();
    *phase.mutable_mode() = mode;
    phase.set_from(from);
  };
  sync::Mode allreduce;
  allreduce.mutable_allreduce();
  const sync::Mode first =
      ConfiguredMode(sync_.phase_size() == 0
                         ? static_cast<const google::protobuf::Message&>(sync_)
                         : sync_.phase(0));
  const bool from_worker =
      (BeginsWithWorker(editor->view()) || delays_->BeganWithWorker()) &&
      !sync_.has_auto_() && !WorkersHaveModel(RuleOf(first).StepOf(from));
  if (from_worker) {  // One step brings them to the others and the servers.
    add(allreduce);
    from = 1;
  }
  if (sync_.has_auto_()) {
    add(allreduce);
  } else if (sync_.phase_size() == 0) {
    add(ConfiguredMode(sync_));
  }
  const double total = static_cast<double>(steps_total);
  for (const config::Phase& phase : sync_.phase()) {
    add(ConfiguredMode(phase));
    const double end = phase.until_epoch() *
                       static_cast<double>(editor->view().steps_per_epoch());
    from = std::max<Clock>(from, std::llround(std::min(end, total)));
  }
  reasons_.assign(phases.size(), kSchedule);
  if (from_worker && phases.size() > 1) reasons_[1] = kInitialValues;
  editor->SetPhases(phases);
  return log;
}

// ---- Changes ----------------------------------------------------------------

absl::Status ModeChanger::MayChange(const wire::View& view,
                                    const std::vector<Worker>& workers) const {
  if (end_.IsUnderWay()) {
    return absl::FailedPreconditionError(
        "the job is just being ended early, by a user");
  }
  if (cut_.IsUnderWay()) return CheckpointUnderWay();
  if (agreement_.wish().has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "the mode is just changing from ", ModeText(Last(view).mode()), " to ",
        ModeText(agreement_.wish()->to.mode()), "; try again when it has"));
  }
  if (view.entered() < IndexOfLast(view)) {
    const int next = view.entered() + 1;
    return absl::UnavailableError(absl::StrCat(
        "the mode changes to ", ModeText(view.phase(next).mode()), " at step ",
        view.phase(next).from(), " (", reasons_.at(static_cast<size_t>(next)),
        "); try again when it has"));
  }
  if (view.phase_size() >= kPhasesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job has had ", view.phase_size(),
                     " phases, and a view lists no more; its mode stays ",
                     ModeText(Last(view).mode())));
  }
  for (const Worker& worker : workers) {
    if (IsAboutToEnd(worker, view)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the job is about to end: worker ", worker.rank, " has completed ",
          worker.clock, " of ", EndOf(view), " steps"));
    }
  }
  return absl::OkStatus();
}

void ModeChanger::Want(const sync::Mode& mode, const std::string& reason) {
  ClockAgreement::Wish wish{.to = {}, .reason = reason};
  *wish.to.mutable_mode() = mode;
  agreement_.Want(std::move(wish));
}

absl::Status ModeChanger::MayCut(const wire::View& view,
                                 const std::vector<Worker>& workers) const {
  if (view.elastic()) {
    return absl::FailedPreconditionError(
        "the job has elastic sampling, and a checkpoint does not have which "
        "examples are done; take static sampling");
  }
  if (end_.IsUnderWay()) {
    return absl::OutOfRangeError(
        "the job is just being ended early, by a user");
  }
  const bool near = std::all_of(
      workers.begin(), workers.end(),
      [&](const Worker& worker) { return IsAboutToEnd(worker, view); });
  if (near) {
    return absl::OutOfRangeError(absl::StrCat(
        "the job is about to end by itself, at step ", EndOf(view)));
  }
  return absl::OkStatus();
}

void ModeChanger::OnArrive(Incarnation incarnation, const wire::Arrive& arrive,
                           const wire::View& view) {
  if (!WorkersGiveModelAt(view, arrive.clock())) return;
  Clock& known =
      arrived_.try_emplace(incarnation, arrive.clock()).first->second;
  known = std::max(known, arrive.clock());
}

std::optional<wire::JobEnd> ModeChanger::OnEntered(int32_t rank,
                                                   Incarnation incarnation,
                                                   const wire::Entered& entered,
                                                   const wire::View& view) {
  int index = view.entered() + 1;
  while (index <= IndexOfLast(view) &&
         view.phase(index).from() != entered.from()) {
    ++index;
  }
  // A phase that all have entered already: repeated, or of a worker that has
  // joined since and took another state.
  if (index > IndexOfLast(view)) return std::nullopt;
  int& last = entered_.try_emplace(incarnation, index).first->second;
  last = std::max(last, index);
  std::vector<Report>& reports = reports_[index];
  for (const Report& other : reports) {
    if (other.incarnation == incarnation) return std::nullopt;  // Repeated.
  }
  reports.push_back(
      {.rank = rank, .incarnation = incarnation, .entered = entered});
  for (const Report& other : reports) {
    const uint64_t theirs = other.entered.model_hash();
    if (theirs == 0 || entered.model_hash() == 0 ||
        theirs == entered.model_hash()) {
      continue;
    }
    wire::JobEnd end = JobEndOf(
        wire::JobEnd::MODELS_DIFFER,
        absl::StrFormat(
            "the workers' models differ where the mode changes from %s to %s, "
            "at step %d: worker %d has hash %016x, worker %d has %016x",
            ModeText(view.phase(index - 1).mode()),
            ModeText(view.phase(index).mode()), entered.from(), other.rank,
            theirs, rank, entered.model_hash()));
    end.add_worker(other.rank);
    end.add_worker(rank);
    return end;
  }
  return std::nullopt;
}

void ModeChanger::OnGone(const Worker& worker, uint64_t view_number) {
  agreement_.OnGone(worker.incarnation, view_number);
  arrived_.erase(worker.incarnation);
  entered_.erase(worker.incarnation);
}

ModeChanger::News ModeChanger::Advance(const std::vector<Worker>& workers,
                                       double seconds, ViewEditor* editor) {
  News news;
  bool opened = Begin(editor);
  const bool settled = Settle(workers, editor, &news);
  if (settled) opened |= Begin(editor);  // What has waited for that.
  const bool gathered = Gather(workers, editor);
  const bool entered = Enter(workers, seconds, editor, &news);
  news.view_changed = opened || settled || gathered || entered;
  return news;
}

bool ModeChanger::Begin(ViewEditor* editor) {
  // Shards have the one cut or the other.
  if (!agreement_.wish().has_value() && !cut_.shards_cut()) cut_.AskFor();
  if (!agreement_.wish().has_value() && !cut_.shards_cut()) end_.AskFor();
  return agreement_.Open(editor);
}

bool ModeChanger::Settle(const std::vector<Worker>& workers, ViewEditor* editor,
                         News* news) {
  if (!editor->view().has_change()) return false;
  const ClockAgreement::Limits limits = agreement_.LimitsOf(workers, *editor);
  const bool settled =
      cut_.IsOpen()
          ? cut_.Settle(workers, limits, editor, &news->log, &news->cut_dropped)
      : end_.IsOpen() ? end_.Settle(limits, editor, &news->log)
                      : SettleChange(limits, editor, &news->log);
  if (settled) agreement_.Close(editor);
  return settled;
}

bool ModeChanger::SettleChange(const ClockAgreement::Limits& limits,
                               ViewEditor* editor,
                               std::vector<std::string>* log) {
  const wire::View& view = editor->view();
  const ClockAgreement::Wish& wish = *agreement_.wish();
  const std::string from = ModeText(Last(view).mode());
  const std::string to = ModeText(wish.to.mode());
  const Clock clock = std::max<Clock>(limits.largest, Last(view).from() + 1);
  if (clock >= EndOf(view)) {
    log->push_back(TooLateText(
        absl::StrCat("the mode does not change from ", from, " to ", to),
        view));
    return true;
  }
  if (!limits.all) return false;
  log->push_back(absl::StrCat("the mode changes from ", from, " to ", to,
                              " at step ", clock, ": ", wish.reason));
  wire::Phase phase;
  *phase.mutable_mode() = wish.to.mode();
  phase.set_from(clock);
  editor->AddPhase(phase);
  agreement_.ForgetTheGone();
  reasons_.push_back(wish.reason);
  return true;
}

bool ModeChanger::Gather(const std::vector<Worker>& workers,
                         ViewEditor* editor) const {
  const wire::View& view = editor->view();
  Clock all = std::numeric_limits<Clock>::max();
  bool any = false;
  for (const Worker& worker : workers) {
    if (worker.done) continue;
    const auto clock = arrived_.find(worker.incarnation);
    if (clock == arrived_.end()) return false;
    all = std::min(all, clock->second);
    any = true;
  }
  if (!any || all <= view.arrived()) return false;
  editor->SetArrived(all);
  return true;
}

bool ModeChanger::Enter(const std::vector<Worker>& workers, double seconds,
                        ViewEditor* editor, News* news) {
  const wire::View& view = editor->view();
  bool changed = false;
  while (!reports_.empty()) {
    const int next = view.entered() + 1;
    for (const Worker& worker : workers) {
      if (worker.done) continue;
      const auto index = entered_.find(worker.incarnation);
      if (index == entered_.end() || index->second < next) return changed;
    }
    run::ModeRecord record = RecordOf(next, seconds, view);
    news->log.push_back(absl::StrFormat(
        "the mode has changed from %s to %s at step %d: the workers stood "
        "still for at most %.1f ms, connecting %.1f ms and moving %d bytes "
        "%.1f ms of it",
        ModeText(record.from()), ModeText(record.to()), record.from_clock(),
        static_cast<double>(record.pause_micros()) / 1000,
        static_cast<double>(record.connect_micros()) / 1000, record.bytes(),
        static_cast<double>(record.transfer_micros()) / 1000));
    // That the values of a worker reach the others is no change that was asked
    // for, by a config or a user.
    if (reasons_.at(static_cast<size_t>(next)) != kInitialValues) ++changes_;
    if (last_changes_.size() == kLastChangesMax) last_changes_.pop_front();
    last_changes_.push_back(record);
    news->changes.push_back(std::move(record));
    reports_.erase(next);
    editor->SetEntered(next);
    changed = true;
  }
  return changed;
}

run::ModeRecord ModeChanger::RecordOf(int phase, double seconds,
                                      const wire::View& view) const {
  run::ModeRecord record;
  record.set_seconds(seconds);
  record.set_from_clock(view.phase(phase).from());
  *record.mutable_from() = view.phase(phase - 1).mode();
  *record.mutable_to() = view.phase(phase).mode();
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

absl::Status ModeChanger::MayMove(const wire::View& view,
                                  const std::vector<Worker>& workers) const {
  const int entered = view.entered();
  if (WorkersHaveModel(FirstStepOf(view.phase(entered)))) {
    return absl::FailedPreconditionError(
        "the workers hold the model while they all-reduce; shards can move "
        "once the mode has changed");
  }
  if (cut_.IsUnderWay()) return CheckpointUnderWay();
  if (agreement_.wish().has_value()) return MayChange(view, workers);
  if (entered == IndexOfLast(view)) return absl::OkStatus();
  // A scheduled phase may lie far ahead. How far the workers are is known with
  // some delay, so a move can still be under way when it begins.
  const wire::Phase& next = view.phase(entered + 1);
  const bool begun =
      reasons_.at(static_cast<size_t>(entered) + 1) != kSchedule ||
      !reports_.empty() ||
      std::any_of(workers.begin(), workers.end(), [&](const Worker& worker) {
        return worker.clock + kStepLimitAhead >= next.from();
      });
  return begun ? MayChange(view, workers) : absl::OkStatus();
}

std::string ModeChanger::WhyNoneJoins(const wire::View& view) {
  for (int i = view.entered(); i < view.phase_size(); ++i) {
    if (!WorkersHaveModel(FirstStepOf(view.phase(i)))) continue;
    const Clock end = EndOfPhase(view, i);
    if (end == EndOf(view))
      return view.arrived() < end ? "" : "the job is about to end";
    if (view.arrived() < end) continue;
    return absl::StrCat("the mode is just changing from ",
                        ModeText(view.phase(i).mode()), " to ",
                        ModeText(view.phase(i + 1).mode()));
  }
  return "";
}

// ---- For the next coordinator -----------------------------------------------

void ModeChanger::Keep(coordinator::ModesState* state) const {
  agreement_.Keep(state);
  cut_.Keep(state);
  end_.Keep(state);
  state->mutable_reason()->Add(reasons_.begin(), reasons_.end());
  state->mutable_arrived()->insert(arrived_.begin(), arrived_.end());
  state->mutable_entered()->insert(entered_.begin(), entered_.end());
  for (const auto& [phase, reports] : reports_) {
    for (const Report& report : reports) {
      coordinator::ModesState::Report& kept = *state->add_report();
      kept.set_phase(phase);
      kept.set_rank(report.rank);
      kept.set_incarnation(report.incarnation);
      *kept.mutable_entered() = report.entered;
    }
  }
  for (const run::ModeRecord& change : last_changes_)
    *state->add_last_change() = change;
  state->set_changes(changes_);
}

void ModeChanger::Load(const coordinator::ModesState& state) {
  agreement_.Load(state);
  cut_.Load(state);
  end_.Load(state);
  reasons_.assign(state.reason().begin(), state.reason().end());
  arrived_.insert(state.arrived().begin(), state.arrived().end());
  entered_.insert(state.entered().begin(), state.entered().end());
  for (const coordinator::ModesState::Report& report : state.report()) {
    reports_[report.phase()].push_back({.rank = report.rank(),
                                        .incarnation = report.incarnation(),
                                        .entered = report.entered()});
  }
  last_changes_.assign(state.last_change().begin(), state.last_change().end());
  changes_ = state.changes();
}

}  // namespace slackline
