#include "server/coordinator/checkpointer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/kept_file.h"
#include "common/checkpoint/manifest.h"
#include "common/shortened.h"
#include "common/some_names.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

constexpr size_t kStateNameBytesMax = 256;
constexpr size_t kErrorBytesMax = 1024;
constexpr int64_t kPartBytesMax = int64_t{1} << 60;
// A disk that has not completed a checkpoint for so long is said to hang, and
// again whenever it has taken twice as long.
constexpr absl::Duration kHungAfter = absl::Seconds(10);
constexpr char kCoordinatorLost[] =
    "the coordinator was started again meanwhile";

std::string SizeText(int64_t bytes) {
  const double size = static_cast<double>(bytes);
  if (bytes >= 1000 * 1000) return absl::StrFormat("%.1f MB", size / 1e6);
  return absl::StrFormat("%.1f kB", size / 1e3);
}

// A file in the checkpoint's own folder, and none that is there for another
// reason.
bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= kStateNameBytesMax && name[0] != '.' &&
         name != "manifest.json" &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return c > ' ' && c < 0x7f && c != '/' && c != '\\';
         });
}

// How many shards each thread owns.
std::map<Owner, int32_t> ShardCounts(const wire::View& view) {
  std::map<Owner, int32_t> counts;
  for (int i = 0; i < view.owner_server_size(); ++i)
    ++counts[{.server = view.owner_server(i), .thread = view.owner_thread(i)}];
  return counts;
}

// Of steps, as the config says it.
Clock StrideOf(const config::Checkpoint& config, const wire::View& view) {
  Clock stride = 0;
  if (config.has_every_steps()) stride = config.every_steps();
  if (config.has_every_epochs()) {
    const double steps =
        config.every_epochs() * static_cast<double>(view.steps_per_epoch());
    const Clock of_epochs =
        std::max<Clock>(1, std::llround(std::min(steps, 1e15)));
    stride = stride == 0 ? of_epochs : std::min(stride, of_epochs);
  }
  return stride;
}

}  // namespace

Checkpointer::Checkpointer(Options options, const Membership* members,
                           const JobOutcome* outcome, ModeControl* modes,
                           ViewEditor* editor)
    : options_(std::move(options)),
      members_(members),
      outcome_(outcome),
      modes_(modes),
      editor_(editor),
      best_(options_.config, !options_.root.empty(), options_.best) {}

// ---- When one is taken ------------------------------------------------------

absl::Status Checkpointer::MayBegin() const {
  if (!editor_->running())
    return absl::FailedPreconditionError("the job does not run");
  if (options_.root.empty()) {
    return absl::FailedPreconditionError(
        "there is no folder for checkpoints: start the job with --out, or set "
        "checkpoint { folder: ... }");
  }
  return modes_->MayCut();
}

void Checkpointer::OnGone(const GoneMember& gone, CoordinatorEffects*) {
  if (!editor_->running()) return;
  news_ = true;
  const Member& member = gone.member;
  if (!member.worker_role() && editor_->OwnsShards(member.index()))
    OnServerLost(gone.sentence);
}

void Checkpointer::OnRunning(const Moment& moment,
                             CoordinatorEffects* effects) {
  const config::Checkpoint& config = options_.config;
  stride_ = StrideOf(config, editor_->view());
  if (stride_ == 0 && !config.has_every_seconds() && !config.has_best_by())
    return;
  if (options_.root.empty() || editor_->view().elastic()) {
    stride_ = 0;
    best_.Stop();
    effects->warnings.push_back(
        absl::StrCat("no checkpoints are taken, which the config asks for: ",
                     MayBegin().message()));
    return;
  }
  Schedule(editor_->view().begins_at(), moment.now);
}

void Checkpointer::Schedule(Clock clock, absl::Time now) {
  // At multiples, so that what one takes does not put off the next.
  if (stride_ > 0) due_clock_ = (clock / stride_ + 1) * stride_;
  const config::Checkpoint& config = options_.config;
  if (config.has_every_seconds())
    due_time_ = now + absl::Seconds(config.every_seconds());
}

