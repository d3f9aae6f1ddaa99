#include "tests/unit/shard_core_fixture.h"

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/metrics/gradient_counts.h"
#include "common/optim/schedule.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "tests/support/modes.h"

namespace slackline {

config::Optimizer Sgd() {
  config::Optimizer config;
  config.mutable_sgd()->set_learning_rate(1);
  return config;
}

config::Optimizer Adam() {
  config::Optimizer config;
  config.mutable_adam()->set_learning_rate(0.1);
  return config;
}

StaleRules StaleOf(const config::Sync& sync) {
  absl::StatusOr<StaleRules> rules = StaleRules::Create(sync);
  SL_CHECK(rules.ok(), rules.status().ToString());
  return *rules;
}

Message InstallOf(uint64_t view_number, Clock clock, uint64_t seq,
                  Version version, const Payload& values,
                  const std::vector<Payload>& slots, int32_t shard) {
  Message message;
  message.header.set_view_number(view_number);
  wire::Push& push = *message.header.mutable_push_request()->add_push();
  push.set_clock(clock);
  push.set_shard(shard);
  push.set_seq(seq);
  push.mutable_installation()->set_version(version);
  push.mutable_installation()->set_hash(StateHash(version, values, slots));
  push.mutable_installation()->set_slots(static_cast<int32_t>(slots.size()));
  message.payloads.push_back(values);
  message.payloads.insert(message.payloads.end(), slots.begin(), slots.end());
  return message;
}

PeerId Worker(int rank, Incarnation incarnation) {
  return {.kind = PeerId::Kind::kWorker,
          .index = rank,
          .instance = incarnation == 0 ? 10 + rank : incarnation};
}

wire::Push& TheOnly(Message& message) {
  return *message.header.mutable_push_request()->mutable_push(0);
}

wire::Pull& TheOnlyPull(Message& message) {
  return *message.header.mutable_pull_request()->mutable_pull(0);
}

std::string BytesOf(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     payload.size());
}

std::vector<std::string> Portrait(const ShardMachine& machine) {
  std::vector<std::string> portrait = {
      absl::StrCat(
          machine.shard().range().region.Text(), " version ",
          machine.shard().version(), " complete clock ",
          machine.complete_clock(), " min clock ",
          machine.participants().MinClock(), " rms ",
          absl::Hex(absl::bit_cast<uint64_t>(machine.running_rms().mean())),
          " of ", machine.running_rms().count()),
      BytesOf(machine.shard().values())};
  for (const Payload& slot : machine.shard().slots())
    portrait.push_back(BytesOf(slot));
  for (const HeldGradient& held : machine.Snapshot().held) {
    portrait.push_back(absl::StrCat(
        "held ", static_cast<int>(held.who.rank), ".", held.who.incarnation,
        " rms ", absl::Hex(absl::bit_cast<uint64_t>(held.rms)), " ",
        BytesOf(held.gradient)));
  }
  for (const Participant& p : machine.participants()) {
    portrait.push_back(absl::StrCat(
        "rank ", static_cast<int>(p.rank), ".", p.incarnation, " joined at ",
        p.joined_at, " clock ", p.clock, " next seq ", p.next_seq));
  }
  return portrait;
}

void AddWorker(wire::View* view, int rank, Incarnation incarnation,
               bool founder) {
  wire::WorkerMember& worker = *view->add_worker();
  worker.set_rank(rank);
  worker.set_incarnation(incarnation);
  worker.set_founder(founder);
}

void RemoveWorker(wire::View* view, int rank) {
  for (int i = 0; i < view->worker_size(); ++i) {
    if (view->worker(i).rank() != rank) continue;
    view->mutable_worker()->DeleteSubrange(i, 1);
    return;
  }
}

void ShardCoreTest::TearDown() {
  if (!core_.has_value()) return;
  EXPECT_EQ(UnaccountedGradients(core_->Stats()), 0);
}

ShardCore::Effects ShardCoreTest::Start(absl::string_view mode, int workers) {
  core_.emplace(ShardCore::Options{.self = {0, 0},
                                   .seed = 1,
                                   .trace = true,
                                   .stale = StaleOf(stale_),
                                   .delays = delays_,
                                   .workers = workers,
                                   .stored = stored_,
                                   .nonfinite = nonfinite_,
                                   .gradient_bound = bound_,
                                   .memory = memory_},
                config::LearningRateSchedule());
  view_.set_number(2);
  view_.set_state(wire::RUNNING);
  AddPhase(mode, 0);
  view_.set_steps_total(steps_total_);
  view_.set_steps_per_epoch(100);
  wire::ServerMember& server = *view_.add_server();
  server.add_thread();
  server.add_thread();
  wire::Table& table = *view_.add_table();
  table.set_name("weight");
  table.add_shape(3 * kElements);
  table.set_shard_elements(kElements);
  table.mutable_initializer()->set_kind(stored_ == nullptr
                                            ? wire::Initializer::CONSTANT
                                            : wire::Initializer::OF_CHECKPOINT);
  *table.mutable_optimizer() = optimizer_;
  table.set_pulled_as(pulled_as_);
  for (const int thread : {0, 0, 1}) {
    view_.add_owner_server(0);
    view_.add_owner_thread(thread);
  }
  for (int rank = 0; rank < workers; ++rank) {
    AddWorker(rank, 10 + rank, /*founder=*/true);
    if (static_cast<size_t>(rank) < begins_at_.size()) {
      view_.mutable_worker(rank)->set_begins_at(
          begins_at_[static_cast<size_t>(rank)]);
    }
  }
  return Publish();
}

