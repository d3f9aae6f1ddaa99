#include "worker/collective/gradient_buckets.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::gradient_buckets_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GradientBuckets Make(std::vector<int64_t> table_elements,
                     int64_t bucket_bytes) {
  absl::StatusOr<GradientBuckets> buckets = GradientBuckets::Create(
      {.table_elements = table_elements, .bucket_bytes = bucket_bytes});
  EXPECT_TRUE(buckets.ok()) << buckets.status();
  return *std::move(buckets);
}

Payload Gradient(const std::vector<float>& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

Payload Filled(int64_t elements, float value) {
  return Gradient(std::vector<float>(elements, value));
}

TEST(GradientBuckets, FillsBucketsLastTableFirst) {
  // 40 floats a bucket, 5 in the first.
  GradientBuckets buckets = Make({10, 20, 20, 3, 2}, 160);
  ASSERT_EQ(buckets.bucket_count(), 3);
  EXPECT_EQ(buckets.bucket(0).size(), 5u);
  EXPECT_EQ(buckets.bucket(1).size(), 40u);
  EXPECT_EQ(buckets.bucket(2).size(), 10u);
  EXPECT_EQ(buckets.PlaceOf(TableId{4}).bucket, 0);
  EXPECT_EQ(buckets.PlaceOf(TableId{4}).offset, 0);
  EXPECT_EQ(buckets.PlaceOf(TableId{3}).bucket, 0);
  EXPECT_EQ(buckets.PlaceOf(TableId{3}).offset, 2);
  EXPECT_EQ(buckets.PlaceOf(TableId{2}).bucket, 1);
  EXPECT_EQ(buckets.PlaceOf(TableId{1}).offset, 20);
  EXPECT_EQ(buckets.PlaceOf(TableId{0}).bucket, 2);
}

TEST(GradientBuckets, HasOneBucketWhereItHasRoomForAll) {
  EXPECT_EQ(Make({10, 20, 10}, 160).bucket_count(), 1);
  EXPECT_EQ(Make({10, 20, 11}, 160).bucket_count(), 2);
}

TEST(GradientBuckets, GivesATableLargerThanABucketItsOwn) {
  GradientBuckets buckets = Make({1, 1000, 1}, 64);
  ASSERT_EQ(buckets.bucket_count(), 3);
  EXPECT_EQ(buckets.bucket(1).size(), 1000u);
}

TEST(GradientBuckets, IssuesABucketOnlyAfterThoseBeforeIt) {
  GradientBuckets buckets = Make({100, 100, 100}, 400);
  ASSERT_EQ(buckets.bucket_count(), 3);
  std::vector<int> issue;
  ASSERT_TRUE(buckets.Add(TableId{0}, Filled(100, 1), &issue).ok());
  ASSERT_TRUE(buckets.Add(TableId{1}, Filled(100, 2), &issue).ok());
  EXPECT_THAT(issue, IsEmpty());
  EXPECT_FALSE(buckets.AllIssued());
  ASSERT_TRUE(buckets.Add(TableId{2}, Filled(100, 3), &issue).ok());
  EXPECT_THAT(issue, ElementsAre(0, 1, 2));
  EXPECT_TRUE(buckets.AllIssued());
}

TEST(GradientBuckets, HasTablesOfOneLaneInABucket) {
  constexpr Lane r = Lane::kRanks;
  constexpr Lane s = Lane::kServers;
  absl::StatusOr<GradientBuckets> buckets =
      GradientBuckets::Create({.table_elements = {4, 20, 4, 20, 4, 20},
                               .bucket_bytes = 160,
                               .lanes = {r, s, r, s, r, s}});
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  ASSERT_EQ(buckets->bucket_count(), 3);
  EXPECT_EQ(buckets->LaneOf(0), s);  // The last table: more than an eighth.
  EXPECT_EQ(buckets->bucket(0).size(), 20u);
  EXPECT_EQ(buckets->LaneOf(1), r);
  EXPECT_EQ(buckets->bucket(1).size(), 12u);
  EXPECT_EQ(buckets->LaneOf(2), s);
  EXPECT_EQ(buckets->bucket(2).size(), 40u);
  // In the order of backward; a bucket still waits for those before it.
  std::vector<int> issue;
  for (const int table : {5, 4, 3, 2, 1}) {
    ASSERT_TRUE(
        buckets->Add(TableId{table}, Filled(table % 2 == 0 ? 4 : 20, 1), &issue)
            .ok());
  }
  EXPECT_THAT(issue, ElementsAre(0));
  ASSERT_TRUE(buckets->Add(TableId{0}, Filled(4, 1), &issue).ok());
  EXPECT_THAT(issue, ElementsAre(0, 1, 2));
  EXPECT_FALSE(
      GradientBuckets::Create(
          {.table_elements = {4, 4}, .bucket_bytes = 160, .lanes = {r}})
          .ok());
}

TEST(GradientBuckets, RefusesWhatDoesNotFitAndChangesNothing) {
  GradientBuckets buckets = Make({4, 8}, 1024);
  std::vector<int> issue;
  const absl::Status unknown = buckets.Add(TableId{2}, Filled(4, 1), &issue);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("table 2"));
  EXPECT_EQ(buckets.Add(TableId{-1}, Filled(4, 1), &issue).code(),
            absl::StatusCode::kOutOfRange);

  const absl::Status wrong_size = buckets.Add(TableId{1}, Filled(4, 1), &issue);
  EXPECT_EQ(wrong_size.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong_size.message()),
              HasSubstr("it has 16 bytes, 32 are required"));

  ASSERT_TRUE(buckets.Add(TableId{0}, Filled(4, 5), &issue).ok());
  EXPECT_EQ(buckets.Add(TableId{0}, Filled(4, 6), &issue).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(buckets.Gradient(TableId{0}), ElementsAre(5, 5, 5, 5));
  const int issued_before = static_cast<int>(issue.size());
  ASSERT_TRUE(buckets.Add(TableId{1}, Filled(8, 7), &issue).ok());
  EXPECT_GT(issue.size(), issued_before);
  EXPECT_TRUE(buckets.AllIssued());
}