void Checkpointer::OnWorker(const Member& worker) {
  const Clock clock = worker.worker.clock();
  if (clock >= due_clock_) came_ = true;
  if (state_ != State::kCollecting) return;
  if (clock < CutOf(worker.index())) comes_nearer_ = true;
  if (worker.trained && kept_.count(worker.index()) > 0) news_ = true;
}

Clock Checkpointer::CutOf(int32_t rank) const {
  if (manifest_.worker_size() == 0) return manifest_.clock();
  for (const checkpoint::WorkerClock& worker : manifest_.worker()) {
    if (worker.rank() == rank) return worker.clock();
  }
  return 0;
}

bool Checkpointer::AllHaveComeTo(Clock clock) {
  const auto before = [&](const Member& worker) {
    return !worker.done && worker.worker.clock() < clock;
  };
  const auto& workers = members_->workers();
  const auto laggard = workers.find(laggard_);
  if (laggard != workers.end() && before(*laggard->second)) return false;
  bool any = false;
  for (const auto& [rank, worker] : workers) {
    if (before(*worker)) {
      laggard_ = rank;
      return false;
    }
    any |= !worker->done;
  }
  return any;
}

std::string Checkpointer::WhyDue(absl::Time now) {
  if (!callers_.empty()) return "asked for by a user";
  if (now < rests_until_) return "";
  if (std::string why = best_.WhyDue(now); !why.empty()) return why;
  if (now >= due_time_) {
    return absl::StrCat("due every ", options_.config.every_seconds(), " s");
  }
  if (std::exchange(came_, false)) {
    if (AllHaveComeTo(due_clock_)) {
      return absl::StrCat("due every ", stride_,
                          stride_ == 1 ? " step" : " steps");
    }
    came_ = true;  // The others may be heard any time.
  }
  return "";
}

void Checkpointer::BeginIfDue(absl::Time now) {
  const std::string why = WhyDue(now);
  if (why.empty()) return;
  Clock slowest = EndOf(editor_->view());
  for (const auto& [rank, worker] : members_->workers()) {
    if (!worker->done)
      slowest = std::min<Clock>(slowest, worker->worker.clock());
  }
  came_ = false;
  best_.ClearDue();
  if (const absl::Status may = MayBegin(); !may.ok()) {
    Schedule(slowest, now);
    return AnswerAll(cut_ + 1, may);
  }
  Schedule(slowest, now);
  modes_->WantCut(why);
  wanted_at_ = now;
  state_ = State::kWanted;
}

absl::Status Checkpointer::Ask(const Caller& caller) {
  for (const Waiting& waiting : callers_) {
    if (waiting.caller == caller) return absl::OkStatus();  // Repeated.
  }
  if (const absl::Status may = MayBegin(); !may.ok()) return may;
  if (callers_.size() >= kCallersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(callers_.size(), " calls wait for a checkpoint already"));
  }
  callers_.push_back(
      {.caller = caller, .cut = editor_->view().cut().number() + 1});
  return absl::OkStatus();
}

WakeUp Checkpointer::NextWakeUp() const {
  if (!editor_->running()) return {};
  return {.at = NextDue(), .awake = NextDueAwake()};
}

absl::Time Checkpointer::NextDue() const {
  if (state_ != State::kIdle) return absl::InfiniteFuture();
  if (rests_until_ != absl::InfinitePast()) return rests_until_;
  return std::min(due_time_, best_.NextDue());
}

absl::Time Checkpointer::GivesUpAt() const {
  return state_ == State::kCollecting ? heard_ + options_.part_timeout
                                      : absl::InfiniteFuture();
}

absl::Time Checkpointer::NextDueAwake() const {
  return state_ == State::kCompleting ? completing_since_ + say_hung_after_
                                      : GivesUpAt();
}

Clock Checkpointer::LastClock() const {
  return completed_ > 0 ? last_.clock() : -1;
}

void Checkpointer::OnEvaluation(const run::MetricRecord& evaluation,
                                CoordinatorEffects* effects) {
  const bool comes =
      state_ == State::kCollecting || state_ == State::kCompleting;
  best_.OnEvaluation(
      evaluation,
      comes ? std::max<Clock>(manifest_.clock(), LastClock()) : LastClock(),
      effects);
}

