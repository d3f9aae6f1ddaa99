// Goal: a value reaches whoever asks for it, before or after, within its group,
// and nothing of a group outlives it. Method: a few calls, by hand.
#include "server/coordinator/group_store.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::group_store_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GroupStoreTest : public ::testing::Test {
 protected:
  GroupStoreTest() { BeginGroup(5); }

  static GroupStore::Caller Of(int rank, uint64_t id) {
    return {.peer = {.kind = PeerId::Kind::kWorker, .index = rank},
            .call_id = id,
            .incarnation = 10u + rank};
  }
  // "0.1 OK value", one for each answer.
  std::vector<std::string> Take() {
    std::vector<std::string> texts;
    for (const GroupStore::Answer& answer : answers_) {
      texts.push_back(absl::StrCat(
          answer.to.peer.index, ".", answer.to.call_id, " ",
          wire::Code_Name(answer.code), answer.error.empty() ? "" : " ",
          answer.error, answer.has_value ? " " : "",
          std::string(reinterpret_cast<const char*>(answer.value.data()),
                      answer.value.size())));
    }
    answers_.clear();
    return texts;
  }
  std::vector<std::string> Put(int rank, uint64_t id, uint64_t group,
                               const std::string& key,
                               const std::string& value) {
    store_.Put(Of(rank, id), group, key,
               Payload::Copy(value.data(), value.size()), &answers_);
    return Take();
  }
  std::vector<std::string> Get(int rank, uint64_t id, uint64_t group,
                               const std::string& key) {
    store_.Get(Of(rank, id), group, key, &answers_);
    return Take();
  }
  std::vector<std::string> BeginGroup(uint64_t group) {
    store_.BeginGroup(group, &answers_);
    return Take();
  }

  GroupStore store_{{.bytes_max = 100, .waiting_max = 3}};
  std::vector<GroupStore::Answer> answers_;
};

TEST_F(GroupStoreTest, AValueIsFoundWhicheverComesFirst) {
  EXPECT_THAT(Put(0, 1, 5, "a", "one"), ElementsAre("0.1 OK"));
  EXPECT_THAT(Get(1, 1, 5, "a"), ElementsAre("1.1 OK one"));
  EXPECT_THAT(Get(1, 2, 5, "b"), IsEmpty());
  EXPECT_THAT(Get(1, 2, 5, "b"), IsEmpty()) << "repeated";
  EXPECT_THAT(Get(2, 7, 5, "b"), IsEmpty());
  EXPECT_THAT(Put(0, 2, 5, "b", "two"),
              ElementsAre("0.2 OK", "1.2 OK two", "2.7 OK two"));
  EXPECT_EQ(store_.waiting(), 0);
  EXPECT_THAT(Put(0, 2, 5, "b", "new"), ElementsAre("0.2 OK"));
  EXPECT_THAT(Get(1, 2, 5, "b"), ElementsAre("1.2 OK two"))
      << "the first value stays";
}

TEST_F(GroupStoreTest, KeysAndGetsGoWithTheirGroup) {
  Put(0, 1, 5, "a", "one");
  Get(1, 1, 5, "b");
  EXPECT_THAT(BeginGroup(5), IsEmpty());
  EXPECT_EQ(store_.waiting(), 1);
  EXPECT_THAT(
      BeginGroup(8),
      ElementsAre("1.1 REJECTED the group is over; the present one is 8"));
  EXPECT_EQ(store_.bytes(), 0);
  EXPECT_EQ(store_.waiting(), 0);
  EXPECT_THAT(Get(1, 2, 8, "a"), IsEmpty()) << "of the group before";
}

TEST_F(GroupStoreTest, ALateCallOfAnotherGroupIsRefused) {
  BeginGroup(8);
  EXPECT_THAT(Put(0, 1, 5, "a", "one"),
              ElementsAre("0.1 REJECTED group 5 is over; the present one is "
                          "8"));
  EXPECT_THAT(Get(0, 2, 5, "a"),
              ElementsAre(HasSubstr("0.2 REJECTED group 5 is over")));
  EXPECT_EQ(store_.bytes(), 0);
}

TEST_F(GroupStoreTest, WhoIsGoneWaitsForNothing) {
  Get(1, 1, 5, "a");
  Get(2, 1, 5, "a");
  store_.Forget(11);
  EXPECT_EQ(store_.waiting(), 1);
  EXPECT_THAT(Put(0, 1, 5, "a", "one"), ElementsAre("0.1 OK", "2.1 OK one"));
}

TEST_F(GroupStoreTest, BoundsAreKept) {
  EXPECT_THAT(Put(0, 1, 5, "a", std::string(100, 'x')),
              ElementsAre("0.1 REJECTED the rendezvous store holds 0 bytes, "
                          "101 more exceed its bound of 100"));
  Put(0, 2, 5, "b", std::string(99, 'x'));
  EXPECT_THAT(Put(0, 3, 5, "c", ""), ElementsAre(HasSubstr("1 more exceed")));
  for (uint64_t id = 1; id <= 3; ++id) Get(1, id, 5, absl::StrCat("key", id));
  EXPECT_THAT(Get(2, 9, 5, "key9"),
              ElementsAre("2.9 RETRY too many calls wait already"));
  EXPECT_THAT(Get(1, 2, 5, "key2"), IsEmpty()) << "it waits already";
  EXPECT_THAT(Put(0, 4, 5, std::string(257, 'k'), ""),
              ElementsAre(HasSubstr("has 257 bytes; at most 256")));
}

}  // namespace slackline::group_store_test
