// CoordinatorClient where the coordinator may be at several addresses, and move
// from one to another.
#include "tools/cli/job/coordinator_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "tests/net/fake_coordinator.h"

namespace slackline::coordinator_client_test {

using ::testing::HasSubstr;

constexpr absl::Duration kAnswerMax = absl::Seconds(30);

// A host where the coordinator of a job is, or is not.
class Host {
 public:
  Host(std::string job, int index, bool answers = true,
       const std::string& at = "tcp://127.0.0.1:0")
      : job_(std::move(job)),
        index_(index),
        answers_(answers),
        fake_([this](const wire::Call& call) { return Answer(call); }, at) {}

  const std::string& endpoint() const { return fake_.endpoint(); }
  // On another host of this machine, with the same port.
  std::string NextDoor() const {
    return absl::StrCat("tcp://127.0.0.2:", fake_.port());
  }
  void SetAnswers(bool answers) { answers_ = answers; }
  int statuses() const { return statuses_; }
  int orders() const { return orders_; }

 private:
  wire::CallReply Answer(const wire::Call& call) {
    ++(call.has_status() ? statuses_ : orders_);
    wire::CallReply reply;
    if (!answers_) return reply;
    reply.set_code(wire::OK);
    if (call.has_status()) {
      reply.mutable_status()->mutable_view()->set_job(job_);
      reply.mutable_status()->set_coordinator_server(index_);
    } else {
      reply.mutable_plan()->set_summary(absl::StrCat("of server ", index_));
    }
    return reply;
  }

  const std::string job_;
  const int index_;
  std::atomic<bool> answers_;
  std::atomic<int> statuses_ = 0;
  std::atomic<int> orders_ = 0;
  FakeCoordinator fake_;  // Last: its thread uses the others.
};

std::unique_ptr<CoordinatorClient> ClientOf(
    const std::vector<std::string>& endpoints) {
  auto client = CoordinatorClient::Connect(endpoints, "digits", std::nullopt);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(CoordinatorClientTest, FindsTheCoordinatorWhereNobodyIsAtTheFirst) {
  const Host second("digits", 1);
  const auto client = ClientOf({second.NextDoor(), second.endpoint()});
  const auto status = client->GetStatus(kAnswerMax);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->coordinator_server(), 1);
  EXPECT_TRUE(client->Stop("enough", kAnswerMax).ok());
}

// As of a client that was just made: nobody has said yet where it is.
TEST(CoordinatorClientTest, AnOrderFindsTheCoordinatorByItself) {
  const Host other("letters", 0);
  const Host ours("digits", 1);
  const auto client = ClientOf({other.endpoint(), ours.endpoint()});
  const auto plan = client->Rebalance(/*dry_run=*/false, kAnswerMax);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->summary(), "of server 1");
  EXPECT_EQ(other.orders(), 0) << "it is not to move shards of its job";
}

TEST(CoordinatorClientTest, AnotherJobsCoordinatorIsPassedOver) {
  const Host other("letters", 0);
  const Host ours("digits", 1, /*answers=*/false);
  const auto client = ClientOf({other.endpoint(), ours.endpoint()});
  const auto status = client->GetStatus(absl::Seconds(1));
  EXPECT_EQ(status.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.status().message(),
            absl::StrCat("no coordinator answered at ", other.endpoint(), ", ",
                         ours.endpoint(), " within 1000 ms; at ",
                         other.endpoint(), " is that of job 'letters'"));
  EXPECT_TRUE(client->AskStop("enough").ok());
  EXPECT_TRUE(client->AskStatus().ok());
  while (other.statuses() == 0) absl::SleepFor(absl::Milliseconds(1));
  const auto received = client->Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_FALSE(received->has_value());
  EXPECT_EQ(other.orders(), 0);
}

// Where there is one address only, whoever answers there is told of.
TEST(CoordinatorClientTest, AtTheOnlyAddressTheCoordinatorIsWhoeverAnswers) {
  const Host other("letters", 0);
  const auto status = ClientOf({other.endpoint()})->GetStatus(kAnswerMax);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->view().job(), "letters");
}

TEST(CoordinatorClientTest, OrdersFollowTheCoordinatorToAnotherHost) {
  Host first("digits", 0);
  Host second("digits", 2, /*answers=*/false);
  const auto client = ClientOf({first.endpoint(), second.endpoint()});
  auto plan = client->Rebalance(/*dry_run=*/false, kAnswerMax);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->summary(), "of server 0");
  EXPECT_EQ(second.orders(), 0);
  first.SetAnswers(false);
  second.SetAnswers(true);
  plan = client->Rebalance(/*dry_run=*/false, kAnswerMax);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->summary(), "of server 2");
}

// An inspection that was begun twice would be refused: one timeline at a time.
TEST(CoordinatorClientTest, AQuestionIsOneCallUntilItIsAnswered) {
  std::atomic<bool> answers = false;
  Mutex mutex;
  std::set<uint64_t> calls;
  FakeCoordinator fake([&](const wire::Call& call) {
    const MutexLock lock(mutex);
    calls.insert(call.call_id());
    wire::CallReply reply;
    if (!answers) return reply;  // It is lost.
    reply.set_code(wire::OK);
    reply.mutable_inspection()->set_number(7);
    return reply;
  });
  const auto heard = [&] {
    const MutexLock lock(mutex);
    return calls.size();
  };
  const auto client = ClientOf({fake.endpoint()});
  wire::Inspect timeline;
  timeline.mutable_timeline()->set_ms(1000);
  while (heard() == 0) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(
        client->BeginInspection(timeline, absl::Milliseconds(20)).status()));
  }
  answers = true;
  const auto state = client->BeginInspection(timeline, kAnswerMax);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->number(), 7);
  EXPECT_EQ(heard(), 1);
  // It is answered: this is another one.
  ASSERT_TRUE(client->BeginInspection(timeline, kAnswerMax).ok());
  EXPECT_EQ(heard(), 2);
}

TEST(CoordinatorClientTest, SaysWhereNobodyHasAnswered) {
  const Host silent("digits", 1, /*answers=*/false);
  const auto client = ClientOf({silent.NextDoor(), silent.endpoint()});
  const std::string text =
      absl::StrCat("no coordinator answered at ", silent.NextDoor(), ", ",
                   silent.endpoint(), " within 100 ms");
  // Longer than what is queued at an address where nobody takes it.
  for (int i = 0; i < 20; ++i) {
    const auto status = client->GetStatus(absl::Milliseconds(100));
    EXPECT_EQ(status.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.status().message(), text);
  }
}

// Else it would meet all that was asked since the job has begun.
TEST(CoordinatorClientTest, ACoordinatorThatComesMeetsFewOldCalls) {
  Host first("digits", 0);
  const auto client = ClientOf({first.endpoint(), first.NextDoor()});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(client->GetStatus(kAnswerMax).ok());
  const Host second("digits", 1, /*answers=*/true, first.NextDoor());
  first.SetAnswers(false);
  // Calls come in order, so before this one the old ones have come.
  const auto status = client->GetStatus(kAnswerMax);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->coordinator_server(), 1);
  EXPECT_LE(second.statuses(), 12);
}

}  // namespace slackline::coordinator_client_test