void Checkpointer::OnBest(const run::BestCheckpoint& best,
                          CoordinatorEffects* effects) {
  best_.OnBest(best, effects);
}

// ---- Its parts --------------------------------------------------------------

void Checkpointer::FollowCut(double seconds, absl::Time awake_now) {
  if (state_ != State::kWanted) return;
  const wire::View& view = editor_->view();
  if (const std::string dropped = modes_->TakeCutDropped(); !dropped.empty()) {
    state_ = State::kIdle;
    return AnswerAll(cut_ + 1, absl::OutOfRangeError(absl::StrCat(
                                   "no checkpoint was taken: ", dropped)));
  }
  const wire::Cut& cut = view.cut();
  if (cut.number() == cut_) return;
  cut_ = cut.number();
  state_ = State::kCollecting;
  heard_ = awake_now;
  failure_ = absl::OkStatus();
  manifest_ = options_.manifest;
  manifest_.set_data(outcome_->data());
  manifest_.set_data_hash(outcome_->data_hash());
  manifest_.set_steps_total(view.steps_total());
  manifest_.set_steps_per_epoch(view.steps_per_epoch());
  manifest_.set_seconds(seconds);
  manifest_.set_clock(cut.clock());
  for (const wire::Cut::Until& until : cut.until()) {
    checkpoint::WorkerClock& worker = *manifest_.add_worker();
    worker.set_rank(until.rank());
    worker.set_clock(until.clock());
    if (manifest_.worker_size() == 1 || until.clock() < manifest_.clock())
      manifest_.set_clock(until.clock());
  }
  modes_->PutDelays(&manifest_);
  for (const wire::Table& table : view.table()) {
    checkpoint::Table& kept = *manifest_.add_table();
    kept.set_name(table.name());
    *kept.mutable_shape() = table.shape();
    *kept.mutable_optimizer() = table.optimizer();
  }
  best_.OnCut(manifest_.clock());
  ExpectParts();
  if (stride_ == 0) return;
  // It is later than the workers were when it was wanted.
  due_clock_ =
      std::max(due_clock_, (manifest_.clock() / stride_ + 1) * stride_);
}

void Checkpointer::ExpectParts() {
  const wire::View& view = editor_->view();
  parts_.clear();
  kept_.clear();
  for (const wire::WorkerMember& worker : view.worker()) {
    // Of one that has no step left there is nothing to go on with, and its
    // program may take its time before it could say more.
    const Member* const member = members_->Find(worker.incarnation());
    if (worker.keeps_state() && member != nullptr && !member->trained)
      kept_[worker.rank()] = {.incarnation = worker.incarnation()};
  }
  if (view.cut().by_worker()) {
    if (view.worker_size() == 0) return;
    const wire::WorkerMember& chief = view.worker(0);
    parts_[{chief.rank(), 0}] = {.incarnation = chief.incarnation(),
                                 .shards = view.owner_server_size()};
    return;
  }
  const std::map<Owner, int32_t> counts = ShardCounts(view);
  for (const wire::ServerMember& server : view.server()) {
    for (int32_t thread = 0; thread < server.thread_size(); ++thread) {
      const auto count =
          counts.find({.server = server.index(), .thread = thread});
      parts_[{server.index(), thread}] = {
          .incarnation = server.incarnation(),
          .shards = count == counts.end() ? 0 : count->second};
    }
  }
}

std::string Checkpointer::WhyUnfit(const Part& expected,
                                   const checkpoint::Part& part) const {
  if (part.shards() != expected.shards) {
    return absl::StrCat("has ", part.shards(), " shards in its part, where ",
                        expected.shards, " are its");
  }
  if (part.shards() == 0) return "";  // Without a file.
  if (part.bytes() < 1 || part.bytes() > kPartBytesMax) {
    return absl::StrCat("has a part of ", part.bytes(), " bytes");
  }
  if (!IsFileName(part.file())) return "has a part with a wrong file name";
  if (IsTaken(part.file()))
    return "has a part with the file name of another one";
  return "";
}

