// Goal: what is loaded into parameters on a GPU arrives whole, in its order
// with the computation, and is read back bit for bit; what is no parameter is
// refused by name, with or without a GPU.
#include "worker/gpu/cuda_parameters.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/must.h"

namespace slackline {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

constexpr int kLarge = 1 << 20;  // Elements: its copy takes a while.

Payload ToPayload(const Floats& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

Floats Counting(size_t count, float first) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

CudaParameters::Parameter At(float* values, const std::string& name,
                             int64_t elements) {
  return {.table = {.name = name, .shape = {elements}, .initializer = {}},
          .values = values};
}

class CudaParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    SL_SKIP_WITHOUT_GPU();
    compute_ = Must(CreateCudaStream());
    large_ = Allocate(kLarge);
    small_ = Allocate(3);
    parameters_ =
        Must(CudaParameters::Create({At(FloatsOf(large_), "large", kLarge),
                                     At(FloatsOf(small_), "small", 3)},
                                    Options()));
  }

  static DeviceMemory Allocate(size_t elements) {
    return Must(AllocateOnDevice(elements * sizeof(float)));
  }
  static float* FloatsOf(const DeviceMemory& memory) {
    return static_cast<float*>(memory.get());
  }
  ParameterTransfers::Options Options() const {
    return {.gpu = 0, .compute = compute_.get(), .timeout = absl::Minutes(1)};
  }
  Floats Read(int table) {
    Floats values(parameters_->parameter(table).size());
    EXPECT_TRUE(parameters_->Read(table, absl::MakeSpan(values)).ok());
    return values;
  }
  // Puts a copy of the table as the computation sees it on its stream.
  DeviceMemory Seen(int table, size_t elements) {
    DeviceMemory seen = Allocate(elements);
    const float* const from =
        table == 0 ? FloatsOf(large_) : FloatsOf(small_);  // parameter() waits.
    EXPECT_EQ(cudaMemcpyAsync(seen.get(), from, elements * sizeof(float),
                              cudaMemcpyDeviceToDevice, compute_.get()),
              cudaSuccess);
    return seen;
  }
  Floats Fetch(const DeviceMemory& memory, size_t elements) {
    Floats values(elements);
    EXPECT_EQ(cudaStreamSynchronize(compute_.get()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), memory.get(), elements * sizeof(float),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

  CudaStream compute_;
  DeviceMemory large_;
  DeviceMemory small_;
  std::unique_ptr<CudaParameters> parameters_;
};

TEST_F(CudaParametersTest, TellsItsTablesAndItsGpu) {
  ASSERT_EQ(parameters_->tables().size(), 2u);
  EXPECT_EQ(parameters_->tables()[1].name(), "small");
  EXPECT_EQ(parameters_->gpu()->index, 0);
  EXPECT_EQ(parameters_->gpu()->stream, compute_.get());
}

TEST_F(CudaParametersTest, WhatIsLoadedInPiecesIsReadBackBitForBit) {
  for (const float first : {1.0f, 5.0f}) {  // Staging memory is used again.
    const Floats all = Counting(kLarge, first);
    const Floats begin(all.begin(), all.begin() + 1000);
    const Floats end(all.begin() + 1000, all.end());
    parameters_->Load(0, 1000, ToPayload(end));
    parameters_->Load(0, 0, ToPayload(begin));
    parameters_->Load(1, 0, ToPayload({first, 8, 9}));
    EXPECT_EQ(Read(0), all);
    EXPECT_EQ(Read(1), (Floats{first, 8, 9}));
  }
  EXPECT_TRUE(parameters_->UseLoaded().ok());
}

TEST_F(CudaParametersTest, LoadsKeepTheirPlaceInTheComputation) {
  std::vector<DeviceMemory> seen;
  for (int step = 0; step < 4; ++step) {
    parameters_->Load(0, 0,
                      ToPayload(Floats(kLarge, static_cast<float>(step))));
    ASSERT_TRUE(parameters_->UseLoaded().ok());
    seen.push_back(Seen(0, kLarge));  // The next load must not overtake it.
  }
  for (int step = 0; step < 4; ++step) {
    EXPECT_THAT(Fetch(seen[static_cast<size_t>(step)], kLarge),
                Each(static_cast<float>(step)));
  }
}

TEST_F(CudaParametersTest, MemoryOfTheHostIsRefusedByName) {
  Floats host(3);
  EXPECT_THAT(std::string(CudaParameters::Create({At(host.data(), "weight", 3)},
                                                 Options())
                              .status()
                              .message()),
              HasSubstr("parameter 'weight': its memory is"));
}

// Without a GPU, too.
TEST(CudaParametersWithoutGpuTest, WhatIsNoParameterIsRefusedByName) {
  float memory = 0;
  const auto create = [&](const std::vector<CudaParameters::Parameter>& all) {
    return CudaParameters::Create(all, {.timeout = absl::Minutes(1)}).status();
  };
  EXPECT_THAT(std::string(create({At(&memory, "a", 0)}).message()),
              HasSubstr("'a': shape is [0]"));
  EXPECT_THAT(
      std::string(create({At(&memory, "a", 1), At(&memory, "a", 1)}).message()),
      HasSubstr("'a': another parameter"));
  if (!WhyNoGpu().empty()) {
    EXPECT_EQ(create({At(&memory, "a", 1)}).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace slackline
