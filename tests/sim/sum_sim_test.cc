// Goal: whatever links and processes do, a sum by servers that a rank is given
// is the right one, every operation ends, and none fails without a cause.
// Method: the ranks' and the shard threads' cores on virtual time, over links
// that delay and break, with servers that hear late of a group, stand still,
// have full queues, or end, and ranks that come late; from one seed each. A
// failure of one rank ends the group of all, as losing a connection does, and
// they make a new one.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"
#include "server/sums/sum_core.h"
#include "tests/sim/event_queue.h"
#include "tests/support/allreduce_view.h"
#include "worker/collective/sum_client_core.h"

namespace slackline::sim {
namespace {

constexpr uint64_t kRun = 3;
constexpr absl::Duration kTimeout = absl::Milliseconds(500);
constexpr absl::Duration kGoneMax = absl::Milliseconds(100);
constexpr int kOperations = 12;  // In all, over all groups.
constexpr size_t kPieceBytes = 16;

struct Counts {
  int64_t sums = 0;
  int64_t retries = 0;
  int64_t queues_full = 0;
  int64_t groups = 0;
  int64_t late_failures = 0;
  int64_t gone_failures = 0;
  int64_t strays = 0;  // Messages of a group that was over.
  Counts& operator+=(const Counts& other) {
    sums += other.sums;
    retries += other.retries;
    queues_full += other.queues_full;
    groups += other.groups;
    late_failures += other.late_failures;
    gone_failures += other.gone_failures;
    strays += other.strays;
    return *this;
  }
};

class SumWorld {
 public:
  // `faults`: links break, servers stand still and end, ranks come late.
  SumWorld(uint64_t seed, bool faults) : rng_(seed), faults_(faults) {
    ranks_.resize(static_cast<size_t>(rng_.Between(2, 5)));
    const int64_t threads = rng_.Between(1, 3);
    for (int64_t i = 0; i < threads; ++i)
      threads_.push_back(std::make_unique<Thread>());
    window_bytes_ = static_cast<size_t>(rng_.Between(8, 80));
    for (int i = 0; i < kOperations; ++i)
      sizes_.push_back(
          static_cast<size_t>(rng_.Between(0, rng_.Chance(0.1) ? 400 : 60)));
    slowest_ = absl::Milliseconds(rng_.Between(1, 15));
  }

  void Run() {
    BeginGroup();
    while (!AllDone() && !::testing::Test::HasFailure()) {
      ASSERT_TRUE(queue_.RunNext()) << "nothing happens any more";
      ASSERT_LT(queue_.now(), absl::UnixEpoch() + absl::Minutes(10))
          << "an operation does not end";
      ASSERT_LT(queue_.events_run(), 2'000'000) << "somebody is always busy";
    }
  }
  const Counts& counts() const { return counts_; }

 private:
  struct Thread {
    SumCore core{SumCore::Options{
        .waiting_bytes_max = 200, .waiting_parts_max = 50, .memory = nullptr}};
    uint64_t group = 0;  // That it has heard of.
    bool ended = false;
    absl::Time stands_until = absl::InfinitePast();
  };
  // Of one rank and one shard thread, one way.
  struct Link {
    absl::Time last;     // What was sent first arrives first.
    int64_t breaks = 0;  // What was sent before is lost.
  };
  struct RankState {
    std::unique_ptr<SumClientCore> core;  // Of the group; null between them.
    std::vector<float> data;
    int operation = 0;  // The next one, or the present one.
    bool running = false;
    absl::Time tick = absl::InfiniteFuture();  // Is due.
    absl::Time began;                          // The operation.
    std::map<size_t, absl::Time> told_gone;    // By thread.
    std::vector<Link> to;                      // By thread of the group.
    std::vector<Link> from;
  };