std::string Checkpointer::WhyUnfit(const Member& member,
                                   const checkpoint::Kept& kept) const {
  if (kept.rank() != member.index())
    return absl::StrCat("has the state of worker ", kept.rank());
  if (kept.bytes() < 0 || kept.bytes() > kKeptBytesMax ||
      (kept.bytes() > 0 && kept.file().empty())) {
    return absl::StrCat("has ", kept.bytes(),
                        " bytes of its program's state; 0 to ", kKeptBytesMax,
                        " are allowed, and 0 without a file");
  }
  const checkpoint::Part& residuals = kept.residuals();
  if (kept.has_residuals() &&
      (residuals.shards() < 1 ||
       residuals.shards() > editor_->view().table_size() ||
       residuals.bytes() < 1 || residuals.bytes() > kPartBytesMax)) {
    return absl::StrCat("has residuals of ", residuals.shards(), " tables in ",
                        residuals.bytes(), " bytes");
  }
  std::vector<std::string> files;
  if (!kept.file().empty()) files.push_back(kept.file());
  if (kept.has_residuals()) files.push_back(residuals.file());
  for (const std::string& file : files) {
    if (!IsFileName(file)) return "has its state under a wrong file name";
    if (IsTaken(file))
      return "has its state under the file name of another one";
  }
  if (files.size() == 2 && files[0] == files[1])
    return "has two states under one file name";
  return "";
}

bool Checkpointer::IsTaken(const std::string& file) const {
  const auto has_it = [&](const auto& entry) {
    return entry.second.here && entry.second.part.file() == file;
  };
  const auto keeps_it = [&](const auto& entry) {
    return entry.second.here && (entry.second.kept.file() == file ||
                                 entry.second.kept.residuals().file() == file);
  };
  return std::any_of(parts_.begin(), parts_.end(), has_it) ||
         std::any_of(kept_.begin(), kept_.end(), keeps_it);
}

void Checkpointer::OnPart(const Member& member, const wire::CutPart& part,
                          absl::Time awake_now) {
  if (state_ != State::kCollecting || part.cut() != cut_) return;
  if (part.has_kept() || part.has_kept_error())
    return OnKept(member, part, awake_now);
  const auto found = parts_.find({member.index(), part.thread()});
  if (found == parts_.end()) return;
  Part& expected = found->second;
  if (expected.here || expected.incarnation != member.incarnation) return;
  news_ = true;
  if (!part.has_part()) {
    failure_ = absl::AbortedError(absl::StrCat(
        Describe(member), " could not write its part: ",
        part.error().empty() ? "without a reason"
                             : Shortened(part.error(), kErrorBytesMax)));
    return;
  }
  if (const std::string unfit = WhyUnfit(expected, part.part());
      !unfit.empty()) {
    failure_ = absl::AbortedError(absl::StrCat(Describe(member), " ", unfit));
    return;
  }
  expected.here = true;
  expected.part = part.part();
  expected.part.DiscardUnknownFields();
  heard_ = awake_now;
}

void Checkpointer::OnServerLost(const std::string& sentence) {
  if (state_ != State::kCollecting || editor_->view().cut().by_worker()) return;
  failure_ = absl::UnavailableError(sentence);
  news_ = true;
}

void Checkpointer::OnKept(const Member& member, const wire::CutPart& part,
                          absl::Time awake_now) {
  if (!member.worker_role()) return;
  const auto found = kept_.find(member.index());
  if (found == kept_.end()) return;
  Kept& expected = found->second;
  if (expected.here || expected.incarnation != member.incarnation) return;
  news_ = true;
  if (!part.has_kept()) {
    failure_ = absl::AbortedError(
        absl::StrCat(Describe(member), " could not keep its state: ",
                     part.kept_error().empty()
                         ? "without a reason"
                         : Shortened(part.kept_error(), kErrorBytesMax)));
    return;
  }
  if (const std::string unfit = WhyUnfit(member, part.kept()); !unfit.empty()) {
    failure_ = absl::AbortedError(absl::StrCat(Describe(member), " ", unfit));
    return;
  }
  expected.here = true;
  expected.kept = part.kept();
  expected.kept.DiscardUnknownFields();
  heard_ = awake_now;
}