void ShardCoreTest::AddPhase(absl::string_view mode, Clock from) {
  wire::Phase& phase = *view_.add_phase();
  if (delays_ != nullptr) {
    phase.mutable_mode()->mutable_delays()->set_given("a recording");
  } else {
    *phase.mutable_mode() = ModeOf(mode);
  }
  phase.set_from(from);
}

ShardCore::Effects ShardCoreTest::Publish() {
  view_.set_number(view_.number() + 1);
  ShardCore::Effects effects;
  core_->OnView(*View::Create(view_), &effects);
  core_->Flush(&effects);
  return effects;
}

Message ShardCoreTest::PushOf(Clock clock, uint64_t seq, float gradient,
                              int32_t shard) {
  Message message;
  message.header.set_view_number(view_.number());
  wire::Push& push = *message.header.mutable_push_request()->add_push();
  push.set_clock(clock);
  push.set_shard(shard);
  push.set_seq(seq);
  push.set_gradient(0);
  message.payloads.push_back(Floats(gradient, kElements));
  return message;
}

Message ShardCoreTest::PullOf(Clock clock, uint64_t request_id, int32_t shard,
                              bool join) {
  Message message;
  message.header.set_view_number(view_.number());
  wire::Pull& pull = *message.header.mutable_pull_request()->add_pull();
  pull.set_id(request_id);
  pull.add_shard(shard);
  if (join) {
    pull.mutable_join();
  } else {
    pull.mutable_step()->set_clock(clock);
  }
  return message;
}

Message ShardCoreTest::AdvanceOf(Clock clock, uint64_t seq, int32_t shard) {
  Message message = PushOf(clock, seq, 0, shard);
  TheOnly(message).mutable_advance();
  message.payloads.clear();
  return message;
}

ShardCore::Effects ShardCoreTest::Send(const PeerId& from,
                                       const Message& message) {
  ShardCore::Effects effects;
  core_->OnMessage(from, message, &effects);
  core_->Flush(&effects);
  return effects;
}

wire::PushReply ShardCoreTest::Push(const PeerId& from,
                                    const Message& message) {
  for (const Outgoing& out : Send(from, message).sends) {
    if (out.to == from && out.message.header.has_push_reply()) {
      return out.message.header.push_reply();
    }
  }
  return wire::PushReply();
}

Outcome ShardCoreTest::PushCode(const PeerId& from, const Message& message) {
  const wire::PushReply reply = Push(from, message);
  return reply.answer_size() == 1 ? OutcomeOf(reply.answer(0)) : Outcome::kNone;
}

float ShardCoreTest::Value(const PeerId& from, int32_t shard) {
  const ShardCore::Effects effects = Send(from, PullOf(0, 999, shard));
  if (effects.sends.size() != 1 || effects.sends[0].message.payloads.empty()) {
    ADD_FAILURE() << "no answer to a pull of clock 0";
    return 0;
  }
  return First(effects.sends[0].message.payloads[0]);
}

Message ShardPhasesTest::PullAt(Clock clock, uint64_t request_id,
                                int32_t shard) {
  Message message = PullOf(clock, request_id, shard);
  TheOnlyPull(message).mutable_step()->set_own_clock(clock);
  return message;
}

Message ShardPhasesTest::StatePullAt(Clock clock, uint64_t request_id,
                                     int32_t shard) {
  Message message = PullAt(clock, request_id, shard);
  TheOnlyPull(message).mutable_state()->set_clock(clock);
  return message;
}

Message ShardPhasesTest::InstallAt(Clock clock, uint64_t seq, Version version,
                                   float value, int32_t shard) {
  return InstallOf(view_.number(), clock, seq, version,
                   Floats(value, kElements), {}, shard);
}

std::optional<float> ShardPhasesTest::AnswerIn(
    const ShardCore::Effects& effects, uint64_t request_id) {
  for (const Outgoing& out : effects.sends) {
    const wire::PullReply& reply = out.message.header.pull_reply();
    if (reply.answer_size() == 1 && reply.answer(0).pull() == request_id &&
        OutcomeOf(reply.answer(0)) == Outcome::kOk) {
      return First(out.message.payloads.at(0));
    }
  }
  return std::nullopt;
}

Outcome ShardPhasesTest::PullCode(const PeerId& from, const Message& message) {
  const ShardCore::Effects effects = Send(from, message);
  if (effects.sends.size() != 1) return Outcome::kNone;
  return OutcomeOf(effects.sends[0].message.header.pull_reply().answer(0));
}

const ShardMachine& ShardPhasesTest::State(int32_t shard) {
  const ShardMachine* const state = core_->MachineOf(ShardId{shard});
  SL_CHECK(state != nullptr, "the shard is not there");
  return *state;
}

void ShardPhasesTest::PushUpTo(Clock clock, float gradient) {
  for (Clock c = 0; c < clock; ++c) {
    for (const int rank : {0, 1}) {
      for (const int32_t shard : {0, 1})
        PushCode(Worker(rank), PushOf(c, c + 1, gradient, shard));
    }
  }
}

void ShardPhasesTest::StartAllReduce() {
  Start("bsp", 2);
  AddPhase("allreduce", 2);
  AddPhase("asp", 5);
  Publish();
  PushUpTo(2);
}

}  // namespace slackline
