#include "server/control/server_core.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"
#include "common/metrics/refusals.h"
#include "common/metrics/server_stats.h"

namespace slackline {
namespace {

bool Ended(const std::shared_ptr<const View>& view) {
  return view != nullptr && (view->proto().state() == wire::FINISHED ||
                             view->proto().state() == wire::FAILED);
}

// What the coordinator should not have to wait for.
bool SameHandOvers(const run::ServerStats& a, const run::ServerStats& b) {
  return std::equal(a.hand_over().begin(), a.hand_over().end(),
                    b.hand_over().begin(), b.hand_over().end(),
                    [](const auto& x, const auto& y) {
                      return x.move() == y.move() && x.shard() == y.shard() &&
                             x.state() == y.state();
                    });
}

}  // namespace

bool ServerCore::OwnsNothing() const {
  if (view() == nullptr || view()->proto().state() != wire::RUNNING)
    return false;
  const auto& moves = view()->proto().move();
  return std::none_of(
             moves.begin(), moves.end(),
             [&](const wire::Move& move) { return move.server() == self(); }) &&
         !view()->OwnsAny(self());
}

bool ServerCore::Draining() const {
  if (view() == nullptr) return false;
  const wire::ServerMember* const member = view()->FindServer(self());
  return member != nullptr && member->draining();
}

ServerCore::Candidacy ServerCore::CandidacyAt(absl::Time now) const {
  Candidacy candidacy{.run = member_.run()};
  if (ended_ || exit_.has_value()) return candidacy;
  if (member_.incarnation() == 0) {
    candidacy.may_host = options_.may_host_before_joining;
    return candidacy;
  }
  // While the job forms there is no view. The coordinator answers each
  // heartbeat.
  candidacy.may_host =
      !Ended(view()) && member_.Silence(now) > member_.lease() / 2;
  candidacy.leaves = Draining() || retires_.has_value();
  return candidacy;
}

bool ServerCore::AllHaveSeenTheLastView() const {
  return std::all_of(thread_stats_.begin(), thread_stats_.end(),
                     [&](const ThreadStats& thread) {
                       return thread.view_number >= view()->number();
                     });
}

void ServerCore::EndWith(End::Kind kind, absl::Status status,
                         Effects* effects) {
  if (ended_) return;
  ended_ = true;
  effects->end = {.kind = kind, .status = std::move(status)};
}

void ServerCore::Start(absl::Time now, Effects* effects) {
  MemberCore::Effects member;
  member_.Start(now, &member);
  Follow(&member, now, effects);
}

void ServerCore::OnMessage(const Message& message, absl::Time now,
                           Effects* effects) {
  if (ended_) return;
  FoldStats();  // A view is answered with a heartbeat.
  MemberCore::Effects member;
  member_.OnMessage(message, now, &member);
  Follow(&member, now, effects);
}

void ServerCore::OnLinks(const wire::LinksTried& tried, absl::Time now,
                         Effects* effects) {
  if (ended_) return;
  FoldStats();
  MemberCore::Effects member;
  member_.OnLinks(tried, now, &member);
  Follow(&member, now, effects);
}

void ServerCore::AnswerInspection(wire::Inspected inspected, Payload frame,
                                  absl::Time now, Effects* effects) {
  MemberCore::Effects member;
  member_.AnswerInspection(std::move(inspected), std::move(frame), now,
                           &member);
  std::move(member.sends.begin(), member.sends.end(),
            std::back_inserter(effects->sends));
}

void ServerCore::Follow(MemberCore::Effects* member, absl::Time now,
                        Effects* effects) {
  if (member->look_at.has_value()) effects->look_at = member->look_at;
  if (member->try_links.has_value())
    effects->try_links = std::move(member->try_links);
  std::move(member->inspections.begin(), member->inspections.end(),
            std::back_inserter(effects->inspections));
  std::move(member->sends.begin(), member->sends.end(),
            std::back_inserter(effects->sends));
  std::move(member->log.begin(), member->log.end(),
            std::back_inserter(effects->log));
  if (member->joined) effects->log.push_back("joined the job");
  if (member->view != nullptr) {
    effects->view = member->view;
    effects->log.push_back(
        absl::StrCat("view ", member->view->number(), ": ",
                     wire::JobState_Name(member->view->proto().state()), ", ",
                     member->view->workers().size(), " workers"));
    if (Ended(view())) {
      effects->ask_stats = true;
      last_stats_by_ = now + options_.last_stats_max;
    }
  }
  if (Ended(view())) return;  // Whatever else happens: that is the end.
  for (const MemberCore::CallResult& answer : member->answers) {
    if (answer.call_id == drain_call_) {
      drain_call_.reset();
      if (answer.reply.code() == wire::OK || exit_.has_value()) continue;
      effects->log.push_back(absl::StrCat("its shards cannot go elsewhere: ",
                                          answer.reply.error()));
      AskForSuspension(now, effects);
      continue;
    }
    if (answer.call_id != leave_call_) continue;
    leave_call_.reset();
    if (answer.reply.code() != wire::OK) {
      // It was given a shard after all, and will hear of it.
      refused_at_view_ = view() == nullptr ? 0 : view()->number();
      continue;
    }
    if (leaves_with_failure_)
      return EndWith(End::Kind::kGaveUp, exit_->status, effects);
    effects->log.push_back("this server has no shards and leaves the job");
    return EndWith(End::Kind::kLeft, absl::OkStatus(), effects);
  }
  if (member->fenced && leave_call_.has_value()) {
    // The coordinator let it go, and the answer was lost.
    if (leaves_with_failure_)
      return EndWith(End::Kind::kGaveUp, exit_->status, effects);
    return EndWith(End::Kind::kLeft, absl::OkStatus(), effects);
  }
  if (member->fenced) {
    return EndWith(End::Kind::kGaveUp,
                   GivenUpStatus(absl::StrCat(
                       "the coordinator gave this server up",
                       OwnsNothing() ? "" : ", and its shards with it", ": ",
                       member_.WhyFenced(now), "; started again, it joins anew",
                       " (exit code ", kExitGivenUp, ")")),
                   effects);
  }
  // Another process has been in its place until then, mostly: this one has
  // nothing to add, and ends as the job has.
  if (member->ended_before.has_value()) {
    const wire::JobEnd& end = *member->ended_before;
    effects->log.push_back(absl::StrCat(
        "the job had ended when this server came: ", end.reason()));
    return EndLike(end, effects);
  }
  if (!member->failure.ok())
    return EndWith(End::Kind::kGaveUp, member->failure, effects);
  LeaveIfDue(now, effects);
}

void ServerCore::LeaveIfDue(absl::Time now, Effects* effects) {
  if (ended_ || leave_call_.has_value() || asked_to_stop_ ||
      member_.incarnation() == 0) {
    return;
  }
  if (!exit_.has_value() && !Draining()) return;
  wire::Call call;
  const bool may_leave =
      OwnsNothing() && !hosts_coordinator_ &&
      (refused_at_view_ == 0 || view()->number() > refused_at_view_);
  if (exit_.has_value()) {
    const std::string reason(exit_->status.message());
    leaves_with_failure_ = exit_->failure || view() == nullptr;
    if (hosts_coordinator_) {
      call.mutable_stop()->set_reason(
          exit_->failure ? absl::StrCat("server ", self(), " failed: ", reason)
                         : reason);
    } else if (leaves_with_failure_) {
      call.mutable_leave()->set_failure(reason);
    } else if (may_leave) {
      call.mutable_leave();
    } else {
      call.mutable_stop()->set_reason(reason);
    }
  } else if (Draining() && may_leave && !view()->FollowsAny(self())) {
    leaves_with_failure_ = false;
    call.mutable_leave();
  } else {
    return;
  }
  MemberCore::Effects member;
  const bool stops = call.has_stop();
  const uint64_t id = member_.Call(std::move(call), Payload(), now, &member);
  if (stops) {
    asked_to_stop_ = true;
  } else {
    leave_call_ = id;
  }
  std::move(member.sends.begin(), member.sends.end(),
            std::back_inserter(effects->sends));
}

void ServerCore::Leave(Exit exit, absl::Time now, Effects* effects) {
  if (ended_ || Ended(view())) return;
  exit_ = std::move(exit);
  exit_->deadline = now + options_.leave_max;
  if (member_.incarnation() == 0)
    return EndWith(End::Kind::kGaveUp, exit_->status, effects);
  LeaveIfDue(now, effects);
}

void ServerCore::OnFailure(const absl::Status& failure, absl::Time now,
                           Effects* effects) {
  if (exit_.has_value()) return;
  effects->log.push_back(
      absl::StrCat("this server cannot go on: ", failure.message()));
  Leave({.status = failure, .failure = true, .deadline = {}}, now, effects);
}

void ServerCore::Retire(const std::string& reason, absl::Time now,
                        Effects* effects) {
  if (ended_ || Ended(view()) || exit_.has_value() || retires_.has_value())
    return;
  if (!member_.HearsCoordinator(now)) return Interrupt(reason, now, effects);
  retires_ = reason;
  if (hosts_coordinator_ || view() == nullptr)
    return AskForSuspension(now, effects);
  effects->log.push_back(absl::StrCat(
      reason,
      ": other servers are to take its shards, then it leaves the job; a "
      "second signal ends this process at once, and the job with it"));
  wire::Call call;
  call.mutable_drain()->set_server(self());
  MemberCore::Effects member;
  drain_call_ = member_.Call(std::move(call), Payload(), now, &member);
  std::move(member.sends.begin(), member.sends.end(),
            std::back_inserter(effects->sends));
}

void ServerCore::AskForSuspension(absl::Time now, Effects* effects) {
  asked_for_suspension_ = true;
  effects->log.push_back(SuspendingText(*retires_));
  MemberCore::Effects member;
  member_.Call(SuspendCall(*retires_), Payload(), now, &member);
  std::move(member.sends.begin(), member.sends.end(),
            std::back_inserter(effects->sends));
}

void ServerCore::Interrupt(const std::string& reason, absl::Time now,
                           Effects* effects) {
  if (exit_.has_value()) return;
  Leave({.status = absl::CancelledError(reason),
         .failure = false,
         .deadline = {}},
        now, effects);
}

void ServerCore::FoldStats() {
  if (!std::exchange(stats_new_, false)) return;
  auto folded = std::make_shared<run::ServerStats>();
  run::ServerStats& total = *folded;
  total.set_index(self());
  uint64_t seen_view = std::numeric_limits<uint64_t>::max();
  for (const ThreadStats& thread : thread_stats_) {
    FoldServerStats(thread.stats, &total);
    total.set_reached_clock(
        std::max(total.reached_clock(), thread.stats.reached_clock()));
    seen_view = std::min(seen_view, thread.view_number);
  }
  total.set_seen_view(seen_view);
  total.set_io_utilisation(io_utilisation_);
  FoldRefusals(coordinator_refused_, total.mutable_refused());
  member_.SetStats(total);
  stats_ = std::move(folded);
}

void ServerCore::OnStats(int thread, uint64_t view_number,
                         const run::ServerStats& stats, absl::Time now,
                         Effects* effects) {
  if (ended_) return;
  ThreadStats& last = thread_stats_[static_cast<size_t>(thread)];
  // The coordinator may have to act on either.
  const bool news = !SameHandOvers(stats, last.stats) ||
                    stats.nonfinite_size() != last.stats.nonfinite_size() ||
                    stats.oversized_size() != last.stats.oversized_size();
  last = {.stats = stats,
          .view_number = std::max(view_number, last.view_number)};
  stats_new_ = true;
  if (Ended(view())) {
    if (AllHaveSeenTheLastView()) EndWithTheJob(now, effects);
    return;
  }
  if (!news || member_.incarnation() == 0) return;
  FoldStats();
  MemberCore::Effects member;
  member_.SendHeartbeat(now, &member);
  Follow(&member, now, effects);
}

void ServerCore::OnCutPart(const wire::CutPart& part, absl::Time now,
                           Effects* effects) {
  if (ended_ || Ended(view()) || member_.incarnation() == 0) return;
  wire::Call call;
  *call.mutable_cut_part() = part;
  MemberCore::Effects member;
  member_.Call(std::move(call), Payload(), now, &member);
  std::move(member.sends.begin(), member.sends.end(),
            std::back_inserter(effects->sends));
}

void ServerCore::EndWithTheJob(absl::Time now, Effects* effects) {
  FoldStats();
  MemberCore::Effects last;
  member_.SendHeartbeat(now, &last);  // The coordinator waits for it.
  std::move(last.sends.begin(), last.sends.end(),
            std::back_inserter(effects->sends));
  if (view()->proto().state() == wire::FINISHED)
    return EndWith(End::Kind::kFinished, absl::OkStatus(), effects);
  EndWith(End::Kind::kFailed,
          exit_.has_value() && exit_->failure
              ? exit_->status
              : EndStatus(absl::StatusCode::kAborted, view()->proto().end()),
          effects);
}

void ServerCore::EndLike(const wire::JobEnd& end, Effects* effects) {
  if (IsFinished(end))
    return EndWith(End::Kind::kFinished, absl::OkStatus(), effects);
  EndWith(End::Kind::kFailed, EndStatus(absl::StatusCode::kAborted, end),
          effects);
}

void ServerCore::OnCoordinatorOver(const wire::JobEnd& end, Effects* effects) {
  if (ended_ || Ended(view())) return;
  effects->log.push_back(
      absl::StrCat("the coordinator in this process is over, and could not "
                   "tell this server that the job has ended: ",
                   end.reason()));
  EndLike(end, effects);
}

void ServerCore::OnTick(absl::Time now, Effects* effects) {
  if (ended_) return;
  if (Ended(view())) {
    if (now >= last_stats_by_) EndWithTheJob(now, effects);
    return;
  }
  if (member_.NextWakeup() <= now) FoldStats();
  MemberCore::Effects member;
  member_.OnTick(now, &member);
  Follow(&member, now, effects);
  if (ended_) return;
  if (exit_.has_value() && now >= exit_->deadline)
    return EndWith(End::Kind::kGaveUp, exit_->status, effects);
  // It was not to, but nobody else was there.
  if (retires_.has_value() && hosts_coordinator_ && !asked_for_suspension_ &&
      !exit_.has_value()) {
    AskForSuspension(now, effects);
  }
  if (now < next_stats_) return;
  effects->ask_stats = true;
  next_stats_ = now + options_.stats_interval;
}

absl::Time ServerCore::NextWakeup() const {
  if (ended_) return absl::InfiniteFuture();
  if (Ended(view())) return last_stats_by_;
  absl::Time next = std::min(member_.NextWakeup(), next_stats_);
  if (exit_.has_value()) next = std::min(next, exit_->deadline);
  return next;
}

}  // namespace slackline
