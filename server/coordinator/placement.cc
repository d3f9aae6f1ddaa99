#include "server/coordinator/placement.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "server/coordinator/job_end.h"

namespace slackline {

Placement::Placement(const Rebalancer::Options& options, int64_t shard_elements,
                     int host_server, Membership* members,
                     const ModeControl* modes, Copies* copies,
                     ViewEditor* editor)
    : options_(options),
      shard_elements_(shard_elements),
      host_server_(host_server),
      members_(members),
      modes_(modes),
      copies_(copies),
      editor_(editor),
      rebalancer_(options) {}

void Placement::OnStart(const JobStart& start, CoordinatorEffects*) {
  std::vector<Owner> threads;
  for (const auto& [index, server] : members_->servers()) {
    for (int t = 0; t < server->join.thread_size(); ++t)
      threads.push_back({index, t});
  }
  editor_->PlaceTables(start.tables, threads, shard_elements_);
  PutOffPlan(start.moment.now);
}

void Placement::KeepHost(CoordinatorEffects* effects) {
  const Member* const host = members_->FindServer(host_server_);
  if (host == nullptr || !host->draining || editor_->ended()) return;
  members_->SetDraining(*host, false);
  editor_->PutServer(ServerOf(*host));
  effects->log.push_back(absl::StrCat(
      Describe(*host),
      " was to be drained, and hosts the coordinator now: it stays"));
}

void Placement::PutOffPlan(absl::Time now) {
  next_plan_ = now + absl::Milliseconds(options_.config.interval_ms());
}

absl::Status Placement::MayMove() const {
  if (!editor_->running())
    return absl::FailedPreconditionError("the job does not run");
  if (options_.config.mode() == config::Rebalance::OFF) {
    return absl::FailedPreconditionError(
        "the config says rebalance { mode: OFF }; MANUAL allows it");
  }
  return modes_->MayMove();
}

bool Placement::Advance(const Moment&, CoordinatorEffects*) {
  if (!editor_->running() || !std::exchange(news_, false)) return false;
  if (MayMove().ok()) rebalancer_.Order(editor_);
  return false;  // What moves is waited for, and waits for nobody.
}

std::vector<Rebalancer::Server> Placement::Servers() const {
  std::vector<Rebalancer::Server> servers;
  for (const auto& [index, server] : members_->servers()) {
    servers.push_back({.index = index,
                       .threads = server->join.thread_size(),
                       .draining = server->draining,
                       .stats = &server->server});
  }
  return servers;
}

std::string Placement::WhyMustStay(const Member& server) const {
  const int32_t index = server.index();
  if (index == host_server_) {
    return absl::StrCat(Describe(server), " hosts the coordinator");
  }
  if (editor_->GetsShards(index) || editor_->OwnsShards(index)) {
    return absl::StrCat(Describe(server),
                        " still has shards, or is to get some");
  }
  // Who leaves of itself may: what it follows has its owner.
  if (server.draining && editor_->FollowsShards(index)) {
    return absl::StrCat(Describe(server),
                        " still has copies of shards, which are made elsewhere "
                        "first");
  }
  return "";
}

void Placement::OnGone(const GoneMember& gone, CoordinatorEffects* effects) {
  if (!editor_->running() || gone.member.worker_role()) return;
  rebalancer_.Forget(gone.member.index());
  news_ = true;
  // Loads have to be measured anew before they say anything.
  next_plan_ = std::max(
      next_plan_, gone.now + absl::Milliseconds(options_.config.interval_ms()));
  const auto& servers = members_->servers();
  if (std::all_of(servers.begin(), servers.end(),
                  [](const auto& entry) { return entry.second->draining; })) {
    effects->log.push_back(
        "no server is left that may take shards; those that are drained keep "
        "theirs until another one joins: slackline servers add");
  }
}

absl::StatusOr<run::Plan> Placement::OnCall(const wire::Call& call,
                                            absl::Time now,
                                            CoordinatorEffects* effects) {
  const auto refuse = [](const std::string& why) {
    return absl::FailedPreconditionError(why);
  };
  SL_RETURN_IF_ERROR(MayMove());
  const absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(editor_->view());
  SL_CHECK(view.ok(), view.status().ToString());  // We made it.
  absl::StatusOr<run::Plan> plan;
  bool adopt = true;
  const Member* drained = nullptr;
  if (call.has_rebalance()) {
    if (!rebalancer_.idle()) {
      return absl::UnavailableError(
          absl::StrCat(rebalancer_.Present().move_size(),
                       " moves are under way; try again when they are done"));
    }
    plan = rebalancer_.Plan(**view, Servers(), Rebalancer::Aim::kBalance, now);
    adopt = !call.rebalance().dry_run();
  } else if (call.has_move_shards()) {
    const wire::MoveShards& moves = call.move_shards();
    if (moves.shard_size() > (*view)->shard_count()) {
      return absl::InvalidArgumentError(
          absl::StrCat(moves.shard_size(), " shards are to move; the job has ",
                       (*view)->shard_count()));
    }
    plan = rebalancer_.PlanMoves(
        **view, Servers(),
        std::vector<int32_t>(moves.shard().begin(), moves.shard().end()),
        moves.server(), moves.thread());
  } else {
    const int32_t index = call.drain().server();
    drained = members_->FindServer(index);
    if (drained == nullptr) {
      return refuse(absl::StrCat("the job has no server ", index));
    }
    if (index == host_server_) {
      return refuse(absl::StrCat(
          "server ", index,
          " hosts the coordinator and has to stay; its shards can be moved: "
          "slackline move"));
    }
    const bool others =
        std::any_of(members_->servers().begin(), members_->servers().end(),
                    [&](const auto& entry) {
                      return !entry.second->draining && entry.second != drained;
                    });
    if (!others) return refuse("no other server is left to take the shards");
    std::vector<Rebalancer::Server> servers = Servers();
    for (Rebalancer::Server& server : servers)
      server.draining |= server.index == index;
    plan = rebalancer_.Plan(**view, servers, Rebalancer::Aim::kDrainOnly, now);
    if (plan.ok()) members_->SetDraining(*drained, true);
  }
  if (!plan.ok() || !adopt) return plan;
  effects->log.push_back(absl::StrCat(
      drained == nullptr ? ""
                         : absl::StrCat(Describe(*drained), " is drained: "),
      plan->summary()));
  if (drained != nullptr) editor_->PutServer(ServerOf(*drained));
  rebalancer_.Adopt(*plan, editor_);
  news_ = true;
  return plan;
}

void Placement::OnTime(const Moment& moment, CoordinatorEffects* effects) {
  const absl::Time now = moment.now;
  if (now < next_plan_) return;
  PutOffPlan(now);
  if (!MayMove().ok() || !rebalancer_.idle()) return;
  const bool draining = std::any_of(
      members_->servers().begin(), members_->servers().end(),
      [&](const auto& entry) {
        return entry.second->draining && editor_->OwnsShards(entry.first);
      });
  const bool balance =
      options_.config.mode() == config::Rebalance::AUTO || round_due_;
  if (!draining && !balance) return;
  const absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(editor_->view());
  SL_CHECK(view.ok(), view.status().ToString());  // We made it.
  const bool fill = round_due_ && AServerHasNothing();
  const Rebalancer::Aim aim = fill      ? Rebalancer::Aim::kFill
                              : balance ? Rebalancer::Aim::kBalance
                                        : Rebalancer::Aim::kDrainOnly;
  const absl::StatusOr<run::Plan> plan =
      rebalancer_.Plan(**view, Servers(), aim, now);
  if (!plan.ok()) return;
  if (plan->move_size() == 0 && plan->split_size() == 0) {
    round_due_ = fill;  // There may be no load just now.
    return;
  }
  round_due_ = false;
  effects->log.push_back(absl::StrCat("rebalancing: ", plan->summary()));
  rebalancer_.Adopt(*plan, editor_);
  news_ = true;
}

bool Placement::AServerHasNothing() const {
  return std::any_of(members_->servers().begin(), members_->servers().end(),
                     [&](const auto& entry) {
                       return !entry.second->draining &&
                              !editor_->OwnsShards(entry.first);
                     });
}

Placement::Arrivals Placement::OnServerStats(const Member& server,
                                             double seconds, absl::Time now,
                                             CoordinatorEffects* effects) {
  Arrivals arrivals;
  if (!editor_->running()) return arrivals;
  if (rebalancer_.ObserveDue(now)) rebalancer_.Observe(Servers(), now);
  for (const run::HandOverState& state : server.server.hand_over()) {
    // Only who is listed as the owner knows what becomes of a shard.
    if (!editor_->Owns(server.index(), state.shard())) continue;
    if (state.state() == run::HandOverState::LOST) {
      // Else an old story, or none.
      if (rebalancer_.WasCutShort(state))
        arrivals.lost = OnLost(server, state, effects);
      if (editor_->ended()) return arrivals;
      continue;
    }
    if (state.state() != run::HandOverState::DONE) continue;
    run::MoveRecord record;
    if (!rebalancer_.Done(state, seconds, now, editor_, &record)) continue;
    effects->log.push_back(absl::StrCat(
        "shard ", record.shard(), " (", record.name(),
        ") has moved from server ", record.from_server(), " to server ",
        record.to_server(), ": ", record.bytes(), " bytes in ",
        record.copy_micros() / 1000, " ms, not served for at most ",
        record.pause_micros(), " us"));
    copies_->NoteMoved(record.shard());
    effects->moves.push_back(std::move(record));
    arrivals.any = true;
  }
  if (arrivals.any) {
    news_ = true;
    // Loads have to be measured anew before they say anything.
    next_plan_ = std::max(
        next_plan_, now + absl::Milliseconds(options_.config.interval_ms()));
  }
  return arrivals;
}

std::string Placement::OnLost(const Member& source,
                              const run::HandOverState& state,
                              CoordinatorEffects* effects) {
  const std::string sentence = absl::StrCat(
      "server ", state.to_server(), ", to which shard ", state.shard(),
      " was just moving from server ", source.index(), ", has died");
  rebalancer_.ForgetShard(state.shard());
  news_ = true;
  if (const std::optional<int32_t> heir = copies_->Promote(state.shard())) {
    effects->warnings.push_back(
        absl::StrCat(sentence, "; the shard belongs now to server ", *heir,
                     ", which had a copy of it"));
    return sentence;
  }
  wire::JobEnd end =
      JobEndOf(wire::JobEnd::SHARD_LOST,
               absl::StrCat(sentence, ", and the shard is lost with it"));
  end.add_server(state.to_server());
  end.add_shard(state.shard());
  editor_->End(std::move(end));
  return sentence;
}

WakeUp Placement::NextWakeUp() const {
  if (!editor_->running()) return {};
  return {.at = next_plan_};
}

void Placement::Keep(absl::Time, KeptState* kept) {
  coordinator::MovesState state;
  rebalancer_.Keep(kept, &state);
  state.set_round_due(round_due_);
  kept->Put("moves", state);
}

absl::Status Placement::Load(const StateReader& reader, const Moment& moment,
                             CoordinatorEffects*) {
  if (editor_->view().phase_size() == 0) return absl::OkStatus();
  coordinator::MovesState state;
  SL_RETURN_IF_ERROR(reader.Read("moves", &state));
  round_due_ = state.round_due();
  news_ = true;
  PutOffPlan(moment.now);
  SL_RETURN_IF_ERROR(rebalancer_.Load(reader, state));
  if (!editor_->running() || rebalancer_.AreOrdered(editor_->view().move()))
    return absl::OkStatus();
  return reader.Broken("move/", "the view lists other moves");
}

void Placement::PutStatus(const StatusQuestion& question,
                          wire::StatusReply* status) const {
  *status->mutable_plan() = rebalancer_.Present();
  int64_t number = rebalancer_.shards_moved() -
                   static_cast<int64_t>(rebalancer_.last_moves().size());
  for (const run::MoveRecord& record : rebalancer_.last_moves()) {
    if (number++ >= question.moves_known) *status->add_moved() = record;
  }
  status->set_moves(rebalancer_.shards_moved());
}

void Placement::PutSummary(run::Summary* summary) const {
  summary->set_shards_moved(rebalancer_.shards_moved());
  summary->set_bytes_moved(rebalancer_.bytes_moved());
  *summary->mutable_move_pause_micros() = rebalancer_.PauseMicros();
}

}  // namespace slackline
