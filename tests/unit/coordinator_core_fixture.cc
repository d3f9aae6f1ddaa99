#include "tests/unit/coordinator_core_fixture.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {

wire::JoinRequest CoordinatorCoreTest::JoinOf(const PeerId& peer) {
  wire::JoinRequest join;
  const bool worker = peer.kind == PeerId::Kind::kWorker;
  join.set_role(worker ? wire::JoinRequest::WORKER : wire::JoinRequest::SERVER);
  join.set_index(peer.index);
  join.set_token(peer.instance);
  join.set_job("job");
  join.set_config_hash("hash");
  join.set_host("somewhere");
  join.set_pid(4000 + static_cast<int64_t>(peer.instance));
  if (worker) {
    wire::Table& table = *join.add_table();
    table.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
    table.set_name("weight");
    table.add_shape(10);
    join.set_steps_total(steps_total_);
    join.set_steps_per_epoch(steps_total_);
  } else {
    join.add_thread()->add_endpoint("tcp://somewhere:1");
  }
  return join;
}

wire::JoinReply CoordinatorCoreTest::Join(const PeerId& from,
                                          const wire::JoinRequest& join) {
  const CoordinatorCore::Effects effects = SendJoin(from, join);
  for (const Outgoing& out : effects.sends) {
    if (out.message.header.has_join_reply())
      return out.message.header.join_reply();
  }
  ADD_FAILURE() << "no reply to a join";
  return wire::JoinReply();
}

void CoordinatorCoreTest::StartJob() {
  for (int i = 0; i < options_.servers; ++i)
    servers_.push_back(Join(Server(i)).incarnation());
  for (int i = 0; i < options_.workers; ++i)
    workers_.push_back(Join(Worker(i)).incarnation());
  ASSERT_EQ(core_->state(), wire::RUNNING);
}

CoordinatorCore::Effects CoordinatorCoreTest::Pass(absl::Duration time,
                                                   std::vector<PeerId> silent) {
  CoordinatorCore::Effects effects;
  for (absl::Time end = now_ + time; now_ < end;) {
    now_ += absl::Seconds(1);
    const auto beat = [&](const PeerId& peer, Incarnation incarnation) {
      if (std::find(silent.begin(), silent.end(), peer) == silent.end()) {
        Heartbeat(peer, incarnation);
      }
    };
    for (size_t i = 0; i < servers_.size(); ++i) beat(Server(i), servers_[i]);
    for (size_t i = 0; i < workers_.size(); ++i) beat(Worker(i), workers_[i]);
    core_->OnTick(now_, &effects);
    // A lease that is over is looked at twice.
    core_->OnTick(now_ + absl::Milliseconds(1), &effects);
  }
  return effects;
}

CoordinatorCore::Effects CoordinatorCoreTest::Call(
    const PeerId& from, Incarnation incarnation, uint64_t id,
    const std::function<void(wire::Call&)>& fill, Payload value) {
  Message message;
  wire::Call& call = *message.header.mutable_call();
  call.set_call_id(id);
  call.set_incarnation(incarnation);
  fill(call);
  if (!value.empty()) message.payloads.push_back(std::move(value));
  return Send(from, message);
}

std::vector<std::string> CoordinatorCoreTest::Answers(
    const CoordinatorCore::Effects& effects) {
  std::vector<std::string> answers;
  for (const Outgoing& out : effects.sends) {
    if (!out.message.header.has_call_reply()) continue;
    const wire::CallReply& reply = out.message.header.call_reply();
    answers.push_back(absl::StrCat(out.to.ToString(), ":", reply.call_id(), " ",
                                   wire::Code_Name(reply.code())));
  }
  return answers;
}

std::string CoordinatorCoreTest::TextOf(const Outgoing& answer) {
  std::vector<std::string> parts;
  const auto& ranks = answer.message.header.call_reply().gathered().rank();
  EXPECT_EQ(static_cast<size_t>(ranks.size()), answer.message.payloads.size());
  for (int i = 0; i < ranks.size(); ++i) {
    const Payload& payload = answer.message.payloads[static_cast<size_t>(i)];
    parts.push_back(absl::StrCat(
        ranks[i], ":",
        absl::string_view(reinterpret_cast<const char*>(payload.data()),
                          payload.size())));
  }
  return absl::StrJoin(parts, " ");
}

