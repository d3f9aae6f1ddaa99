// Fixtures for tests of ClientCore: the shard threads are played by hand, on
// virtual time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "worker/client/client_core.h"

namespace slackline {

// Two tables of 16 elements in shards of 4: shards 0 to 3 and 4 to 7. Even
// shards are on thread 0, odd ones on thread 1 of server 0.
inline constexpr int kShards = 8;
inline constexpr size_t kShardBytes = 16;
inline constexpr Owner kThread0{0, 0};
inline constexpr Owner kThread1{0, 1};

wire::View TestView();

class ClientCoreTest : public ::testing::Test {
 protected:
  ClientCoreTest() {
    options_.rank = Rank{1};
    options_.incarnation = 11;
    options_.window_bytes = 4096;
    options_.message_bytes = 1;  // A message for each shard.
    options_.retry_initial = absl::Milliseconds(100);
    options_.retry_max = absl::Milliseconds(400);
    options_.refused_delay = absl::Milliseconds(2);
    Restart();
  }
  void Restart() {
    client_.emplace(options_, *View::Create(TestView()));
    accepted_.clear();
  }

  absl::Status TryPush(Clock clock, int table, size_t bytes = 4 * kShardBytes) {
    std::vector<float> gradient(bytes / sizeof(float),
                                static_cast<float>(clock));
    return client_->Push(clock, TableId{table},
                         Payload::Copy(gradient.data(), bytes), StepOptions(),
                         versions_, now_, &effects_);
  }
  ClientCore::Effects Push(Clock clock, int table) {
    EXPECT_TRUE(TryPush(clock, table).ok());
    return Take();
  }
  ClientCore::Effects Take() {
    for (const ClientSend& send : effects_.sends) {
      const wire::PushRequest& push = send.message.header.push_request();
      for (const wire::Push& fact : push.push())
        sent_as_[{send.to, fact.shard()}] = push.request_id();
    }
    return std::exchange(effects_, ClientCore::Effects());
  }

  ClientCore::Effects Receive(Owner from, const Message& message) {
    client_->OnMessage(from, message, now_, &effects_);
    return Take();
  }
  ClientCore::Effects Reply(Owner from, int32_t shard, uint64_t acked,
                            Outcome outcome = Outcome::kOk,
                            const std::string& error = "");
  // As a shard thread that has accepted what Reply() has acknowledged.
  ClientCore::Effects ReplyToProbe(const ClientSend& send);
  static bool IsProbe(const ClientSend& send) {
    return send.message.header.has_probe_request();
  }

  // Moves to the next wake-up.
  ClientCore::Effects Wake() {
    now_ = std::max(now_, client_->NextWakeup());
    client_->OnTick(now_, &effects_);
    return Take();
  }
  // The same; probes are answered at once.
  ClientCore::Effects Tick();
  absl::Duration Elapsed() const { return now_ - absl::UnixEpoch(); }

  // The shards of the pushes or pulls that were sent, in order.
  static std::vector<int32_t> ShardsOf(const ClientCore::Effects& effects);

  // An answer with these shards of a pull that was sent.
  static Message AnswerTo(const ClientSend& send,
                          const std::vector<int32_t>& shards,
                          Version version = 3);
  static wire::PullAnswer& AddAnswer(const ClientSend& send, int32_t shard,
                                     Message* message) {
    wire::PullAnswer& answer =
        *message->header.mutable_pull_reply()->add_answer();
    answer.set_pull(send.message.header.pull_request().pull(0).id());
    answer.set_shard(shard);
    return answer;
  }
  static Message Refuse(const ClientSend& send, int32_t shard,
                        Outcome outcome) {
    Message message;
    *AddAnswer(send, shard, &message).mutable_refusal() = RefusalOf(outcome);
    return message;
  }
  static Message Parked(const ClientSend& send, int32_t shard, int rank,
                        Clock clock = 0) {
    Message message;
    wire::PullAnswer& answer = AddAnswer(send, shard, &message);
    answer.mutable_parked()->set_rank(rank);
    answer.mutable_parked()->set_clock(clock);
    return message;
  }

  ClientCore::Options options_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Version> versions_ = std::vector<Version>(kShards, 5);
  std::optional<ClientCore> client_;
  ClientCore::Effects effects_;
  std::map<std::pair<Owner, int32_t>, uint64_t> sent_as_;
  std::map<int32_t, uint64_t> accepted_;  // By shard.
};

inline constexpr Owner kElsewhere{1, 0};

// The same job with server 1, which owns nothing yet.
class ClientMoveTest : public ClientCoreTest {
 protected:
  ClientMoveTest() : view_(TestView()) {
    wire::ServerMember& server = *view_.add_server();
    server.set_index(1);
    server.add_thread()->add_endpoint("tcp://there:1");
    Restart();
  }
  void Restart() { client_.emplace(options_, *View::Create(view_)); }

  // The view changes to what view_ is now.
  ClientCore::Effects Show() {
    view_.set_number(view_.number() + 1);
    client_->OnView(*View::Create(view_), now_, &effects_);
    return Take();
  }
  void Own(int32_t shard, Owner owner) {
    view_.set_owner_server(shard, owner.server);
    view_.set_owner_thread(shard, owner.thread);
  }
  // Under the next number.
  void Move(int32_t shard, Owner to) {
    wire::Move& move = *view_.add_move();
    move.set_shard(shard);
    move.set_server(to.server);
    move.set_thread(to.thread);
    move.set_id(view_.number() + 1);
  }
  // The new shard stays where the whole one was.
  void Split(int32_t shard, int64_t at) {
    wire::Split& split = *view_.add_split();
    split.set_shard(shard);
    split.set_at(at);
    split.set_since(view_.number() + 1);
    view_.add_owner_server(view_.owner_server(shard));
    view_.add_owner_thread(view_.owner_thread(shard));
  }

  static void Relocate(Owner to, uint64_t as_of, wire::Refusal* refusal) {
    wire::Relocation& relocation = *refusal->mutable_moved()->mutable_to();
    relocation.set_server(to.server);
    relocation.set_thread(to.thread);
    relocation.set_as_of(as_of);
  }
  // A push was told where its shard is.
  ClientCore::Effects Moved(Owner from, int32_t shard, Owner to,
                            uint64_t as_of);

  // The elements of a push are their numbers in the table, plus 100 per clock.
  ClientCore::Effects PushNumbers(Clock clock, int table);
  static std::vector<float> Elements(const Payload& payload) {
    std::vector<float> elements(payload.size() / sizeof(float));
    std::memcpy(elements.data(), payload.data(), payload.size());
    return elements;
  }
  static Payload Numbers(std::vector<float> elements) {
    return Payload::Copy(elements.data(), elements.size() * sizeof(float));
  }

  // "0.1: 3#2 [100, 101]": to thread 1 of server 0, seq 2 of shard 3. Pulls are
  // "0.1: 3?".
  static std::vector<std::string> Sent(const ClientCore::Effects& effects);

  // Acknowledges everything that is sent, at once, until nothing more comes.
  void AcknowledgeAll(ClientCore::Effects effects);

  wire::View view_;
};

}  // namespace slackline
