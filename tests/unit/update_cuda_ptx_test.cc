// Goal: on a GPU an update is computed with the operations of the CPU, each
// rounded by itself. Their bits are compared in tests/gpu; this one needs no
// GPU.
// Method: looks at the instructions that nvcc made of the kernels.
#include <fstream>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::update_cuda_ptx_test {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Instructions with their types, as "add.rn.f32", each once.
std::set<std::string> Instructions() {
  std::ifstream file(SLACKLINE_UPDATE_PTX);
  std::set<std::string> words;
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos) words.insert(word);
  }
  return words;
}

TEST(UpdateCudaPtxTest, OperationsAreRoundedOneByOneAndCorrectly) {
  const std::set<std::string> instructions = Instructions();
  for (const char* exact : {"add.rn.f32", "sub.rn.f32", "mul.rn.f32",
                            "div.rn.f32", "sqrt.rn.f32"}) {
    EXPECT_THAT(instructions, Contains(exact));
  }
  // Fused, possibly fused later, approximate, or flushing subnormals.
  EXPECT_THAT(instructions,
              Not(Contains(AnyOf(StartsWith("fma."), StartsWith("mad.f32"),
                                 StartsWith("add.f32"), StartsWith("sub.f32"),
                                 StartsWith("mul.f32"), HasSubstr(".approx"),
                                 HasSubstr(".full"), HasSubstr(".ftz")))));
}

TEST(UpdateCudaPtxTest, AlignedArraysAreReadAndWrittenFourFloatsAtATime) {
  const std::set<std::string> instructions = Instructions();
  EXPECT_THAT(instructions, Contains(StartsWith("ld.global.v4.")));
  EXPECT_THAT(instructions, Contains(StartsWith("st.global.v4.")));
}

}  // namespace slackline::update_cuda_ptx_test