const wire::View* CoordinatorCoreTest::ViewFor(
    const CoordinatorCore::Effects& effects, const PeerId& peer) {
  const bool any = std::any_of(
      effects.sends.begin(), effects.sends.end(), [&](const Outgoing& out) {
        return out.to == peer && (out.message.header.has_view() ||
                                  out.message.header.has_view_change());
      });
  if (!any) return nullptr;
  views_.push_back(core_->view());
  return &views_.back();
}

std::vector<std::string> PlacementTest::MovesOf(const wire::View& view) {
  std::vector<std::string> moves;
  for (const wire::Move& move : view.move()) {
    moves.push_back(
        absl::StrCat(move.shard(), ">", move.server(), ".", move.thread()));
  }
  return moves;
}

wire::CallReply PlacementTest::ReplyIn(
    const CoordinatorCore::Effects& effects) {
  for (const Outgoing& out : effects.sends) {
    if (out.to == kUser && out.message.header.has_call_reply())
      return out.message.header.call_reply();
  }
  ADD_FAILURE() << "no answer to a call";
  return wire::CallReply();
}

std::function<void(wire::Call&)> PlacementTest::Moving(
    std::vector<int32_t> shards, int32_t server, int32_t thread) {
  return [=](wire::Call& call) {
    wire::MoveShards& moves = *call.mutable_move_shards();
    for (const int32_t shard : shards) moves.add_shard(shard);
    moves.set_server(server);
    moves.set_thread(thread);
  };
}

CoordinatorCore::Effects PlacementTest::Tell(int server,
                                             const run::ServerStats& stats) {
  Message message;
  message.header.set_view_number(ViewNow().number());
  message.header.mutable_heartbeat()->set_incarnation(servers_.at(server));
  *message.header.mutable_heartbeat()->mutable_server() = stats;
  return Send(Server(server), message);
}

CoordinatorCore::Effects PlacementTest::TellReached(Clock reached) {
  run::ServerStats stats;
  stats.set_seen_view(ViewNow().number());
  stats.set_reached_clock(reached);
  CoordinatorCore::Effects effects;
  for (size_t i = 0; i < servers_.size(); ++i) {
    stats.set_index(static_cast<int32_t>(i));
    effects = Tell(static_cast<int>(i), stats);
  }
  return effects;
}

run::ServerStats PlacementTest::LostOnItsWay(int shard, int target) {
  run::ServerStats stats;
  run::HandOverState& lost = *stats.add_hand_over();
  lost.set_shard(shard);
  lost.set_move(ViewNow().move(0).id());
  lost.set_state(run::HandOverState::LOST);
  lost.set_to_server(target);
  return stats;
}

CoordinatorCore::Effects PlacementTest::Said(int32_t shard,
                                             run::HandOverState::State state) {
  const wire::View view = ViewNow();
  run::ServerStats stats;
  for (const wire::Move& move : view.move()) {
    if (move.shard() != shard) continue;
    run::HandOverState& hand_over = *stats.add_hand_over();
    hand_over.set_shard(shard);
    hand_over.set_move(move.id());
    hand_over.set_state(state);
    hand_over.set_to_server(move.server());
    hand_over.set_bytes(24);
    hand_over.set_copy_micros(7000);
    hand_over.set_pause_micros(300);
  }
  return Tell(Owners().at(shard), stats);
}

void PlacementTest::Load(int server, double busy) {
  run::ServerStats stats;
  run::ThreadLoad& load = *stats.add_thread();
  load.set_bytes_per_busy_second(1e9);
  const std::vector<int32_t> owners = Owners();
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] != server) continue;
    run::ShardLoad& shard = *load.add_shard();
    shard.set_shard(static_cast<int32_t>(i));
    shard.set_busy(static_cast<float>(busy));
    load.set_utilisation(load.utilisation() + busy);
  }
  Tell(server, stats);
}

PeerId PlacementTest::AddServer(int index) {
  const wire::JoinReply reply = Join(Server(index));
  EXPECT_EQ(reply.code(), wire::OK) << reply.error();
  servers_.resize(std::max(servers_.size(), static_cast<size_t>(index) + 1));
  servers_[index] = reply.incarnation();
  return Server(index);
}

}  // namespace slackline
