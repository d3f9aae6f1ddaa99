#include "tests/unit/client_core_fixture.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/modes.h"

namespace slackline {

wire::View TestView() {
  wire::View view;
  view.set_number(2);
  view.set_state(wire::RUNNING);
  *view.add_phase()->mutable_mode() = ModeOf("asp");
  wire::ServerMember& server = *view.add_server();
  server.add_thread()->add_endpoint("tcp://here:1");
  server.add_thread()->add_endpoint("tcp://here:2");
  wire::WorkerMember& worker = *view.add_worker();
  worker.set_rank(1);
  worker.set_incarnation(11);
  for (const char* const name : {"weight", "bias"}) {
    wire::Table& table = *view.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name(name);
    table.add_shape(16);
    table.set_shard_elements(4);
    table.set_first_shard((view.table_size() - 1) * 4);
  }
  for (int shard = 0; shard < kShards; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(shard % 2);
  }
  return view;
}

ClientCore::Effects ClientCoreTest::Reply(Owner from, int32_t shard,
                                          uint64_t acked, Outcome outcome,
                                          const std::string& error) {
  Message message;
  wire::PushReply& reply = *message.header.mutable_push_reply();
  reply.set_request_id(sent_as_[{from, shard}]);
  wire::PushAnswer& answer = *reply.add_answer();
  answer.set_shard(shard);
  answer.set_accepted_seq(acked);
  if (outcome == Outcome::kOk) {
    accepted_[shard] = acked;
  } else {
    *answer.mutable_refusal() = RefusalOf(outcome, error);
  }
  return Receive(from, message);
}

ClientCore::Effects ClientCoreTest::ReplyToProbe(const ClientSend& send) {
  const wire::ProbeRequest& probe = send.message.header.probe_request();
  Message message;
  wire::ProbeReply& reply = *message.header.mutable_probe_reply();
  reply.set_request_id(probe.request_id());
  for (const int32_t shard : probe.shard()) {
    wire::ProbeAnswer& answer = *reply.add_answer();
    answer.set_shard(shard);
    answer.set_accepted_seq(accepted_[shard]);
  }
  return Receive(send.to, message);
}

ClientCore::Effects ClientCoreTest::Tick() {
  ClientCore::Effects woken = Wake();
  ClientCore::Effects all;
  for (ClientSend& send : woken.sends) {
    if (!IsProbe(send)) {
      all.sends.push_back(std::move(send));
      continue;
    }
    for (ClientSend& more : ReplyToProbe(send).sends)
      all.sends.push_back(std::move(more));
  }
  return all;
}

std::vector<int32_t> ClientCoreTest::ShardsOf(
    const ClientCore::Effects& effects) {
  std::vector<int32_t> shards;
  for (const ClientSend& send : effects.sends) {
    const wire::Header& header = send.message.header;
    const std::vector<int32_t> sent =
        header.has_push_request()
            ? slackline::ShardsOf(header.push_request().push())
            : slackline::ShardsOf(header.pull_request());
    shards.insert(shards.end(), sent.begin(), sent.end());
  }
  return shards;
}

Message ClientCoreTest::AnswerTo(const ClientSend& send,
                                 const std::vector<int32_t>& shards,
                                 Version version) {
  Message message;
  for (const int32_t shard : shards) {
    wire::PullAnswer& answer = AddAnswer(send, shard, &message);
    answer.mutable_values()->set_version(version);
    answer.mutable_values()->set_shard_clock(2);
    message.payloads.push_back(Payload::Allocate(kShardBytes));
  }
  return message;
}

ClientCore::Effects ClientMoveTest::Moved(Owner from, int32_t shard, Owner to,
                                          uint64_t as_of) {
  Message message;
  wire::PushReply& reply = *message.header.mutable_push_reply();
  reply.set_request_id(sent_as_[{from, shard}]);
  wire::PushAnswer& answer = *reply.add_answer();
  answer.set_shard(shard);
  Relocate(to, as_of, answer.mutable_refusal());
  return Receive(from, message);
}

ClientCore::Effects ClientMoveTest::PushNumbers(Clock clock, int table) {
  std::vector<float> gradient(16);
  for (int i = 0; i < 16; ++i)
    gradient[i] = static_cast<float>(100 * clock + i);
  EXPECT_TRUE(client_
                  ->Push(clock, TableId{table},
                         Payload::Copy(gradient.data(), 4 * kShardBytes),
                         StepOptions(), versions_, now_, &effects_)
                  .ok());
  return Take();
}

std::vector<std::string> ClientMoveTest::Sent(
    const ClientCore::Effects& effects) {
  std::vector<std::string> lines;
  for (const ClientSend& send : effects.sends) {
    const wire::Header& header = send.message.header;
    const std::string to =
        absl::StrCat(send.to.server, ".", send.to.thread, ":");
    for (const int32_t shard : slackline::ShardsOf(header.pull_request()))
      lines.push_back(absl::StrCat(to, " ", shard, "?"));
    size_t frame = 0;
    for (const wire::Push& push : header.push_request().push()) {
      lines.push_back(absl::StrCat(to, " ", push.shard(), "#", push.seq()));
      if (push.has_advance()) {
        lines.back() += absl::StrCat(" at ", push.clock());
        continue;
      }
      absl::StrAppend(
          &lines.back(), " [",
          absl::StrJoin(Elements(send.message.payloads.at(frame++)), ", "),
          "]");
    }
  }
  return lines;
}

void ClientMoveTest::AcknowledgeAll(ClientCore::Effects effects) {
  while (!effects.sends.empty()) {
    ClientCore::Effects next;
    for (const ClientSend& send : effects.sends) {
      Message message;
      wire::PushReply& reply = *message.header.mutable_push_reply();
      if (!send.message.header.has_push_request()) continue;
      const wire::PushRequest& push = send.message.header.push_request();
      reply.set_request_id(push.request_id());
      for (const wire::Push& fact : push.push()) {
        wire::PushAnswer& answer = *reply.add_answer();
        answer.set_shard(fact.shard());
        answer.set_accepted_seq(fact.seq());
        accepted_[fact.shard()] = fact.seq();
      }
      ClientCore::Effects more = Receive(send.to, message);
      EXPECT_TRUE(more.failure.ok()) << more.failure;
      next.sends.insert(next.sends.end(), more.sends.begin(), more.sends.end());
    }
    effects = std::move(next);
  }
}

}  // namespace slackline
