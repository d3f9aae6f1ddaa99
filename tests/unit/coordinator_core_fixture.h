// Fixtures for tests of CoordinatorCore: a job of a few members, played by hand
// on virtual time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator_core.h"

namespace slackline {

class CoordinatorCoreTest : public ::testing::Test {
 protected:
  static PeerId Worker(int rank, uint64_t token = 0) {
    return {.kind = PeerId::Kind::kWorker,
            .index = rank,
            .instance = token == 0 ? 100 + rank : token};
  }
  static PeerId Server(int index) {
    return {.kind = PeerId::Kind::kServer,
            .index = index,
            .instance = 200u + index};
  }
  static inline const PeerId kObserver{.kind = PeerId::Kind::kObserver,
                                       .instance = 9};
  static inline const PeerId kUser{
      .kind = PeerId::Kind::kObserver, .index = 0, .instance = 5};

  CoordinatorCoreTest() {
    options_.job = "job";
    options_.config_hash = "hash";
    options_.servers = 2;
    options_.workers = 2;
    options_.config.mutable_limits()->set_lease_ms(5000);
    options_.config.mutable_limits()->set_start_timeout_ms(60000);
    Restart();
  }

  void Restart() {
    core_.emplace(options_);
    core_->Start(now_);
  }

  wire::JoinRequest JoinOf(const PeerId& peer);

  CoordinatorCore::Effects Send(const PeerId& from, const Message& message) {
    CoordinatorCore::Effects effects;
    core_->OnMessage(from, message, now_, &effects);
    return effects;
  }

  CoordinatorCore::Effects SendJoin(const PeerId& from,
                                    const wire::JoinRequest& join) {
    Message message;
    *message.header.mutable_join_request() = join;
    return Send(from, message);
  }

  wire::JoinReply Join(const PeerId& from, const wire::JoinRequest& join);
  wire::JoinReply Join(const PeerId& from) { return Join(from, JoinOf(from)); }

  // Servers 0 and 1 and workers 0 and 1: the job runs.
  void StartJob();

  CoordinatorCore::Effects Heartbeat(const PeerId& from,
                                     Incarnation incarnation,
                                     uint64_t view_number = 0) {
    Message message;
    message.header.set_view_number(view_number);
    message.header.mutable_heartbeat()->set_incarnation(incarnation);
    return Send(from, message);
  }

  // Of a worker that has done its last step, and whose program works on.
  CoordinatorCore::Effects HeartbeatTrained(int rank) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_.at(rank));
    run::WorkerStats& stats = *heartbeat.mutable_worker();
    stats.set_clock(steps_total_);
    stats.mutable_progress()->set_clock(steps_total_);
    stats.mutable_progress()->set_activity(run::WorkerProgress::WORKING);
    return Send(Worker(rank), message);
  }

  // Lets time pass in which all are heard but `silent`.
  CoordinatorCore::Effects Pass(absl::Duration time,
                                std::vector<PeerId> silent);

  // Runs the core whenever it asks for it, up to and at `end`.
  void TickUntil(absl::Time end, CoordinatorCore::Effects* effects) {
    while (now_ < end) {
      now_ = std::min(core_->NextWakeup(), end);
      core_->OnTick(now_, effects);
    }
  }

  CoordinatorCore::Effects Call(const PeerId& from, Incarnation incarnation,
                                uint64_t id,
                                const std::function<void(wire::Call&)>& fill,
                                Payload value = Payload());
  CoordinatorCore::Effects Gather(int rank, uint64_t place,
                                  const std::string& text, uint64_t id = 1) {
    return Call(
        Worker(rank), workers_[rank], id,
        [&](wire::Call& call) { call.mutable_gather()->set_place(place); },
        Payload::Copy(text.data(), text.size()));
  }
  // What an answered gather has brought: "0:a 1:b".
  static std::string TextOf(const Outgoing& answer);
  CoordinatorCore::Effects Leave(int rank, bool with_result = false) {
    return Call(Worker(rank), workers_[rank], 50, [&](wire::Call& call) {
      call.mutable_leave();
      if (with_result) call.mutable_leave()->mutable_result()->set_steps(7);
    });
  }

  uint64_t Group() const { return core_->Status(now_).view().group(); }

  // "worker.0.100:7 OK", one for each answered call.
  static std::vector<std::string> Answers(
      const CoordinatorCore::Effects& effects);

  // The view that the peer was sent in the last event, whole or as a change;
  // nullptr: none.
  const wire::View* ViewFor(const CoordinatorCore::Effects& effects,
                            const PeerId& peer);

  CoordinatorCore::Options options_;
  int64_t steps_total_ = 7;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<CoordinatorCore> core_;
  std::vector<Incarnation> servers_;
  std::vector<Incarnation> workers_;
  std::deque<wire::View> views_;  // What ViewFor() has shown.
};

// Five shards of two elements: 0, 2, 4 on server 0 and 1, 3 on server 1.
class PlacementTest : public CoordinatorCoreTest {
 protected:
  PlacementTest() {
    options_.shard_elements = 2;
    options_.config.mutable_rebalance()->set_concurrent_moves(4);
    options_.config.mutable_rebalance()->set_interval_ms(2000);
    options_.config.mutable_rebalance()->set_rest_ms(10000);
    Restart();
  }

  wire::View ViewNow() { return core_->Status(now_).view(); }

  // "2>1.0": shard 2 is to go to thread 0 of server 1.
  static std::vector<std::string> MovesOf(const wire::View& view);
  std::vector<int32_t> Owners() {
    const wire::View view = ViewNow();
    return {view.owner_server().begin(), view.owner_server().end()};
  }

  // A user's call, under a new id.
  CoordinatorCore::Effects Ask(const std::function<void(wire::Call&)>& fill) {
    return Call(kUser, 0, ++call_id_, fill);
  }
  static wire::CallReply ReplyIn(const CoordinatorCore::Effects& effects);
  static std::function<void(wire::Call&)> Moving(std::vector<int32_t> shards,
                                                 int32_t server,
                                                 int32_t thread = -1);
  static std::function<void(wire::Call&)> Draining(int32_t server) {
    return [=](wire::Call& call) { call.mutable_drain()->set_server(server); };
  }
  static void Rebalancing(wire::Call& call) { call.mutable_rebalance(); }

  CoordinatorCore::Effects Tell(int server, const run::ServerStats& stats);
  // Every server says that its threads have seen the view, and that no gradient
  // there is of this clock or a later one. What comes of the last one.
  CoordinatorCore::Effects TellReached(Clock reached);
  // Of the source of the view's first move: the target is dead, and the shard
  // with it.
  run::ServerStats LostOnItsWay(int shard, int target);
  // What the source says of its move of the shard, as it is listed now.
  CoordinatorCore::Effects Said(int32_t shard, run::HandOverState::State state);
  CoordinatorCore::Effects Done(int32_t shard) {
    return Said(shard, run::HandOverState::DONE);
  }
  // Each shard of the server takes so much of its thread's time.
  void Load(int server, double busy);
  // Server 0 has nearly all of the work.
  void LoadUnevenly() {
    Load(0, 0.3);
    Load(1, 0.01);
  }

  PeerId AddServer(int index);

  uint64_t call_id_ = 0;
};

}  // namespace slackline