  absl::Duration Delay() {
    const bool long_one = rng_.Chance(0.02);
    return slowest_ * rng_.Uniform() * (long_one ? 4 : 1);
  }
  bool AllDone() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& r) {
      return r.operation == kOperations;
    });
  }

  // ---- Groups

  void BeginGroup() {
    ++group_;
    ++counts_.groups;
    failing_ = false;
    // Those who missed something have it from the others.
    int operation = 0;
    for (const RankState& rank : ranks_)
      operation = std::max(operation, rank.operation);
    started_at_ = operation;
    members_.clear();
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (!threads_[i]->ended) members_.push_back(i);
    }
    if (members_.empty()) {  // A server comes back, as another process.
      threads_.push_back(std::make_unique<Thread>());
      members_.push_back(threads_.size() - 1);
    }
    const auto view =
        AllReduceView(kRun, group_, static_cast<int>(ranks_.size()));
    for (const size_t thread : members_) {
      const absl::Duration late = Delay() * (rng_.Chance(0.3) ? 3 : 0);
      queue_.After(late, [this, thread, view, group = group_] {
        Thread& at = *threads_[thread];
        if (group <= at.group) return;
        at.group = group;
        at.core.OnView(view);
      });
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankState& state = ranks_[rank];
      SumClientCore::Options options = {
          .rank = static_cast<int32_t>(rank),
          .ranks = static_cast<int32_t>(ranks_.size()),
          .run = kRun,
          .group = group_,
          .piece_bytes = kPieceBytes,
          .window_bytes = window_bytes_,
          .timeout = kTimeout,
          .gone_max = kGoneMax};
      for (const size_t thread : members_)
        options.threads.push_back(absl::StrCat("thread ", thread));
      state.core = std::make_unique<SumClientCore>(options);
      state.operation = operation;
      state.running = false;
      state.tick = absl::InfiniteFuture();
      state.told_gone.clear();
      state.to.assign(members_.size(), Link());
      state.from.assign(members_.size(), Link());
      queue_.After(Delay(), [this, rank, group = group_] {
        if (group == group_) BeginOperation(rank);
      });
    }
    if (!faults_) return;
    for (int64_t n = rng_.Between(0, 3); n > 0; --n) {
      queue_.After(absl::Milliseconds(rng_.Between(0, 300)),
                   [this, group = group_] {
                     if (group == group_ && !failing_) Disturb();
                   });
    }
  }

  void Disturb() {
    const size_t rank = rng_.Below(ranks_.size());
    const size_t n = rng_.Below(members_.size());
    Thread& thread = *threads_[members_[n]];
    switch (rng_.Below(4)) {
      case 0:  // A connection breaks, and comes back.
        ++ranks_[rank].to[n].breaks;
        ++ranks_[rank].from[n].breaks;
        late_is_possible_ = true;
        break;
      case 1:
        thread.stands_until =
            queue_.now() + absl::Milliseconds(rng_.Between(1, 800));
        late_is_possible_ = true;
        break;
      case 2:
        rank_late_ = absl::Milliseconds(rng_.Between(1, 800));
        late_is_possible_ = true;
        break;
      default:
        thread.ended = true;
        for (size_t i = 0; i < ranks_.size(); ++i) {
          queue_.After(Delay(), [this, i, n, group = group_] {
            if (group != group_ || ranks_[i].core == nullptr) return;
            ranks_[i].told_gone.try_emplace(members_[n], queue_.now());
            SumClientCore::Effects effects;
            ranks_[i].core->OnLinkState(n, LinkState::kGone, queue_.now(),
                                        &effects);
            Perform(i, &effects);
          });
        }
    }
  }

  void GroupFails() {
    if (std::exchange(failing_, true)) return;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      queue_.After(Delay(), [this, i, group = group_] {
        if (group != group_) return;
        ranks_[i].core = nullptr;
        ranks_[i].running = false;
      });
    }
    queue_.After(5 * slowest_, [this, group = group_] {
      if (group == group_) BeginGroup();
    });
  }

  // ---- Ranks

  // Numbers whose sum depends on the order.
  static float Value(size_t rank, int operation, size_t index) {
    const float size = rank % 2 == 0 ? 1e7f : 1.0f;
    return size *
           static_cast<float>(
               1 +
               (rank * 7 + index * 3 + static_cast<size_t>(operation)) % 11) /
           3;
  }
  float Sum(int operation, size_t index) const {
    float sum = Value(0, operation, index);
    for (size_t rank = 1; rank < ranks_.size(); ++rank)
      sum += Value(rank, operation, index);
    return sum;
  }

  void BeginOperation(size_t rank) {
    RankState& state = ranks_[rank];
    if (state.core == nullptr || state.operation == kOperations) return;
    state.data.resize(sizes_[static_cast<size_t>(state.operation)]);
    for (size_t i = 0; i < state.data.size(); ++i)
      state.data[i] = Value(rank, state.operation, i);
    state.running = true;
    state.began = queue_.now();
    SumClientCore::Effects effects;
    state.core->Begin(state.operation - started_at_, absl::MakeSpan(state.data),
                      queue_.now(), &effects);
    Perform(rank, &effects);
  }

  void Perform(size_t rank, SumClientCore::Effects* effects) {
    RankState& state = ranks_[rank];
    for (const SumClientCore::Send& send : effects->sends) {
      ASSERT_TRUE(state.running) << "something is sent between operations";
      if (rng_.Chance(0.03)) {
        ++counts_.queues_full;
        state.core->OnQueueFull(send, queue_.now());
        continue;
      }
      EXPECT_LE(state.core->bytes_in_flight(send.thread),
                std::max(window_bytes_, kPieceBytes));
      Deliver(&state.to[send.thread],
              [this, rank, n = send.thread, group = group_,
               message = send.message] { Arrive(rank, n, group, message); });
    }
    if (effects->ended.has_value()) {
      EXPECT_TRUE(state.running) << "an operation ends twice";
      state.running = false;
      Ended(rank, *effects->ended);
    }
    if (state.core != nullptr) SetTick(rank);
  }

  void Ended(size_t rank, const absl::Status& status) {
    RankState& state = ranks_[rank];
    if (status.ok()) {
      ++counts_.sums;
      for (size_t i = 0; i < state.data.size(); ++i) {
        ASSERT_EQ(state.data[i], Sum(state.operation, i))
            << "operation " << state.operation << ", rank " << rank;
      }
      ++state.operation;
      const absl::Duration late =
          std::exchange(rank_late_, absl::ZeroDuration());
      queue_.After(late + Delay(), [this, rank, group = group_] {
        if (group == group_) BeginOperation(rank);
      });
      return;
    }
    const std::string text(status.message());
    if (absl::IsDeadlineExceeded(status)) {
      ++counts_.late_failures;
      EXPECT_TRUE(late_is_possible_) << text;
    } else if (absl::StrContains(text, "has ended")) {
      ++counts_.gone_failures;
      const auto is_due = [&](const auto& told) {
        const auto& [thread, at] = told;
        return text == absl::StrCat("thread ", thread,
                                    " has ended; the group must be rebuilt") &&
               queue_.now() == std::max(at + kGoneMax, state.began);
      };
      EXPECT_TRUE(
          std::any_of(state.told_gone.begin(), state.told_gone.end(), is_due))
          << text;
    } else {
      ADD_FAILURE() << status;
    }
    GroupFails();
  }

  // As a driver that sleeps until then.
  void SetTick(size_t rank) {
    RankState& state = ranks_[rank];
    const absl::Time next = state.core->NextWakeup();
    if (next == state.tick) return;
    state.tick = next;
    if (next == absl::InfiniteFuture()) return;
    queue_.At(next, [this, rank, next, group = group_] {
      RankState& at = ranks_[rank];
      if (group != group_ || at.core == nullptr || at.tick != next) return;
      at.tick = absl::InfiniteFuture();
      SumClientCore::Effects effects;
      at.core->OnTick(queue_.now(), &effects);
      Perform(rank, &effects);
    });
  }

  // ---- The network and the servers

  void Deliver(Link* link, std::function<void()> arrive) {
    link->last = std::max(link->last, queue_.now() + Delay());
    // The link may be of a group that is over by then.
    queue_.At(link->last, [this, link, breaks = link->breaks, group = group_,
                           arrive = std::move(arrive)] {
      if (group == group_ && link->breaks != breaks) return;
      arrive();
    });
  }

  void Arrive(size_t rank, size_t n, uint64_t group, const Message& message) {
    if (group != group_) {
      ++counts_.strays;
      // It has another number among the members of another group.
      if (n >= threads_.size()) return;
    }
    const size_t index = group == group_ ? members_[n] : n;
    Thread& thread = *threads_[index];
    if (thread.ended) return;
    if (thread.stands_until > queue_.now()) {
      queue_.At(thread.stands_until, [this, rank, n, group, message] {
        Arrive(rank, n, group, message);
      });
      return;
    }
    SumCore::Effects effects;
    thread.core.OnMessage({.kind = PeerId::Kind::kSum,
                           .index = static_cast<int32_t>(rank),
                           .instance = IncarnationOf(static_cast<int>(rank))},
                          message, &effects);
    EXPECT_LE(thread.core.waiting_bytes(),
              ranks_.size() * std::max(window_bytes_, kPieceBytes))
        << "more waits than the windows allow";
    for (const Outgoing& outgoing : effects.sends) {
      if (outgoing.message.header.sum_reply().retry()) ++counts_.retries;
      // A reply to a message of an earlier group comes by its connection.
      const auto to = static_cast<size_t>(outgoing.to.index);
      const auto at = std::find(members_.begin(), members_.end(), index);
      if (at == members_.end()) continue;
      const auto as = static_cast<size_t>(at - members_.begin());
      Deliver(&ranks_[to].from[as], [this, to, as, reply = outgoing.message] {
        RankState& state = ranks_[to];
        if (state.core == nullptr || as >= members_.size()) return;
        SumClientCore::Effects taken;
        state.core->OnMessage(as, reply, queue_.now(), &taken);
        Perform(to, &taken);
      });
    }
  }

  Rng rng_;
  const bool faults_;
  EventQueue queue_;
  std::vector<RankState> ranks_;
  std::vector<std::unique_ptr<Thread>> threads_;  // That ever were.
  std::vector<size_t> sizes_;                     // Floats, by operation.
  size_t window_bytes_ = 0;
  absl::Duration slowest_;
  uint64_t group_ = 0;
  std::vector<size_t> members_;  // Of threads_, that sum for the group.
  int started_at_ = 0;           // The operation that the group calls 0.
  bool failing_ = false;
  bool late_is_possible_ = false;  // Something may have taken too long.
  absl::Duration rank_late_;       // For the next operation of some rank.
  Counts counts_;
};

Counts RunSeeds(uint64_t first, int seeds, bool faults) {
  Counts counts;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(seeds);
       ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SumWorld world(seed, faults);
    world.Run();
    counts += world.counts();
    if (::testing::Test::HasFailure()) break;
  }
  return counts;
}

TEST(SumSimTest, WithoutFaultsEverySumComesInTheFirstGroup) {
  const Counts counts = RunSeeds(1, 1000, /*faults=*/false);
  EXPECT_EQ(counts.groups, 1000);
  EXPECT_EQ(counts.late_failures + counts.gone_failures, 0);
  EXPECT_GT(counts.retries, 0);
  EXPECT_GT(counts.queues_full, 0);
}

TEST(SumSimTest, WithFaultsNoSumIsWrongAndEveryFailureHasACause) {
  const Counts counts = RunSeeds(100'001, 3000, /*faults=*/true);
  // All of it happens.
  EXPECT_GT(counts.groups, 3500);
  EXPECT_GT(counts.late_failures, 300);
  EXPECT_GT(counts.gone_failures, 300);
  EXPECT_GT(counts.strays, 100);
}

}  // namespace
}  // namespace slackline::sim
