// For the tests of WorkerCore: a worker whose coordinator and only shard thread
// are played by hand, on virtual time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/io/state_hash.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/support/small_view.h"
#include "worker/core/worker_core.h"

namespace slackline {

inline constexpr Clock kSteps = 10;
inline constexpr Incarnation kSelf = 7;
inline constexpr Incarnation kOther = 8;
inline constexpr Owner kThread{0, 0};
inline constexpr absl::Duration kLease = absl::Seconds(2);
inline constexpr absl::Duration kWaitTimeout = absl::Seconds(60);
inline constexpr absl::Duration kSaveTimeout = absl::Seconds(10);

// One table of four elements in one shard on the only shard thread.
inline wire::View RunningView(uint64_t number, absl::string_view mode = "asp") {
  return SmallView({.number = number,
                    .mode = std::string(mode),
                    .steps = kSteps,
                    .workers = {kSelf, kOther}});
}

class WorkerCoreTest : public ::testing::Test {
 protected:
  WorkerCoreTest() {
    options_.member.join.set_role(wire::JoinRequest::WORKER);
    options_.member.join.set_index(0);
    options_.member.join.set_token(5);
    options_.member.coordinators = {"head:7700"};
    options_.member.join.set_steps_total(kSteps);
    options_.evaluate_every = kSteps;
    options_.wait_timeout = kWaitTimeout;
    options_.save_timeout = kSaveTimeout;
    options_.save_retry = absl::Seconds(3);
  }