std::vector<std::string> Checkpointer::Missing() const {
  const bool by_worker = editor_->view().cut().by_worker();
  std::vector<std::string> names;
  for (const auto& [key, part] : parts_) {
    if (part.here) continue;
    names.push_back(by_worker ? absl::StrCat("worker ", key.first)
                              : absl::StrCat("server ", key.first, ", thread ",
                                             key.second));
  }
  for (const auto& [rank, kept] : kept_) {
    if (!kept.here) names.push_back(absl::StrCat("the state of worker ", rank));
  }
  return names;
}

std::string Checkpointer::WhyNoneComes(absl::Time awake_now) {
  if (!failure_.ok()) return std::string(failure_.message());
  const wire::View& view = editor_->view();
  if (view.cut().by_worker()) {
    if (parts_.empty()) return "there is no worker that could write it";
    const auto& [key, part] = *parts_.begin();
    if (!part.here && (view.worker_size() == 0 ||
                       view.worker(0).incarnation() != part.incarnation)) {
      return absl::StrCat("worker ", key.first,
                          ", which was to write it, is gone, or is no longer "
                          "the one of the lowest rank");
    }
  } else {
    // A server that goes has no shards here, and so nothing to give: no shard
    // moves meanwhile, and one with shards is a failure.
    std::erase_if(parts_, [&](const auto& entry) {
      const auto& servers = members_->servers();
      const auto server = servers.find(entry.first.first);
      return !entry.second.here && entry.second.shards == 0 &&
             (server == servers.end() ||
              server->second->incarnation != entry.second.incarnation);
    });
  }
  // Of who is gone nothing comes any more. Where the cut of a worker is at its
  // last step, its program is asked only when it asks what comes next.
  std::erase_if(kept_, [&](const auto& entry) {
    const Member* const worker = members_->Find(entry.second.incarnation);
    return !entry.second.here &&
           (worker == nullptr ||
            (worker->trained && CutOf(entry.first) >= EndOf(view)));
  });
  const std::vector<std::string> missing = Missing();
  if (awake_now < GivesUpAt() || missing.empty()) return "";
  return absl::StrCat(
      "no part has come for ", absl::ToInt64Seconds(options_.part_timeout),
      " s; what is missing is that of ", SomeNames(missing),
      ": look at the logs there, or raise limits { save_timeout_ms: ... }");
}

bool Checkpointer::Advance(const Moment& moment, CoordinatorEffects* effects) {
  if (!editor_->running()) return false;
  const size_t answers = answers_.size();
  const bool done = AdvancePresent(moment.now, moment.awake, effects);
  FollowCut(moment.seconds, moment.awake);
  // The Suspension, which comes before this part, takes its answer in this
  // event: what is left at the end of it, users are sent.
  return done || answers_.size() > answers;
}

bool Checkpointer::AdvancePresent(absl::Time now, absl::Time awake_now,
                                  CoordinatorEffects* effects) {
  bool done = false;
  if (std::exchange(comes_nearer_, false)) heard_ = awake_now;
  if (state_ == State::kCollecting &&
      (std::exchange(news_, false) || awake_now >= GivesUpAt())) {
    if (const std::string why = WhyNoneComes(awake_now); !why.empty()) {
      effects->warnings.push_back(GiveUp(why, effects));
      best_.OnFailed(LastClock(), now);
      done = true;
    } else if (Missing().empty()) {
      Complete(awake_now, effects);
      done = true;
    }
  }
  if (state_ == State::kCompleting && awake_now >= NextDueAwake()) {
    effects->warnings.push_back(absl::StrCat(
        "the checkpoint of ", HungText(awake_now),
        "; training goes on, but no other checkpoint is taken until it does: "
        "look at that disk, and at the kernel log of this host"));
    say_hung_after_ = 2 * (awake_now - completing_since_);
  }
  if (done) rests_until_ = now + (now - wanted_at_);
  if (now >= rests_until_) rests_until_ = absl::InfinitePast();
  if (state_ == State::kIdle) BeginIfDue(now);
  return done;
}