TEST(GradientBuckets, BeginStepForgetsAnUnfinishedStep) {
  GradientBuckets buckets = Make({4, 4}, 1024);
  std::vector<int> issue;
  ASSERT_TRUE(buckets.Add(TableId{1}, Filled(4, 1), &issue).ok());
  buckets.BeginStep();
  issue.clear();
  ASSERT_TRUE(buckets.Add(TableId{0}, Filled(4, 2), &issue).ok());
  EXPECT_FALSE(buckets.AllIssued());
  ASSERT_TRUE(buckets.Add(TableId{1}, Filled(4, 3), &issue).ok());
  EXPECT_TRUE(buckets.AllIssued());
  EXPECT_THAT(buckets.Gradient(TableId{1}), ElementsAre(3, 3, 3, 3));
}

TEST(GradientBuckets, ReadsGradientsOfAnyAlignment) {
  const std::vector<float> values = {1, 2, 3};
  std::vector<char> bytes(1 + sizeof(float) * values.size());
  std::memcpy(bytes.data() + 1, values.data(), sizeof(float) * values.size());
  const Payload payload = Payload::Copy(bytes.data(), bytes.size());
  GradientBuckets buckets = Make({3}, 1024);
  std::vector<int> issue;
  ASSERT_TRUE(
      buckets.Add(TableId{0}, payload.Slice(1, payload.size() - 1), &issue)
          .ok());
  EXPECT_THAT(buckets.Gradient(TableId{0}), ElementsAre(1, 2, 3));
}

