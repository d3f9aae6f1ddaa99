// Goal: over a slow link, a worker's client sends gradients once and keeps the
// link busy: nothing goes twice because it is late, and what is lost goes again
// alone.
// Method: one client and two real shard threads' cores on virtual time; all
// their messages share one DelayLine for each direction, which loses whole
// messages with a drawn chance. (Over TCP only a broken connection does that.)
// The worker pushes, pulls behind its pushes, and takes the next step at once.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/delayed/delay_line.h"
#include "common/rng.h"
#include "common/status.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/modes.h"
#include "worker/client/client_core.h"

namespace slackline::client_link_test {

constexpr int kThreads = 2;
constexpr int64_t kShardElements = 8 << 10;

struct LinkCase {
  std::string name;
  LinkModel link;
  size_t push_bytes = 0;
  double loss = 0;
  int steps = 0;
};

LinkModel LinkOf(double mbit, int latency_ms) {
  return {.latency = absl::Milliseconds(latency_ms),
          .bytes_per_second = mbit * 1e6 / 8};
}

struct Outcome {
  uint64_t useful = 0;         // Payload bytes of pushes, each counted once.
  uint64_t sent = 0;           // As they went into the link.
  uint64_t resent = 0;         // As the client says.
  uint64_t answers = 0;        // Payload bytes of pull answers in the link.
  uint64_t pulled = 0;         // Of those, the ones that the client took.
  int64_t other_messages = 0;  // Without payload, to the shards.
  absl::Duration took;
};

class LinkWorld {
 public:
  LinkWorld(const LinkCase& test, uint64_t seed)
      : test_(test), rng_(seed), up_(test.link), down_(test.link) {
    wire::View view;
    view.set_number(2);
    view.set_state(wire::RUNNING);
    *view.add_phase()->mutable_mode() = ModeOf("asp");
    view.set_steps_total(1 << 20);
    view.set_steps_per_epoch(1 << 20);
    wire::ServerMember& server = *view.add_server();
    for (int i = 0; i < kThreads; ++i) server.add_thread();
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_incarnation(11);
    worker.set_founder(true);
    wire::Table& table = *view.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name("weight");
    table.add_shape(static_cast<int64_t>(test.push_bytes / sizeof(float)));
    table.set_shard_elements(kShardElements);
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    for (int64_t at = 0; at < table.shape(0); at += kShardElements) {
      view.add_owner_server(0);
      view.add_owner_thread(view.owner_thread_size() % kThreads);
    }
    const absl::StatusOr<std::shared_ptr<const View>> made = View::Create(view);
    SL_CHECK(made.ok(), made.status().ToString());
    for (int i = 0; i < kThreads; ++i) {
      shards_.push_back(std::make_unique<ShardCore>(
          ShardCore::Options{.self = {0, i}}, config::LearningRateSchedule()));
      ShardCore::Effects effects;
      shards_.back()->OnView(*made, &effects);
    }
    ClientCore::Options options;
    options.incarnation = 11;
    client_.emplace(options, *made);
    versions_.resize((*made)->shard_count());
  }

  Outcome Run() {
    StartStep();
    while (step_ < test_.steps || client_->unacknowledged_bytes() > 0) {
      now_ = std::max(now_, std::min({client_->NextWakeup(), up_.NextWakeup(),
                                      down_.NextWakeup()}));
      SL_CHECK(now_ < absl::UnixEpoch() + absl::Hours(1),
               client_->WaitingFor(now_).text);
      while (const std::optional<ClientSend> send = up_.PopDue(now_))
        Serve(*send);
      while (const std::optional<ClientSend> reply = down_.PopDue(now_)) {
        ClientCore::Effects effects;
        client_->OnMessage(reply->to, reply->message, now_, &effects);
        Perform(std::move(effects));
      }
      ClientCore::Effects effects;
      client_->OnTick(now_, &effects);
      Perform(std::move(effects));
    }
    outcome_.useful = client_->bytes_pushed();
    outcome_.resent = client_->bytes_resent();
    outcome_.pulled = client_->bytes_pulled();
    outcome_.took = now_ - absl::UnixEpoch();
    return outcome_;
  }

