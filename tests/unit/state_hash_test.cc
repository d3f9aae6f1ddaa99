// Goal: two states have one hash if and only if they are the same, whatever
// memory they lie in.
// Method: a state, and the same with one thing changed at a time.
#include "common/io/state_hash.h"

#include <xxhash.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace slackline::state_hash_test {

Payload Floats(std::vector<float> values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

const std::vector<Payload> kSlots = {Floats({5, 6, 7}), Floats({8, 9, 10})};

TEST(StateHashTest, EqualBitsHaveOneHashWhereverTheyLie) {
  // In the middle of a frame, at an address that no float may have.
  std::vector<char> frame(1 + 3 * sizeof(float));
  const float values[] = {1, 2, 3};
  std::memcpy(frame.data() + 1, values, sizeof(values));
  const Payload unaligned = Payload::Wrap(frame.data() + 1, sizeof(values), 0);
  EXPECT_EQ(StateHash(4, unaligned, kSlots),
            StateHash(4, Floats({1, 2, 3}), kSlots));
}

TEST(StateHashTest, EachPartCounts) {
  std::vector<Payload> other_slot = kSlots;
  other_slot[1] = Floats({8, 9, 10.5});
  const std::set<uint64_t> hashes = {
      StateHash(4, Floats({1, 2, 3}), kSlots),
      StateHash(5, Floats({1, 2, 3}), kSlots),
      StateHash(4, Floats({1, 2, 3.5}), kSlots),
      StateHash(4, Floats({1, 2, 3}), other_slot),
      StateHash(4, Floats({1, 2, 3}), {kSlots[1], kSlots[0]}),
      StateHash(4, Floats({1, 2, 3}), {kSlots[0]}),
      StateHash(4, Floats({1, 2, 3}), {}),
  };
  EXPECT_EQ(hashes.size(), 7u);
}

TEST(StateHashTest, ZeroAndMinusZeroAreDifferentBits) {
  EXPECT_NE(StateHash(0, Floats({0.0f}), {}),
            StateHash(0, Floats({-0.0f}), {}));
}

TEST(StateHashTest, IsXxh3OfVersionValuesAndSlotsInThisOrder) {
  // Long enough for more than one block of XXH3.
  const std::vector<float> values(1000, 1.5f);
  const std::vector<float> slot(1000, -2.5f);
  const uint64_t version = 77;
  std::string all(reinterpret_cast<const char*>(&version), sizeof(version));
  for (const std::vector<float>* const part : {&values, &slot}) {
    all.append(reinterpret_cast<const char*>(part->data()),
               part->size() * sizeof(float));
  }
  EXPECT_EQ(StateHash(version, Floats(values), {Floats(slot)}),
            XXH3_64bits(all.data(), all.size()));
}

TEST(StateHashTest, IsTheSameInPieces) {
  const Payload values = Floats({1, 2, 3});
  StateHasher hasher(4);
  hasher.Add(values.data(), 5);
  hasher.Add(values.data() + 5, 7);
  for (const Payload& slot : kSlots) hasher.Add(slot.data(), slot.size());
  EXPECT_EQ(hasher.Hash(), StateHash(4, values, kSlots));
}

TEST(ModelHashTest, DependsOnEachShardAndTheirOrder) {
  const std::set<uint64_t> hashes = {ModelHash({1, 2}), ModelHash({2, 1}),
                                     ModelHash({1, 3}), ModelHash({1}),
                                     ModelHash({})};
  EXPECT_EQ(hashes.size(), 5u);
}

TEST(ModelHashTest, IsNeverTheNumberThatMeansNone) {
  EXPECT_NE(ModelHash({}), 0u);
  EXPECT_NE(ModelHash({0}), 0u);
}

}  // namespace slackline::state_hash_test
