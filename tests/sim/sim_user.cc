#include "tests/sim/sim_user.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace slackline::sim {

void SimUser::Counts::Add(const Counts& other) {
  asked += other.asked;
  accepted += other.accepted;
  refused += other.refused;
  drains += other.drains;
  modes += other.modes;
  modes_refused += other.modes_refused;
  modes_after_moves += other.modes_after_moves;
  early_ends += other.early_ends;
  early_ends_refused += other.early_ends_refused;
  checkpoints += other.checkpoints;
  checkpoints_refused += other.checkpoints_refused;
  suspensions += other.suspensions;
}

SimUser::SimUser(SimContext* context,
                 std::function<bool(int32_t index)> add_server)
    : context_(context),
      add_server_(std::move(add_server)),
      self_{.kind = PeerId::Kind::kObserver, .index = 0, .instance = 1},
      rng_(Rng(context->scenario.seed).Fork("user")) {
  context_->network.Attach(
      self_, context_->scenario.UserNode(),
      [this](const PeerId&, const Message& message) { OnMessage(message); });
  for (const UserAction& action : context_->scenario.placement.user) {
    context_->queue.After(action.at,
                          lifetime_.Guard([this, action] { Begin(action); }));
  }
  if (!context_->scenario.checkpoints.late) return;
  context_->queue.After(context_->scenario.heal_at + absl::Milliseconds(1),
                        lifetime_.Guard([this] {
                          Begin({UserAction::Kind::kCheckpoint, {}});
                        }));
}

void SimUser::Begin(const UserAction& action) {
  wire::Call call;
  call.mutable_status();
  Ask(call, action);
}

void SimUser::Ask(const wire::Call& call, const UserAction& action,
                  bool while_moving) {
  const uint64_t id = next_call_id_++;
  pending_[id] = {.call = call, .action = action, .while_moving = while_moving};
  pending_[id].call.set_call_id(id);
  Send(id);
}

void SimUser::Send(uint64_t call_id) {
  const auto found = pending_.find(call_id);
  if (found == pending_.end()) return;
  Message message;
  *message.header.mutable_call() = found->second.call;
  // Wherever it may be.
  const Scenario& scenario = context_->scenario;
  const int hosts = scenario.takes_over ? scenario.servers : 1;
  for (int host = 0; host < hosts; ++host)
    context_->network.Send(self_, context_->CoordinatorAt(host), message);
  context_->queue.After(context_->scenario.lease / 2,
                        lifetime_.Guard([this, call_id] { Send(call_id); }));
}

void SimUser::OnMessage(const Message& message) {
  const wire::CallReply& reply = message.header.call_reply();
  const auto found = pending_.find(reply.call_id());
  if (found == pending_.end()) return;
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  if (pending.call.has_status()) return Decide(pending.action, reply.status());
  if (reply.code() == wire::OK) {
    ++counts_.accepted;
    counts_.modes += pending.call.has_set_mode();
    counts_.early_ends += pending.call.has_finish();
    counts_.checkpoints += pending.call.has_checkpoint();
    counts_.suspensions += pending.call.has_suspend();
    counts_.modes_after_moves +=
        pending.call.has_set_mode() && pending.while_moving;
    if (pending.call.has_drain()) {
      ++counts_.drains;
      drained_.insert(pending.call.drain().server());
    }
    return;
  }
  ++counts_.refused;
  counts_.modes_refused += pending.call.has_set_mode();
  counts_.early_ends_refused += pending.call.has_finish();
  const bool busy = reply.code() == wire::BUSY;
  if (pending.call.has_checkpoint() && !busy) {
    ++counts_.checkpoints_refused;
    context_->checker.OnCheckpointRefused(reply.error());
  }
  if ((!busy && reply.code() != wire::REJECTED) || reply.error().empty()) {
    context_->checker.Report(
        Invariant::kOutcome,
        absl::StrCat("a user was answered ", reply.ShortDebugString()));
  }
  if (!busy) return;
  context_->queue.After(
      context_->scenario.lease / 2,
      lifetime_.Guard([this, action = pending.action] { Begin(action); }));
}

void SimUser::Decide(const UserAction& action,
                     const wire::StatusReply& status) {
  const wire::View& view = status.view();
  if (view.state() == wire::FORMING) {
    context_->queue.After(context_->scenario.lease / 2,
                          lifetime_.Guard([this, action] { Begin(action); }));
    return;
  }
  if (view.state() != wire::RUNNING) return;
  ++counts_.asked;
  wire::Call call;
  // New servers are asked to take something more often.
  const auto any_server = [&]() -> const wire::ServerMember& {
    const int last = view.server_size() - 1;
    return view.server(rng_.Chance(0.4)
                           ? last
                           : static_cast<int>(rng_.Below(view.server_size())));
  };
  switch (action.kind) {
    case UserAction::Kind::kSetMode: {
      sync::Mode& mode = *call.mutable_set_mode()->mutable_mode();
      mode = Scenario::RandomMode(rng_);
      Rng varying = rng_.Fork("newer modes");
      context_->scenario.Vary(varying, &mode);
      break;
    }
    case UserAction::Kind::kAddServer:
      if (add_server_(status.next_server())) ++counts_.accepted;
      return;
    case UserAction::Kind::kCheckpoint:
      call.mutable_checkpoint();
      break;
    case UserAction::Kind::kSuspend:
      call.mutable_suspend()->set_reason("a user's time is over");
      break;
    case UserAction::Kind::kFinish:
      call.mutable_finish()->set_reason("a user has seen enough");
      break;
    case UserAction::Kind::kRebalance:
      call.mutable_rebalance()->set_dry_run(rng_.Chance(0.2));
      break;
    case UserAction::Kind::kDrain:
      call.mutable_drain()->set_server(any_server().index());
      break;
    case UserAction::Kind::kMove:
    case UserAction::Kind::kMoveAll: {
      const wire::ServerMember& server = any_server();
      wire::MoveShards& move = *call.mutable_move_shards();
      move.set_server(server.index());
      move.set_thread(rng_.Chance(0.3) ? -1
                                       : static_cast<int32_t>(
                                             rng_.Below(server.thread_size())));
      const int shards = view.owner_server_size();
      if (action.shard >= 0) {
        move.add_shard(std::min<int32_t>(action.shard, shards - 1));
        break;
      }
      if (action.kind == UserAction::Kind::kMove) {
        for (int64_t left = rng_.Between(1, 3); left > 0; --left)
          move.add_shard(static_cast<int32_t>(rng_.Below(shards)));
        break;
      }
      const int32_t from = any_server().index();
      for (int32_t id = 0; id < shards; ++id) {
        if (view.owner_server(id) == from) move.add_shard(id);
      }
    }
  }
  Ask(call, action, view.move_size() > 0);
}

}  // namespace slackline::sim