 private:
  static size_t PayloadBytes(const Message& message) {
    size_t bytes = 0;
    for (const Payload& payload : message.payloads) bytes += payload.size();
    return bytes;
  }
  void Pass(DelayLine<ClientSend>& line, ClientSend send) {
    const size_t bytes =
        send.message.header.ByteSizeLong() + PayloadBytes(send.message);
    if (test_.loss > 0 && rng_.Chance(test_.loss)) return;
    line.Push(now_, bytes, std::move(send));
  }
  void StartStep() {
    ClientCore::Effects effects;
    client_->PullBehindPushes();
    const absl::Status pushed =
        client_->Push(step_, TableId{0}, Payload::Allocate(test_.push_bytes),
                      StepOptions(), versions_, now_, &effects);
    SL_CHECK(pushed.ok(), pushed.ToString());
    Perform(std::move(effects));
  }
  void Perform(ClientCore::Effects effects) {
    SL_CHECK(effects.failure.ok() && !effects.fenced,
             effects.failure.ToString());
    for (ClientSend& send : effects.sends) {
      if (send.message.header.has_push_request()) {
        outcome_.sent += PayloadBytes(send.message);
      } else {
        ++outcome_.other_messages;
      }
      Pass(up_, std::move(send));
    }
    for (size_t i = 0; i < effects.pulled.size(); ++i) {
      if (++step_ < test_.steps) StartStep();
    }
  }
  void Serve(const ClientSend& send) {
    ShardCore& shard = *shards_[static_cast<size_t>(send.to.thread)];
    ShardCore::Effects effects;
    shard.OnMessage({.kind = PeerId::Kind::kWorker, .index = 0, .instance = 11},
                    send.message, &effects);
    shard.Flush(&effects);
    for (Outgoing& reply : effects.sends) {
      if (reply.message.header.has_pull_reply())
        outcome_.answers += PayloadBytes(reply.message);
      Pass(down_, {.to = send.to, .message = std::move(reply.message)});
    }
  }

  const LinkCase test_;
  Rng rng_;
  absl::Time now_ = absl::UnixEpoch();
  DelayLine<ClientSend> up_;
  DelayLine<ClientSend> down_;  // `to` is who sent it.
  std::vector<std::unique_ptr<ShardCore>> shards_;
  std::optional<ClientCore> client_;
  std::vector<Version> versions_;
  Clock step_ = 0;
  Outcome outcome_;
};

std::string Describe(const Outcome& outcome) {
  return absl::StrCat("useful ", outcome.useful, ", sent ", outcome.sent,
                      ", resent ", outcome.resent, ", answers ",
                      outcome.answers, " of which taken ", outcome.pulled, ", ",
                      outcome.other_messages, " small messages, ",
                      absl::FormatDuration(outcome.took));
}

class ClientLink : public ::testing::TestWithParam<LinkCase> {};

INSTANTIATE_TEST_SUITE_P(
    Links, ClientLink,
    ::testing::Values(
        LinkCase{"Mbit5Push130KB", LinkOf(5, 20), 130'000, 0, 100},
        LinkCase{"Mbit5Push1MB", LinkOf(5, 20), 1'000'000, 0, 30},
        LinkCase{"Mbit5Push10MB", LinkOf(5, 20), 10'000'000, 0, 4},
        LinkCase{"Mbit1Push1MB", LinkOf(1, 100), 1'000'000, 0, 10},
        LinkCase{"Gbit1Push10MB", LinkOf(1000, 0), 10'000'000, 0, 30},
        LinkCase{"Mbit100Latency200ms", LinkOf(100, 200), 1'000'000, 0, 20},
        LinkCase{"Mbit5Push130KBLoss", LinkOf(5, 20), 130'000, 0.01, 300},
        LinkCase{"Mbit5Push1MBLoss", LinkOf(5, 20), 1'000'000, 0.01, 60},
        LinkCase{"Mbit5Push10MBLoss", LinkOf(5, 20), 10'000'000, 0.01, 6}),
    [](const auto& test) { return test.param.name; });

TEST_P(ClientLink, SendsOnceAndKeepsTheLinkBusy) {
  const LinkCase& test = GetParam();
  const Outcome outcome = LinkWorld(test, 1).Run();
  SCOPED_TRACE(Describe(outcome));
  RecordProperty("outcome", Describe(outcome));
  EXPECT_EQ(outcome.useful, test.push_bytes * test.steps);
  EXPECT_EQ(outcome.useful + outcome.resent, outcome.sent);
  if (test.loss == 0) {
    EXPECT_EQ(outcome.sent, outcome.useful);
    EXPECT_EQ(outcome.answers, outcome.pulled);
  } else {
    EXPECT_GT(outcome.sent, outcome.useful) << "nothing was lost";
    EXPECT_LT(outcome.sent, 1.2 * outcome.useful);
    EXPECT_LT(outcome.answers, 1.2 * outcome.pulled);
  }
  // A step's push goes up while its answer comes down, one message behind it.
  const size_t message =
      std::min(ClientCore::Options().message_bytes, test.push_bytes / kThreads);
  const absl::Duration least =
      test.steps *
      (2 * test.link.latency + test.link.Occupied(test.push_bytes + message));
  EXPECT_LT(outcome.took, least * (test.loss == 0 ? 1.05 : 1.5));
}

}  // namespace slackline::client_link_test