// ---- How it ends ------------------------------------------------------------

std::string Checkpointer::HungText(absl::Time awake_now) const {
  return absl::StrCat("step ", manifest_.clock(),
                      ": all parts are written; its folder in ", options_.root,
                      " has waited ",
                      absl::ToInt64Seconds(awake_now - completing_since_),
                      " s for its name, as the disk there does not answer");
}

void Checkpointer::Complete(absl::Time awake_now, CoordinatorEffects* effects) {
  for (const auto& [key, part] : parts_) {
    if (part.part.shards() > 0) *manifest_.add_part() = part.part;
  }
  for (const auto& [rank, kept] : kept_) {
    if (!kept.kept.file().empty() || kept.kept.has_residuals())
      *manifest_.add_kept() = kept.kept;
  }
  parts_.clear();
  kept_.clear();
  state_ = State::kCompleting;
  completing_since_ = awake_now;
  say_hung_after_ = kHungAfter;
  effects->complete = {.cut = cut_, .manifest = manifest_};
  modes_->CutDone();
}

std::string Checkpointer::GiveUp(const std::string& why,
                                 CoordinatorEffects* effects) {
  ++failed_;
  std::string text = absl::StrCat("the checkpoint of step ", manifest_.clock(),
                                  " was given up: ", why);
  last_failure_ = text;
  effects->give_up = cut_;
  parts_.clear();
  kept_.clear();
  state_ = State::kIdle;
  AnswerAll(cut_, absl::IsUnavailable(failure_) ? absl::UnavailableError(text)
                                                : absl::AbortedError(text));
  modes_->CutDone();
  return text;
}

void Checkpointer::OnCompleted(int32_t cut,
                               const absl::StatusOr<std::string>& folder,
                               absl::Time now, CoordinatorEffects* effects) {
  if (state_ != State::kCompleting || cut != cut_) return;
  if (!folder.ok()) {
    effects->warnings.push_back(
        GiveUp(std::string(folder.status().message()), effects));
    return best_.OnFailed(LastClock(), now);
  }
  state_ = State::kIdle;
  ++completed_;
  last_failure_.clear();
  last_.set_folder(*folder);
  last_.set_clock(manifest_.clock());
  last_.set_bytes(BytesOf(manifest_));
  last_.set_seconds(manifest_.seconds());
  last_.set_took_seconds(absl::ToDoubleSeconds(now - wanted_at_));
  const std::string text = absl::StrCat(
      "step ", last_.clock(), " is in ", *folder, " (", SizeText(last_.bytes()),
      absl::StrFormat(", after %.2f s)", last_.took_seconds()));
  effects->log.push_back(absl::StrCat("checkpoint: ", text));
  AnswerAll(cut_, text);
}

void Checkpointer::OnEnded(const Moment&, CoordinatorEffects* effects) {
  const std::string why = "the job has ended before it was there";
  if (state_ == State::kCollecting)
    effects->log.push_back(GiveUp(why, effects));
  if (state_ == State::kWanted) state_ = State::kIdle;
  // The one that the driver completes answers those who wait for it.
  const int32_t last = state_ == State::kCompleting ? cut_ : 0;
  for (const Waiting& waiting : callers_) {
    if (waiting.cut <= last) continue;
    answers_.push_back({.to = waiting.caller,
                        .text = absl::AbortedError(
                            absl::StrCat("no checkpoint was taken: ", why))});
  }
  std::erase_if(callers_,
                [&](const Waiting& waiting) { return waiting.cut > last; });
}

void Checkpointer::AnswerAll(int32_t cut,
                             const absl::StatusOr<std::string>& text) {
  std::erase_if(callers_, [&](const Waiting& waiting) {
    if (waiting.cut > cut) return false;
    answers_.push_back({.to = waiting.caller, .text = text});
    return true;
  });
}

