#include "job/job_config.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/block/bounds.h"
#include "common/checkpoint/checkpoint_config.h"
#include "common/compress/compression_config.h"
#include "common/membership/timeouts.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/optim/stale/stale_rule.h"
#include "common/sync/sync_config.h"
#include "server/coordinator/rebalance_config.h"
#include "worker/client/window_config.h"
#include "worker/collective/collective_config.h"
#include "worker/conditions/conditions_config.h"
#include "worker/data/data_config.h"
#include "worker/model/model_config.h"
#include "worker/train/train_config.h"

namespace slackline {
namespace {

bool IsCuda(const config::WorkerGroup& group) {
  return group.device() == config::WorkerGroup::CUDA;
}

// Then they all-reduce by NCCL.
bool AllCuda(const config::ClusterConfig& config) {
  return std::all_of(config.worker().begin(), config.worker().end(), IsCuda);
}

// Without making a list of them: counts are not checked yet.
int WorkerCount(const config::ClusterConfig& config) {
  int64_t total = 0;
  for (const config::WorkerGroup& group : config.worker()) {
    total += std::max(0, group.count());
  }
  return static_cast<int>(
      std::min<int64_t>(total, std::numeric_limits<int>::max()));
}

void CheckPushType(const config::ClusterConfig& config,
                   const ConfigProblems& problems) {
  const config::Sync::PushType type = config.sync().push_type();
  if (type == config::Sync::PUSH_TYPE_UNSPECIFIED) {
    problems.Add("push_type",
                 "value is PUSH_TYPE_UNSPECIFIED; FLOAT32, BFLOAT16 or FLOAT16 "
                 "is required");
  } else if (type != config::Sync::FLOAT32 &&
             std::none_of(config.worker().begin(), config.worker().end(),
                          IsCuda)) {
    problems.Add("push_type",
                 absl::StrCat("value is ", config::Sync::PushType_Name(type),
                              "; workers round on GPUs only, FLOAT32 is "
                              "required without device: CUDA"));
  }
}

// Both are left out if the workers are programs of their own.
void CheckModelAndData(const config::ClusterConfig& config,
                       const ConfigProblems& problems) {
  if (!config.has_model() && !config.has_data()) return;
  const auto missing = [&](const char* field, const char* other) {
    problems.Add(field,
                 absl::StrCat("is missing, and ", other,
                              " is there; write both for slackline_worker, or "
                              "none for workers that are programs of their "
                              "own"));
  };
  if (config.has_model()) {
    CheckModel(config.model(), problems.In("model"));
  } else {
    missing("model", "data");
  }
  if (config.has_data()) {
    CheckData(config.data(), problems.In("data"));
  } else {
    missing("data", "model");
  }
  CheckModelFitsData(config.model(), config.data(), problems);
  if (config.model().has_linear() &&
      config.train().stop().has_test_accuracy()) {
    problems.Add("train.stop.test_accuracy",
                 "model.linear predicts numbers and has no accuracy; use "
                 "test_loss");
  }
}

void FillParts(config::ClusterConfig* config) {
  if (config->has_model() && !config->train().has_epochs())
    config->mutable_train()->set_epochs(1);
  if (config->train().has_gradient_bound())
    FillGradientBound(config->mutable_train()->mutable_gradient_bound());
  FillSchedule(config->mutable_schedule());
  FillModes(config->mutable_sync());
  FillCollective(AllCuda(*config),
                 config->mutable_sync()->mutable_collective());
  FillTimeouts(config->mutable_limits());
}

// Programs of their own may say how long the job is.
bool EvaluatesBeforeEnd(const config::ClusterConfig& config) {
  const config::Train& train = config.train();
  return !train.has_epochs() || train.eval_every_epochs() < train.epochs();
}

void CheckParts(const config::ClusterConfig& config,
                const ConfigProblems& problems) {
  const config::Sync& sync = config.sync();
  const bool nccl = AllCuda(config);
  for (int i = 0; i < std::min(config.worker_size(), kGroupsMax); ++i) {
    const config::WorkerGroup& group = config.worker(i);
    CheckConditions(group.conditions(),
                    {.stall_timeout_ms = config.limits().stall_timeout_ms(),
                     .cuda = IsCuda(group),
                     .nccl = nccl && MayAllReduce(sync)},
                    problems.In("worker", i).In("conditions"));
  }
  CheckModelAndData(config, problems);
  // Tables of workers that are programs of their own may bring theirs.
  if (config.has_optimizer() || config.has_model() || config.has_data())
    CheckOptimizer(config.optimizer(), problems.In("optimizer"));
  CheckSchedule(config.schedule(), problems.In("schedule"));
  const ConfigProblems in_sync = problems.In("sync");
  CheckModes(sync, WorkerCount(config), in_sync);
  for (int i = 0; i < sync.stale_size(); ++i) {
    CheckStaleGradients(sync.stale(i), in_sync.In("stale", i));
  }
  for (int i = 0; i < sync.compression_size(); ++i)
    CheckCompression(sync.compression(i), in_sync.In("compression", i));
  CheckCollective(sync.collective(), nccl, in_sync.In("collective"));
  CheckPushType(config, in_sync);
  CheckTrain(config.train(), problems.In("train"));
  if (config.train().has_gradient_bound()) {
    CheckGradientBound(config.train().gradient_bound(),
                       {.may_all_reduce = MayAllReduce(sync)},
                       problems.In("train").In("gradient_bound"));
  }
  CheckTimeouts(config.limits(), problems.In("limits"));
  CheckWindow(config.limits(), problems.In("limits"));
  CheckRebalance(config.rebalance(), problems.In("rebalance"));
  CheckCheckpoint(config.checkpoint(),
                  {.elastic = config.data().sampling() == config::Data::ELASTIC,
                   .evaluates = EvaluatesBeforeEnd(config)},
                  problems.In("checkpoint"));
}

}  // namespace

constinit const ConfigParts kJobConfigParts = {.fill_defaults = &FillParts,
                                               .check = &CheckParts};

absl::StatusOr<config::ClusterConfig> LoadJobConfig(
    const std::string& path, const ConfigOverrides& overrides) {
  return LoadClusterConfig(path, kJobConfigParts, overrides);
}

absl::StatusOr<config::ClusterConfig> ParseJobConfig(
    const std::string& text, const std::string& file_name,
    const ConfigOverrides& overrides) {
  return ParseClusterConfig(text, file_name, kJobConfigParts, overrides);
}

absl::Status CheckHasModel(const config::ClusterConfig& config,
                           absl::string_view who) {
  if (config.has_model()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", config.job(),
      " has no model and data: its workers are programs of their own, which ",
      who,
      " cannot stand in for; run it with these programs (slackline run CONFIG "
      "-- PROGRAM), or add model and data to the config"));
}

}  // namespace slackline