TEST(GradientBuckets, RefusesImpossibleOptions) {
  const auto message = [](std::vector<int64_t> table_elements,
                          int64_t bucket_bytes) {
    const absl::Status status =
        GradientBuckets::Create({table_elements, bucket_bytes}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({1}, 3), HasSubstr("bucket_bytes"));
  EXPECT_THAT(message({}, 4), HasSubstr("table_elements"));
  EXPECT_THAT(message({1, 0}, 4), HasSubstr("table_elements[1]"));
}

// Does it the slow way: says from all gradients seen so far which buckets are
// complete, and keeps each gradient by itself.
class NaiveBuckets {
 public:
  NaiveBuckets(const std::vector<int64_t>& elements, int64_t bucket_bytes) {
    int64_t bytes = 0;
    for (int table = static_cast<int>(elements.size()) - 1; table >= 0;
         --table) {
      const int64_t table_bytes = elements[table] * 4;
      const int64_t all_bytes =
          4 * std::accumulate(elements.begin(), elements.end(), int64_t{0});
      const bool first = tables_.size() == 1 && all_bytes > bucket_bytes;
      const int64_t bytes_max =
          first ? bucket_bytes / 4 / 8 * 4 : bucket_bytes / 4 * 4;
      if (tables_.empty() || bytes + table_bytes > bytes_max) {
        tables_.emplace_back();
        bytes = 0;
      }
      tables_.back().push_back(table);
      bytes += table_bytes;
    }
    gradients_.resize(elements.size());
  }
  void BeginStep() {
    for (std::vector<float>& gradient : gradients_) gradient.clear();
  }
  void Add(int table, const std::vector<float>& gradient) {
    gradients_[table] = gradient;
  }
  int CompleteFromTheFirst() const {
    int count = 0;
    for (const std::vector<int>& tables : tables_) {
      for (const int table : tables) {
        if (gradients_[table].empty()) return count;
      }
      ++count;
    }
    return count;
  }
  std::vector<float> Bucket(int index) const {
    std::vector<float> values;
    for (const int table : tables_[index]) {
      values.insert(values.end(), gradients_[table].begin(),
                    gradients_[table].end());
    }
    return values;
  }
  int bucket_count() const { return static_cast<int>(tables_.size()); }

 private:
  std::vector<std::vector<int>> tables_;  // By bucket.
  std::vector<std::vector<float>> gradients_;
};

TEST(GradientBuckets, AgreesWithANaiveTwinInAnyOrderOfCompletion) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    std::vector<int64_t> elements(rng.Between(1, 12));
    for (int64_t& count : elements) count = rng.Between(1, 60);
    const int64_t bucket_bytes = rng.Between(4, 800);
    GradientBuckets buckets = Make(elements, bucket_bytes);
    NaiveBuckets naive(elements, bucket_bytes);
    ASSERT_EQ(buckets.bucket_count(), naive.bucket_count());

    for (int step = 0; step < 3; ++step) {
      if (step > 0) buckets.BeginStep();
      naive.BeginStep();
      std::vector<int> order(elements.size());
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[rng.Below(i)]);
      }
      std::vector<int> issued;
      for (const int table : order) {
        std::vector<float> gradient(elements[table]);
        for (float& value : gradient) value = static_cast<float>(rng.Uniform());
        naive.Add(table, gradient);
        ASSERT_TRUE(
            buckets.Add(TableId{table}, Gradient(gradient), &issued).ok());
        ASSERT_EQ(issued.size(), naive.CompleteFromTheFirst());
        ASSERT_EQ(buckets.AllIssued(),
                  static_cast<int>(issued.size()) == naive.bucket_count());
      }
      ASSERT_TRUE(buckets.AllIssued());
      for (int i = 0; i < naive.bucket_count(); ++i) {
        ASSERT_EQ(issued[i], i);
        ASSERT_THAT(buckets.bucket(i),
                    ::testing::ElementsAreArray(naive.Bucket(i)));
      }
    }
  }
}

}  // namespace slackline::gradient_buckets_test
