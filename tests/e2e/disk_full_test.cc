// Goal: a job whose results cannot be written does not end well: one error says
// which file and why, and code 1. Method: real processes; a folder stands where
// summary.json or the model has to go, which root cannot write over either.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"

namespace slackline::disk_full_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DiskFull : public JobTest {
 protected:
  // All members of a small job, by hand; `blocked` cannot be written. Returns
  // how server 0 has ended.
  std::string RunBlocked(const std::string& blocked) {
    const std::string config = WriteWithPort("job.textproto", SmallJob());
    std::filesystem::create_directories(Path("run/" + blocked));
    members_ = StartSmallJobByHand(
        config, "run",
        {"--set=limits.save_timeout_ms=2000", "--set=train.max_steps=20"});
    std::string server;
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::string end = members_[i]->WaitText(kJobMax);
      if (i == 0) server = end;
    }
    ExpectNoProcessLeft();
    return server;
  }
  std::vector<std::unique_ptr<Process>> members_;
};

TEST_F(DiskFull, ASummaryThatCannotBeWrittenFailsTheRun) {
  EXPECT_EQ(RunBlocked("summary.json"), kFailed);
  EXPECT_THAT(members_[0]->Output(),
              AllOf(HasSubstr("the job has ended, but its summary could not "
                              "be written"),
                    HasSubstr("summary.json")));
  EXPECT_TRUE(std::filesystem::exists(Path("run/model.safetensors")));
}

TEST_F(DiskFull, AModelThatCannotBeWrittenFailsTheJobOnce) {
  EXPECT_EQ(RunBlocked("model.safetensors"), kFailed);
  EXPECT_THAT(members_[0]->Output(), HasSubstr("model.safetensors"));
  for (const std::unique_ptr<Process>& member : members_) {
    EXPECT_EQ(member->WaitText(kJobMax), kFailed) << member->Output();
  }
}

}  // namespace slackline::disk_full_test
