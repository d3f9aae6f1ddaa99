// What tests of shards that move or are split have in common: two shard threads
// with a link by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "gtest/gtest.h"
#include "server/shard/log_feed.h"
#include "server/shard/shard_core.h"
#include "server/shard/store/store_kinds.h"
#include "tests/support/floats.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline {

PeerId Thread(int server);

// Servers 0 and 1 with one thread each. Shards 0 and 1 are on server 0 at
// first, shard 2 on server 1. What the threads tell each other lies on a wire
// until it is delivered.
class ShardMoveTest : public ::testing::Test {
 protected:
  ShardMoveTest() {
    feed_.part_bytes = 8;  // Half a tensor.
    feed_.window_bytes = 8;
  }
  // Whatever moved, the counters of both say what became of each gradient.
  void TearDown() override;

  void Start(absl::string_view mode, int workers, bool adam = false);

  // ---- The view.

  void AddWorker(int rank, Incarnation incarnation, bool founder = false) {
    slackline::AddWorker(&view_, rank, incarnation, founder);
  }
  void RemoveWorker(int rank) { slackline::RemoveWorker(&view_, rank); }
  // These change the next view.
  void Move(int32_t shard, int server);
  void Commit(int32_t shard);
  void Split(int32_t shard, int64_t at);
  // The other server is ordered to follow the shard; it does no more; it is in
  // sync; it owns the shard, whose owner is gone from the view.
  void Follow(int32_t shard);
  void Unfollow(int32_t shard);
  void SetInSync(int32_t shard);
  void Promote(int32_t shard);
  void NextView() { view_.set_number(view_.number() + 1); }
  void ShowTo(int server);
  void Show();

  // ---- Messages.

  struct OnTheWire {
    int from = 0;
    int to = 0;
    Message message;
  };

  // Ends the batch and sends what came of it.
  void Take(int server, ShardCore::Effects effects);
  void Send(int server, const PeerId& from, const Message& message);
  // At most so many messages between the threads.
  void Deliver(int count = 1000);
  void Tick(absl::Duration time);
  // The whole of a move, up to the view that says that it is done.
  void MoveNow(int32_t shard, int server);

  Message PushOf(Clock clock, uint64_t seq, float gradient, int32_t shard = 0,
                 int elements = kElements);
  Message PullOf(Clock clock, uint64_t request_id = 1, int32_t shard = 0);
  Message JoinPullOf(uint64_t request_id = 1);

  // What the workers were told since the last call: "rank 0: push 0 OK acked
  // 1", "rank 0: pull 7 of 0 OK -3", "... MOVED to 1 as of 4".
  std::vector<std::string> Replies();

  const ShardMachine& State(int server, int32_t shard);
  float Value(int server, int32_t shard = 0) {
    return First(State(server, shard).shard().values());
  }
  std::vector<run::HandOverState::State> HandOverStates(int server);

  // What the shards of the table keep, and how many of its indices each has.
  std::shared_ptr<const StoreKind> store_ = DenseKind();
  int64_t shard_elements_ = kElements;
  wire::Encoding::Kind pulled_as_ = wire::Encoding::FLOAT32;
  LogFeedOptions feed_;
  // The other server follows each shard from the start.
  bool followed_ = false;
  size_t waiting_max_ = 4096;
  size_t waiting_bytes_max_ = 1 << 20;
  size_t waiting_bytes_max_all_ = 1 << 20;
  config::Sync stale_;
  GradientBound bound_;
  absl::Time now_ = absl::UnixEpoch();
  wire::View view_;
  std::optional<ShardCore> cores_[2];
  std::deque<OnTheWire> wire_;
  std::vector<Outgoing> replies_;
  std::optional<ShardCutState> cut_[2];  // The last one of each thread.
  bool reported_[2] = {false, false};
};

}  // namespace slackline
