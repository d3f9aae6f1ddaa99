// Goal: sync is sync. BSP over servers, ring all-reduce, and one process with
// the batches of all workers are the same computation but for the order in
// which gradients are summed, so their models agree to rounding. Through shared
// memory the order is that of servers, so the bits are, too.
// Method: 100 steps of SGD with momentum from one seed, on the same examples.
// Compared is each tensor of the final models, by RelativeDifference().
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::equivalence_test {

constexpr double kRoundingMax = 1e-5;

class Equivalence : public JobTest {
 protected:
  std::vector<Tensor> Train(const std::string& name,
                            std::vector<std::string> arguments) {
    arguments.push_back("--set=train.max_steps=100");
    Run(name, Write(absl::StrCat(name, ".textproto"), SmallJob()), arguments);
    EXPECT_EQ(ReadJson(Path(name) + "/summary.json").value("steps", 0), 100);
    return ReadModel(Path(name));
  }

  void ExpectAgree(const std::string& what, const std::vector<Tensor>& model,
                   const std::vector<Tensor>& reference) {
    ASSERT_EQ(model.size(), reference.size()) << what;
    for (size_t t = 0; t < model.size(); ++t) {
      const std::string name = absl::StrCat(what, ": ", reference[t].name);
      ASSERT_EQ(model[t].name, reference[t].name) << name;
      ASSERT_EQ(model[t].shape, reference[t].shape) << name;
      const double difference = RelativeDifference(model[t], reference[t]);
      EXPECT_LE(difference, kRoundingMax) << name;
      std::printf("%s: relative difference %.2g\n", name.c_str(), difference);
    }
  }
};

TEST_F(Equivalence, BspAllReduceAndOneProcessAgreeAfter100Steps) {
  const std::vector<Tensor> one_process = Train(
      "one",
      {"--mode=bsp", "--set=worker[0].count=1", "--set=data.batch_size=80"});
  const std::vector<Tensor> bsp = Train("bsp", {"--mode=bsp"});
  const std::vector<Tensor> all_reduce =
      Train("ring", {"--mode=allreduce", "--set=limits.transport=TCP"});
  const std::vector<Tensor> in_memory = Train("memory", {"--mode=allreduce"});
  ASSERT_EQ(one_process.size(), 4) << "weights and biases of two layers";
  ExpectAgree("BSP and one process", bsp, one_process);
  ExpectAgree("all-reduce and one process", all_reduce, one_process);
  ExpectAgree("BSP and all-reduce", bsp, all_reduce);
  EXPECT_EQ(ModelSha256(in_memory), ModelSha256(bsp));
}

TEST_F(Equivalence, AnotherSeedDoesNotAgree) {
  const std::vector<Tensor> model = Train("one", {"--mode=bsp"});
  const std::vector<Tensor> other = Train("other", {"--mode=bsp", "--seed=2"});
  ASSERT_EQ(model.size(), other.size());
  EXPECT_GT(RelativeDifference(model[0], other[0]), 100 * kRoundingMax);
}

}  // namespace slackline::equivalence_test
