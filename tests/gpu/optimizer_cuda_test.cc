// Goal: an update on a GPU leaves the bits that the CPU leaves.
// Method: the same piece of memory on both; all of it is compared, so that a
// write outside of an array shows, too.
#include "common/optim/optimizer_cuda.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/optimizers.h"
#include "tests/support/update_case.h"

namespace slackline {
namespace {

class OptimizerCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SL_SKIP_WITHOUT_GPU();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
  }
  void TearDown() override {
    cudaFree(memory_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Leaves in `c` what a GPU makes of it.
  void ApplyOnGpu(const Optimizer& optimizer, UpdateCase* c) {
    if (c->bytes() > bytes_) {
      cudaFree(memory_);
      bytes_ = c->bytes();
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes_),
                cudaSuccess);
    }
    ASSERT_EQ(cudaMemcpyAsync(memory_, c->floats(), c->bytes(),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    std::vector<const std::byte*> pointers;
    const absl::Status status =
        ApplyAsync(optimizer, c->ArgsAt(memory_, &pointers), stream_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaMemcpyAsync(c->floats(), memory_, c->bytes(),
                              cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  void ExpectBitsOfApply(const Optimizer& optimizer, UpdateCase actual) {
    UpdateCase expected = actual;
    std::vector<const std::byte*> pointers;
    optimizer.Apply(expected.ArgsAt(expected.floats(), &pointers));
    ASSERT_NO_FATAL_FAILURE(ApplyOnGpu(optimizer, &actual));
    if (std::memcmp(expected.floats(), actual.floats(), expected.bytes()) ==
        0) {
      return;
    }
    size_t at = 0;
    while (std::memcmp(expected.floats() + at, actual.floats() + at,
                       sizeof(float)) == 0) {
      ++at;
    }
    ADD_FAILURE() << "float " << at << " is " << actual.floats()[at]
                  << " after the update on the GPU and "
                  << expected.floats()[at] << " after that on the CPU; in at "
                  << actual.in << ", out at " << actual.out << ", slots at "
                  << actual.slots[0] << " and " << actual.slots[1]
                  << ", elements " << actual.elements;
  }

  cudaStream_t stream_ = nullptr;
  float* memory_ = nullptr;
  size_t bytes_ = 0;
};

TEST_F(OptimizerCudaTest, AnyLengthAtAnyAlignmentGivesTheBitsOfApply) {
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(absl::StrCat(text, " seed ", seed));
      Rng rng(seed);
      const size_t elements = seed <= 30 ? seed / 3 : rng.Between(1, 5000);
      const size_t gradients = rng.Chance(0.8) ? rng.Between(1, 3) : 64;
      ASSERT_NO_FATAL_FAILURE(ExpectBitsOfApply(
          optimizer, MakeUpdateCase(rng, elements, gradients,
                                    static_cast<Layout>(seed % 3))));
    }
  }
}

// Division and square root near the ends of their range, subnormals included.
TEST_F(OptimizerCudaTest, TinyAndHugeNumbersGiveTheBitsOfApply) {
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    for (const float factor : {1e-42f, 1e-38f, 1e-22f, 1e-19f, 1e15f}) {
      SCOPED_TRACE(absl::StrCat(text, " factor ", factor));
      Rng rng(1);
      UpdateCase c = MakeUpdateCase(rng, 20000, 1, Layout::kAligned);
      for (size_t i = 0; i < 4 * c.memory.size(); ++i) c.floats()[i] *= factor;
      ASSERT_NO_FATAL_FAILURE(ExpectBitsOfApply(optimizer, c));
    }
  }
}

// More elements than the kernel has threads, in vectors and one by one.
TEST_F(OptimizerCudaTest, MoreElementsThanThreadsGiveTheBitsOfApply) {
  const Optimizer optimizer = MakeOptimizer("momentum { learning_rate: 0.1 }");
  Rng rng(1);
  ExpectBitsOfApply(optimizer, MakeUpdateCase(rng, (size_t{1} << 23) + 12345, 1,
                                              Layout::kScattered));
  UpdateCase c =
      MakeUpdateCase(rng, (size_t{1} << 25) + 12345, 1, Layout::kAligned);
  ExpectBitsOfApply(optimizer, std::move(c));
}

TEST_F(OptimizerCudaTest, ManyUpdatesInARowGiveTheBitsOfApply) {
  for (const std::string& text : OptimizerTexts()) {
    SCOPED_TRACE(text);
    const Optimizer optimizer = MakeOptimizer(text);
    Rng rng(3);
    UpdateCase expected = MakeUpdateCase(rng, 1003, 2, Layout::kEquallyShifted);
    expected.out = expected.in;
    UpdateCase actual = expected;
    std::vector<const std::byte*> pointers;
    for (int64_t update = 1; update <= 50; ++update) {
      expected.update_count = actual.update_count = update;
      optimizer.Apply(expected.ArgsAt(expected.floats(), &pointers));
      ASSERT_NO_FATAL_FAILURE(ApplyOnGpu(optimizer, &actual));
    }
    EXPECT_EQ(std::memcmp(expected.floats(), actual.floats(), expected.bytes()),
              0);
  }
}

}  // namespace
}  // namespace slackline
