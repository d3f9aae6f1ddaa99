// Goal: a region says of its size, its overlaps and its splits what the set of
// its elements says.
// Method: random regions of a small table against sets.
#include "common/region.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::region_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Elements = std::set<int64_t>;

constexpr int64_t kTable = 12;

Elements Of(const Region& region) {
  Elements elements;
  for (int64_t i = 0; i < kTable; ++i) {
    if (i >= region.begin() && i < region.end()) elements.insert(i);
  }
  return elements;
}

Elements Common(const Elements& a, const Elements& b) {
  Elements common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::inserter(common, common.end()));
  return common;
}

Region Random(Rng& rng) {
  const int64_t begin = rng.Between(0, kTable);
  return {begin, rng.Between(begin, kTable)};
}

class RegionTest : public ::testing::TestWithParam<int> {};

TEST_P(RegionTest, IsWhatItsSetOfElementsIs) {
  Rng rng(static_cast<uint64_t>(GetParam()));
  for (int round = 0; round < 100; ++round) {
    const Region a = Random(rng);
    const Region b = Random(rng);
    SCOPED_TRACE(absl::StrCat(a.Text(), " and ", b.Text()));
    const Elements in_a = Of(a);
    const Elements in_b = Of(b);
    EXPECT_EQ(a.size(), static_cast<int64_t>(in_a.size()));
    EXPECT_EQ(a.empty(), in_a.empty());
    EXPECT_EQ(a.DenseBytes(), in_a.size() * sizeof(float));
    const Elements common = Common(in_a, in_b);
    EXPECT_EQ(Of(a.Overlap(b)), common);
    EXPECT_EQ(a.Overlaps(b), !common.empty());
    EXPECT_EQ(a.Contains(b), !in_b.empty() && common == in_b);
    if (a.Contains(b)) {
      EXPECT_EQ(a.DenseOffset(b),
                sizeof(float) *
                    std::distance(in_a.begin(), in_a.find(*in_b.begin())));
    }
    if (!in_a.empty() && !in_b.empty()) {
      EXPECT_EQ(a == b, in_a == in_b);
      if (*in_a.begin() != *in_b.begin()) {
        EXPECT_EQ(a < b, *in_a.begin() < *in_b.begin());
      }
    }
  }
}

TEST_P(RegionTest, IsSplitIntoWhatIsBeforeAndTheRest) {
  Rng rng(static_cast<uint64_t>(GetParam()));
  for (int round = 0; round < 100; ++round) {
    const Region whole = Random(rng);
    const int64_t at = rng.Between(-1, kTable + 1);
    SCOPED_TRACE(absl::StrCat(whole.Text(), " at ", at));
    Elements before;
    Elements rest;
    for (const int64_t element : Of(whole))
      (element < at ? before : rest).insert(element);
    EXPECT_EQ(whole.CanBeSplit(at), !before.empty() && !rest.empty());
    if (!whole.CanBeSplit(at)) continue;
    EXPECT_EQ(Of(whole.SplitAt(at).first), before);
    EXPECT_EQ(Of(whole.SplitAt(at).second), rest);
    EXPECT_EQ(whole.SplitAfter(static_cast<int64_t>(before.size())),
              whole.SplitAt(at));
  }
}

TEST_P(RegionTest, HasEachElementInOnePiece) {
  Rng rng(static_cast<uint64_t>(GetParam()));
  for (int round = 0; round < 100; ++round) {
    const Region whole = Random(rng);
    const int64_t size = rng.Between(1, kTable + 2);
    SCOPED_TRACE(absl::StrCat(whole.Text(), " in pieces of ", size));
    std::vector<int64_t> elements;
    const std::vector<Region> pieces = whole.Pieces(size);
    for (const Region& piece : pieces) {
      EXPECT_FALSE(piece.empty());
      if (piece.end() < whole.end()) {
        EXPECT_EQ(piece.size(), size);
      }
      for (int64_t i = piece.begin(); i < piece.end(); ++i)
        elements.push_back(i);
    }
    const Elements all = Of(whole);
    EXPECT_EQ(elements, std::vector<int64_t>(all.begin(), all.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RegionTest, ::testing::Range(0, 50));

TEST(RegionTextTest, IsWhatShardsAreNamedBy) {
  EXPECT_EQ(Region(65536, 131072).Text(), "[65536, 131072)");
  EXPECT_EQ(Region::First(3), Region(0, 3));
  EXPECT_THAT(Region().Pieces(1), IsEmpty());
}

// What a damaged file or a hostile message may name.
TEST(RegionBoundsTest, AnyTwoNumbersMayBeAskedAbout) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const Region table = Region::First(100);
  for (const Region& none : {Region(kMin, kMax), Region(kMax, kMin),
                             Region(-1, 5), Region(95, 101), Region(7, 7)}) {
    EXPECT_FALSE(table.Contains(none)) << none.Text();
  }
  EXPECT_FALSE(table.Overlaps(Region(kMax, kMin)));
  EXPECT_EQ(table.Overlap(Region(kMin, kMax)), table);
  EXPECT_FALSE(table.CanBeSplit(kMin));
  EXPECT_FALSE(table.CanBeSplit(kMax));
  EXPECT_THAT(Region::First(kMax).Pieces(kMax - 1),
              ElementsAre(Region(0, kMax - 1), Region(kMax - 1, kMax)));
}

}  // namespace slackline::region_test