  // An event of the core; everything that it causes is kept until it is looked
  // at.
  template <typename Event>
  void Tell(const Event& event) {
    WorkerCore::Effects effects;
    event(*core_, now_, &effects);
    for (Message& message : effects.to_coordinator)
      to_coordinator_.push_back(std::move(message));
    for (ClientSend& send : effects.to_shards)
      to_shards_.push_back(std::move(send.message));
    for (WorkerCore::Action& action : effects.actions)
      actions_.push_back(std::move(action));
    for (TableValues& values : effects.tables)
      tables_.push_back(std::move(values));
    for (std::string& line : effects.log) log_.push_back(std::move(line));
    for (std::string& line : effects.warnings)
      warnings_.push_back(std::move(line));
    if (effects.state != nullptr) state_ = effects.state;
  }
  void FromCoordinator(const Message& message) {
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnCoordinatorMessage(message, now, effects);
    });
  }
  void FromShard(const Message& message) {
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnShardMessage(kThread, message, now, effects);
    });
  }
  void Show(const wire::View& view) {
    Message message;
    *message.header.mutable_view() = view;
    FromCoordinator(message);
  }
  // Time passes, in which the coordinator answers heartbeats and nothing else.
  void Pass(absl::Duration time) {
    const absl::Time end = now_ + time;
    while (now_ < end && !core_->ended()) {
      now_ = std::min(end, std::max(now_, core_->NextWakeup()));
      Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnTick(now, effects);
      });
      if (!coordinator_answers_) continue;
      Message reply;
      reply.header.mutable_heartbeat_reply()->set_incarnation(kSelf);
      reply.header.mutable_heartbeat_reply()->set_code(wire::OK);
      FromCoordinator(reply);
    }
  }
  // Joins a job of this mode and is about to do what comes first.
  void Join(absl::string_view mode = "asp") {
    Join([&](uint64_t number) { return RunningView(number, mode); });
  }
  void Join(const std::function<wire::View(uint64_t number)>& view) {
    core_.emplace(options_);
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.Start(now, effects);
    });
    AskNext();
    Admit();
    Show(view(2));
  }
  // The coordinator's answer to a request to join.
  void Admit() {
    Message reply;
    wire::JoinReply& join = *reply.header.mutable_join_reply();
    join.set_token(5);
    join.set_code(wire::OK);
    join.set_incarnation(kSelf);
    join.set_lease_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(kLease)));
    FromCoordinator(reply);
  }
  uint64_t LastPull() const {
    uint64_t request = 0;
    for (const Message& message : to_shards_) {
      if (message.header.has_pull_request())
        request = message.header.pull_request().pull(0).id();
    }
    return request;
  }
  // The last pull waits for the other worker, which is at `clock`.
  void ParkPull(Clock clock) {
    Message message;
    wire::PullAnswer& answer =
        *message.header.mutable_pull_reply()->add_answer();
    answer.set_pull(LastPull());
    answer.mutable_parked()->set_rank(1);
    answer.mutable_parked()->set_clock(clock);
    FromShard(message);
  }
  // The shard thread answers the last pull.
  void AnswerPull(Clock shard_clock = 0) {
    const uint64_t request = LastPull();
    const std::vector<float> values(4, 1.0f);
    Message message;
    message.header.set_view_number(2);
    wire::PullAnswer& answer =
        *message.header.mutable_pull_reply()->add_answer();
    answer.set_pull(request);
    answer.mutable_values()->set_version(1);
    answer.mutable_values()->set_shard_clock(shard_clock);
    message.payloads.push_back(
        Payload::Copy(values.data(), values.size() * sizeof(float)));
    FromShard(message);
  }
  // The same, of PullState().
  void AnswerWithState(Version version) {
    const std::vector<float> values(4, 1.0f);
    const Payload frame = Payload::Copy(values.data(), 16);
    Message message;
    message.header.set_view_number(2);
    wire::PullAnswer& answer =
        *message.header.mutable_pull_reply()->add_answer();
    answer.set_pull(LastPull());
    answer.mutable_state()->mutable_values()->set_version(version);
    answer.mutable_state()->set_hash(StateHash(version, frame, {}));
    message.payloads.push_back(frame);
    FromShard(message);
  }
  void AnswerPush(uint64_t acked) {
    Message message;
    message.header.mutable_push_reply()->add_answer()->set_accepted_seq(acked);
    FromShard(message);
  }
  void FencePush() {
    Message message;
    message.header.mutable_push_reply()
        ->add_answer()
        ->mutable_refusal()
        ->mutable_fenced();
    FromShard(message);
  }
  void Compute(double loss) {
    Push();
    Computed(loss);
  }
  // The gradient of the open step, and its end.
  void Push() {
    const std::vector<float> gradient(4, 1.0f);
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      EXPECT_TRUE(core.OnGradient(TableId{0},
                                  Payload::Copy(gradient.data(), 16),
                                  StepOptions(), now, effects)
                      .ok());
    });
  }
  void Computed(double loss = 1) {
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnComputed(loss, now, effects);
    });
    if (asks_at_once_) AskNext();
  }
  // The program asks what comes next.
  void AskNext() {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnAsked(now, effects);
    });
  }
  // Trains to the end; the other worker is done as well.
  void TrainToTheFinalModel() {
    Join();
    AnswerPull();  // Of joining.
    for (Clock clock = 0; clock < kSteps; ++clock) {
      Compute(/*loss=*/1);
      AnswerPush(static_cast<uint64_t>(clock) + 1);
      if (clock + 1 < kSteps) AnswerPull();
    }
    wire::View done = RunningView(3);
    for (wire::WorkerMember& worker : *done.mutable_worker())
      worker.set_done(true);
    Show(done);
    AnswerPull();  // Of the final model.
  }
  template <typename Kind>
  int Count() const {
    return static_cast<int>(
        std::count_if(actions_.begin(), actions_.end(), [](const auto& action) {
          return std::holds_alternative<Kind>(action);
        }));
  }
  // The last of these.
  template <typename Kind>
  Kind Last() const {
    const auto last =
        std::find_if(actions_.rbegin(), actions_.rend(),
                     [](const WorkerCore::Action& action) {
                       return std::holds_alternative<Kind>(action);
                     });
    return last == actions_.rend() ? Kind() : std::get<Kind>(*last);
  }
  // But those that say where it goes on.
  std::vector<wire::Call> Calls() const {
    std::vector<wire::Call> calls;
    for (const Message& message : to_coordinator_) {
      const wire::Call& call = message.header.call();
      if (message.header.has_call() && !call.has_goes_on())
        calls.push_back(call);
    }
    return calls;
  }
  // What it has said of where it goes on, in order.
  std::vector<uint64_t> Places() const {
    std::vector<uint64_t> places;
    for (const Message& message : to_coordinator_) {
      const wire::Call& call = message.header.call();
      if (call.has_goes_on() &&
          (places.empty() || places.back() != call.goes_on().place()))
        places.push_back(call.goes_on().place());
    }
    return places;
  }
  run::WorkerProgress Progress() const { return core_->Progress(now_); }
  absl::Duration Elapsed() const { return now_ - absl::UnixEpoch(); }

  WorkerCore::Options options_;
  std::optional<WorkerCore> core_;
  absl::Time now_ = absl::UnixEpoch();
  bool coordinator_answers_ = true;
  // The program does nothing else after a step.
  bool asks_at_once_ = true;
  std::vector<Message> to_coordinator_;
  std::vector<Message> to_shards_;
  std::vector<WorkerCore::Action> actions_;
  std::vector<TableValues> tables_;
  WorkerCore::Parameters state_;
  std::vector<std::string> warnings_;
  std::vector<std::string> log_;
};

}  // namespace slackline
