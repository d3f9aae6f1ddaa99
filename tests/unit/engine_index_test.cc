// Goal: --index=auto takes the engine's number, and nothing that is not one.
// Method: environments as engines make them.
#include "common/process/engine_index.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::engine_index_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kKubernetes[] = "KUBERNETES_SERVICE_HOST";

TEST(EngineIndexTest, TakesTheNumberOfTheEngine) {
  const struct {
    EngineFacts facts;
    int index;
    const char* from;
  } cases[] = {
      {{{{"SLURM_PROCID", "3"}}, "node-7"}, 3, "SLURM_PROCID=3"},
      {{{{"JOB_COMPLETION_INDEX", "0"}, {kKubernetes, "10.0.0.1"}}, "a-0-1"},
       0,
       "JOB_COMPLETION_INDEX=0"},
      {{{{"OMPI_COMM_WORLD_RANK", "12"}}, "x"}, 12, "OMPI_COMM_WORLD_RANK=12"},
      {{{{"PMI_RANK", "1"}, {"SLURM_PROCID", "1"}}, "x"}, 1, "SLURM_PROCID=1"},
      {{{{kKubernetes, "10.0.0.1"}}, "server-2"},
       2,
       "the host's name, server-2"},
      {{{{kKubernetes, "10.0.0.1"}}, "a-b-10.svc.cluster-3.local"},
       10,
       "the host's name, a-b-10.svc.cluster-3.local"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.from);
    const auto index = IndexOfEngine(each.facts);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->index, each.index);
    EXPECT_EQ(index->from, each.from);
  }
}

TEST(EngineIndexTest, RefusesWhatIsNoneByName) {
  const auto why = [](const EngineFacts& facts) {
    return std::string(IndexOfEngine(facts).status().message());
  };
  // A host may be called so by chance.
  EXPECT_THAT(why({{}, "node-7"}),
              AllOf(HasSubstr("SLURM_PROCID, JOB_COMPLETION_INDEX, "
                              "OMPI_COMM_WORLD_RANK, PMI_RANK"),
                    HasSubstr("no container of Kubernetes"),
                    HasSubstr("give --index a number")));
  EXPECT_THAT(why({{{kKubernetes, "10.0.0.1"}}, "server"}),
              HasSubstr("'server', does not end in the ordinal"));
  EXPECT_THAT(why({{{kKubernetes, "10.0.0.1"}}, "server-2x"}),
              HasSubstr("'server-2x', does not end in the ordinal"));
  EXPECT_THAT(why({{{"SLURM_PROCID", "1"}, {"OMPI_COMM_WORLD_RANK", "2"}}, ""}),
              HasSubstr("SLURM_PROCID=1 and OMPI_COMM_WORLD_RANK=2 disagree"));
  for (const char* const bad : {"", "-1", "+1", " 1", "1.0", "2147483648"}) {
    EXPECT_THAT(why({{{"PMI_RANK", bad}}, ""}),
                HasSubstr("is no number from 0 to 2147483647"))
        << bad;
  }
}

TEST(EngineIndexTest, AGroupBehindOthersBeginsAtItsOwnNumber) {
  const struct {
    const char* given;
    std::optional<int> from;
  } cases[] = {{"auto", 0},
               {"auto+4", 4},
               {"auto+0", 0},
               {"auto+", std::nullopt},
               {"auto-1", std::nullopt},
               {"auto+ 1", std::nullopt},
               {"auto4", std::nullopt},
               {"4", std::nullopt},
               {"auto+99999999999", std::nullopt}};
  for (const auto& each : cases)
    EXPECT_EQ(AutoIndexFrom(each.given), each.from) << each.given;
  const EngineFacts facts = {{{"JOB_COMPLETION_INDEX", "3"}}, "x"};
  const auto index = IndexOfEngine(facts, 4);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->index, 7);
  EXPECT_EQ(index->from, "JOB_COMPLETION_INDEX=3 + 4");
  const auto beyond = IndexOfEngine(facts, 2147483645);
  EXPECT_THAT(beyond.status().message(), HasSubstr("too large"));
}

}  // namespace slackline::engine_index_test
