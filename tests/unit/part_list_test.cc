// Goal: parts are asked in the order of the list, a part has its turn only when
// those before it have nothing left to conclude, and that comes to an end.
// Method: parts that write down what they are asked.
#include "server/coordinator/part_list.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace slackline::part_list_test {

class NotingPart : public CoordinatorPart {
 public:
  NotingPart(std::string name, std::vector<std::string>* notes)
      : name_(std::move(name)), notes_(notes) {}

  bool Advance(const Moment&, CoordinatorEffects*) override {
    notes_->push_back(name_);
    if (news == 0) return false;
    --news;
    return true;
  }
  void OnNews() override { notes_->push_back(absl::StrCat(name_, "!")); }
  WakeUp NextWakeUp() const override { return wake_up; }
  absl::Status Load(const StateReader&, const Moment&,
                    CoordinatorEffects*) override {
    notes_->push_back(name_);
    return loaded;
  }

  int news = 0;  // How often it still has news.
  WakeUp wake_up;
  absl::Status loaded;

 private:
  const std::string name_;
  std::vector<std::string>* const notes_;
};

class PartListTest : public testing::Test {
 protected:
  std::string Advance() {
    notes_.clear();
    list_.Advance(Moment(), &effects_);
    return absl::StrJoin(notes_, " ");
  }

  std::vector<std::string> notes_;
  NotingPart a_{"a", &notes_};
  NotingPart b_{"b", &notes_};
  NotingPart c_{"c", &notes_};
  PartList list_{{&a_, &b_, &c_}};
  CoordinatorEffects effects_;
};

TEST_F(PartListTest, WithoutNewsEachIsAskedOnceInItsOrder) {
  EXPECT_EQ(Advance(), "a b c");
}

TEST_F(PartListTest, AfterNewsAllAreToldAndTheFirstIsAskedNext) {
  b_.news = 1;
  EXPECT_EQ(Advance(), "a b a! b! c! a b c");
}

TEST_F(PartListTest, ALaterPartWaitsUntilThoseBeforeItHaveNoNews) {
  a_.news = 2;
  c_.news = 1;
  EXPECT_EQ(Advance(), "a a! b! c! a a! b! c! a b c a! b! c! a b c");
}

TEST_F(PartListTest, NewsWithoutEndIsABug) {
  b_.news = PartList::kNewsMax;
  Advance();
  EXPECT_EQ(b_.news, 0);
  b_.news = PartList::kNewsMax + 1;
  EXPECT_DEATH(Advance(), "find no end");
}

TEST_F(PartListTest, TheEarliestTimeOfEachClockCounts) {
  EXPECT_EQ(list_.NextWakeUp().at, absl::InfiniteFuture());
  const absl::Time now = absl::UnixEpoch();
  a_.wake_up.at = now + absl::Seconds(3);
  b_.wake_up = {.at = now + absl::Seconds(2), .awake = now + absl::Seconds(9)};
  c_.wake_up.awake = now + absl::Seconds(8);
  EXPECT_EQ(list_.NextWakeUp().at, now + absl::Seconds(2));
  EXPECT_EQ(list_.NextWakeUp().awake, now + absl::Seconds(8));
}

TEST_F(PartListTest, NothingIsLoadedAfterWhatCannotBe) {
  b_.loaded = absl::DataLossError("broken");
  const CoordinatorState state;
  EXPECT_EQ(list_.Load(StateReader(state), Moment(), &effects_).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(absl::StrJoin(notes_, " "), "a b");
}

}  // namespace slackline::part_list_test