std::optional<absl::StatusOr<std::string>> Checkpointer::TakeAnswerTo(
    const Caller& caller) {
  const auto answer =
      std::find_if(answers_.begin(), answers_.end(),
                   [&](const Answer& waiting) { return waiting.to == caller; });
  if (answer == answers_.end()) return std::nullopt;
  absl::StatusOr<std::string> text = std::move(answer->text);
  answers_.erase(answer);
  return text;
}

// ---- For the next coordinator -----------------------------------------------

void Checkpointer::Keep(absl::Time, KeptState* kept) {
  coordinator::CheckpointsState state;
  state.set_under_way(state_ != State::kIdle);
  state.set_has_clocks(state_ == State::kCollecting ||
                       state_ == State::kCompleting);
  state.set_cut(cut_);
  state.set_clock(manifest_.clock());
  state.set_due_clock(due_clock_);
  best_.Keep(&state);
  *state.mutable_last() = last_;
  state.set_completed(completed_);
  state.set_failed(failed_);
  state.set_last_failure(last_failure_);
  kept->Put("checkpoints", state);
}

absl::Status Checkpointer::Load(const StateReader& reader, const Moment& moment,
                                CoordinatorEffects*) {
  if (editor_->view().phase_size() == 0) return absl::OkStatus();
  coordinator::CheckpointsState state;
  SL_RETURN_IF_ERROR(reader.Read("checkpoints", &state));
  if (state.under_way()) {
    state_ = state.has_clocks() ? State::kCollecting : State::kWanted;
    wanted_at_ = moment.now;
  }
  if (state.has_clocks()) {
    failure_ = absl::UnavailableError(kCoordinatorLost);
    news_ = true;
  }
  cut_ = state.cut();
  manifest_.set_clock(state.clock());
  stride_ = StrideOf(options_.config, editor_->view());
  if (options_.root.empty() || editor_->view().elastic()) {
    stride_ = 0;
  } else {
    Schedule(0, moment.now);
  }
  due_clock_ = state.due_clock();
  came_ = true;  // Somebody may have.
  best_.Load(state);
  last_ = state.last();
  completed_ = state.completed();
  failed_ = state.failed();
  last_failure_ = state.last_failure();
  return absl::OkStatus();
}

absl::Status Checkpointer::CheckLoaded(const StateReader& reader) const {
  if (editor_->running() &&
      (modes_->WaitsForCut() != (state_ == State::kWanted) ||
       (modes_->IsCutting() && state_ == State::kIdle))) {
    return reader.Broken("checkpoints", "they do not fit the cut under way");
  }
  return absl::OkStatus();
}

// ---- Reports ----------------------------------------------------------------

void Checkpointer::PutStatus(const StatusQuestion& question,
                             wire::StatusReply* status) const {
  if (completed_ > 0) *status->mutable_last_checkpoint() = last_;
  if (best_.checkpoint() != nullptr)
    *status->mutable_best_checkpoint() = *best_.checkpoint();
  status->set_checkpoint_failed(last_failure_);
  switch (state_) {
    case State::kIdle:
      return;
    case State::kWanted:
      return status->set_checkpoint(
          editor_->view().change().has_cutting()
              ? "the workers agree on its steps"
              : "it waits until shards that move have come, or the mode has "
                "changed");
    case State::kCollecting: {
      const std::vector<std::string> missing = Missing();
      const size_t all = parts_.size() + kept_.size();
      return status->set_checkpoint(absl::StrCat(
          "step ", manifest_.clock(), ": ", all - missing.size(), " of ", all,
          " parts are written; ", SomeNames(missing), " to come"));
    }
    case State::kCompleting:
      if (question.moment.awake - completing_since_ >= kHungAfter)
        return status->set_checkpoint(HungText(question.moment.awake));
      return status->set_checkpoint(
          absl::StrCat("step ", manifest_.clock(),
                       ": all parts are written; its folder gets its name"));
  }
}

void Checkpointer::PutSummary(run::Summary* summary) const {
  if (completed_ > 0) *summary->mutable_last_checkpoint() = last_;
  if (best_.checkpoint() != nullptr)
    *summary->mutable_best_checkpoint() = *best_.checkpoint();
  summary->set_checkpoints(completed_);
  summary->set_checkpoints_failed(failed_);
}

}  // namespace slackline
