#include "tests/unit/shard_move_fixture.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/gradient_counts.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/support/modes.h"

namespace slackline {

PeerId Thread(int server) {
  return {.kind = PeerId::Kind::kShardThread, .index = server, .instance = 0};
}

void ShardMoveTest::TearDown() {
  if (!cores_[0].has_value() || !cores_[1].has_value()) return;
  // What is on its way at the end is in neither of them.
  for (const auto& core : cores_) {
    const run::ServerStats stats = core->Stats();
    for (const run::HandOverState& state : stats.hand_over()) {
      if (state.state() == run::HandOverState::LOST) return;
      if (state.state() == run::HandOverState::COPYING &&
          !core->Owns(ShardId{state.shard()})) {
        return;
      }
    }
  }
  EXPECT_EQ(UnaccountedGradients(cores_[0]->Stats()) +
                UnaccountedGradients(cores_[1]->Stats()),
            0);
}

void ShardMoveTest::Start(absl::string_view mode, int workers, bool adam) {
  for (const int server : {0, 1}) {
    cores_[server].emplace(
        ShardCore::Options{.self = {server, 0},
                           .seed = 1,
                           .store_of = [this](const auto&) { return store_; },
                           .feed = feed_,
                           .stale = StaleOf(stale_),
                           .gradient_bound = bound_,
                           .waiting_max = waiting_max_,
                           .waiting_bytes_max = waiting_bytes_max_,
                           .waiting_bytes_max_all = waiting_bytes_max_all_},
        config::LearningRateSchedule());
  }
  view_.set_number(2);
  view_.set_state(wire::RUNNING);
  *view_.add_phase()->mutable_mode() = ModeOf(mode);
  view_.set_steps_total(100);
  view_.set_steps_per_epoch(100);
  for (const int server : {0, 1}) {
    view_.add_server()->set_index(server);
    view_.mutable_server(server)->add_thread();
  }
  wire::Table& table = *view_.add_table();
  table.set_name("weight");
  table.add_shape(3 * shard_elements_);
  table.set_shard_elements(shard_elements_);
  table.set_pulled_as(pulled_as_);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  *table.mutable_optimizer() = adam ? Adam() : Sgd();
  for (const int server : {0, 0, 1}) {
    view_.add_owner_server(server);
    view_.add_owner_thread(0);
  }
  for (int rank = 0; rank < workers; ++rank)
    AddWorker(rank, 10 + rank, /*founder=*/true);
  for (int32_t shard = 0; followed_ && shard < 3; ++shard) {
    Follow(shard);
    SetInSync(shard);
  }
  Show();
}

void ShardMoveTest::Move(int32_t shard, int server) {
  wire::Move& move = *view_.add_move();
  move.set_shard(shard);
  move.set_server(server);
  move.set_id(view_.number() + 1);
}

void ShardMoveTest::Commit(int32_t shard) {
  for (int i = 0; i < view_.move_size(); ++i) {
    if (view_.move(i).shard() != shard) continue;
    for (wire::Follower& follower : *view_.mutable_follower()) {
      if (follower.shard() != shard) continue;
      ASSERT_EQ(follower.server(), view_.move(i).server());
      follower.set_server(view_.owner_server(shard));
      follower.set_since(view_.move(i).id());
      follower.set_in_sync(true);
    }
    view_.set_owner_server(shard, view_.move(i).server());
    view_.mutable_move()->DeleteSubrange(i, 1);
    return;
  }
}

void ShardMoveTest::Split(int32_t shard, int64_t at) {
  wire::Split& split = *view_.add_split();
  split.set_shard(shard);
  split.set_at(at);
  split.set_since(view_.number() + 1);
  const int32_t part = view_.owner_server_size();
  view_.add_owner_server(view_.owner_server(shard));
  view_.add_owner_thread(0);
  for (int i = 0, count = view_.follower_size(); i < count; ++i) {
    if (view_.follower(i).shard() != shard) continue;
    wire::Follower follower = view_.follower(i);
    follower.set_shard(part);
    *view_.add_follower() = follower;
  }
}

void ShardMoveTest::Follow(int32_t shard) {
  wire::Follower follower;
  follower.set_shard(shard);
  follower.set_server(1 - view_.owner_server(shard));
  follower.set_since(view_.number() + 1);
  *view_.add_follower() = follower;
  std::sort(view_.mutable_follower()->begin(), view_.mutable_follower()->end(),
            [](const wire::Follower& a, const wire::Follower& b) {
              return a.shard() < b.shard();
            });
}

void ShardMoveTest::Unfollow(int32_t shard) {
  auto& followers = *view_.mutable_follower();
  followers.erase(std::remove_if(followers.begin(), followers.end(),
                                 [&](const wire::Follower& follower) {
                                   return follower.shard() == shard;
                                 }),
                  followers.end());
}

void ShardMoveTest::SetInSync(int32_t shard) {
  for (wire::Follower& follower : *view_.mutable_follower()) {
    if (follower.shard() == shard) follower.set_in_sync(true);
  }
}

void ShardMoveTest::Promote(int32_t shard) {
  Unfollow(shard);
  view_.set_owner_server(shard, 1 - view_.owner_server(shard));
}

void ShardMoveTest::ShowTo(int server) {
  ShardCore::Effects effects;
  cores_[server]->OnView(*View::Create(view_), &effects);
  Take(server, std::move(effects));
}

void ShardMoveTest::Show() {
  NextView();
  for (const int server : {0, 1}) ShowTo(server);
}

void ShardMoveTest::Take(int server, ShardCore::Effects effects) {
  cores_[server]->Flush(&effects);
  reported_[server] |= effects.report;
  if (effects.cut.has_value()) cut_[server] = std::move(effects.cut);
  for (Outgoing& out : effects.sends) {
    if (out.to.kind == PeerId::Kind::kShardThread) {
      wire_.push_back({server, out.to.index, std::move(out.message)});
    } else {
      replies_.push_back(std::move(out));
    }
  }
}

void ShardMoveTest::Send(int server, const PeerId& from,
                         const Message& message) {
  ShardCore::Effects effects;
  cores_[server]->OnMessage(from, message, &effects);
  Take(server, std::move(effects));
}

void ShardMoveTest::Deliver(int count) {
  for (; count > 0 && !wire_.empty(); --count) {
    const OnTheWire next = std::move(wire_.front());
    wire_.pop_front();
    Send(next.to, Thread(next.from), next.message);
  }
}

void ShardMoveTest::Tick(absl::Duration time) {
  now_ += time;
  for (const int server : {0, 1}) {
    ShardCore::Effects effects;
    cores_[server]->OnTick(now_, &effects);
    Take(server, std::move(effects));
  }
}

void ShardMoveTest::MoveNow(int32_t shard, int server) {
  Move(shard, server);
  Show();
  Deliver();
  Commit(shard);
  Show();
  ASSERT_TRUE(cores_[server]->Owns(ShardId{shard}));
}

Message ShardMoveTest::PushOf(Clock clock, uint64_t seq, float gradient,
                              int32_t shard, int elements) {
  Message message;
  message.header.set_view_number(view_.number());
  wire::Push& push = *message.header.mutable_push_request()->add_push();
  push.set_clock(clock);
  push.set_shard(shard);
  push.set_seq(seq);
  push.set_gradient(0);
  message.payloads.push_back(Floats(gradient, elements));
  return message;
}

Message ShardMoveTest::PullOf(Clock clock, uint64_t request_id, int32_t shard) {
  Message message;
  message.header.set_view_number(view_.number());
  wire::Pull& pull = *message.header.mutable_pull_request()->add_pull();
  pull.set_id(request_id);
  pull.mutable_step()->set_clock(clock);
  pull.mutable_step()->set_own_clock(clock);
  pull.add_shard(shard);
  return message;
}

Message ShardMoveTest::JoinPullOf(uint64_t request_id) {
  Message message = PullOf(0, request_id);
  TheOnlyPull(message).mutable_join();
  return message;
}

std::vector<std::string> ShardMoveTest::Replies() {
  std::vector<std::string> lines;
  for (const Outgoing& out : replies_) {
    const wire::Header& header = out.message.header;
    const std::string who = absl::StrCat("rank ", out.to.index, ": ");
    const auto relocated = [](const wire::Refusal& refusal) {
      if (!refusal.moved().has_to()) return std::string();
      return absl::StrCat(" to ", refusal.moved().to().server(), " as of ",
                          refusal.moved().to().as_of());
    };
    for (const wire::PushAnswer& answer : header.push_reply().answer()) {
      lines.push_back(absl::StrCat(
          who, "push ", answer.shard(), " ", WordFor(OutcomeOf(answer)),
          answer.has_refusal()
              ? relocated(answer.refusal())
              : absl::StrCat(" acked ", answer.accepted_seq())));
    }
    size_t payload = 0;
    for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
      lines.push_back(absl::StrCat(
          who, "pull ", answer.pull(), " of ", answer.shard(), " ",
          WordFor(OutcomeOf(answer)),
          OutcomeOf(answer) == Outcome::kOk
              ? absl::StrCat(" ", First(out.message.payloads.at(payload++)))
              : relocated(answer.refusal())));
    }
    if (header.has_error_reply())
      lines.push_back(absl::StrCat(who, header.error_reply().error()));
  }
  replies_.clear();
  return lines;
}

const ShardMachine& ShardMoveTest::State(int server, int32_t shard) {
  const ShardMachine* const state = cores_[server]->MachineOf(ShardId{shard});
  SL_CHECK(state != nullptr, "the shard is not there");
  return *state;
}

std::vector<run::HandOverState::State> ShardMoveTest::HandOverStates(
    int server) {
  std::vector<run::HandOverState::State> states;
  const run::ServerStats stats = cores_[server]->Stats();
  for (const run::HandOverState& state : stats.hand_over())
    states.push_back(state.state());
  return states;
}

}  // namespace slackline
