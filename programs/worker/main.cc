// slackline_worker: one process per device; trains a built-in model on its part
// of the data.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/blas/open_blas.h"
#include "common/process/address_limit.h"
#include "common/process/fork_server.h"
#include "common/status.h"
#include "job/job_config.h"
#include "programs/worker/worker_program.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"
#include "worker/session/gpu_parts.h"
#include "worker/session/job_length.h"
#include "worker/train/trainer.h"

namespace slackline {
namespace {

absl::Status Work(WorkerPlace& place) {
  const config::ClusterConfig& config = place.config();
  SL_RETURN_IF_ERROR(CheckHasModel(config, "slackline_worker"));
  const WorkerProcess& self = place.self();
  const ModelOptions model_options = {
      .gpu = self.gpu,
      .push_type = config.sync().push_type(),
      .gpu_timeout = absl::Milliseconds(config.limits().wait_timeout_ms())};
  SL_RETURN_IF_ERROR(CheckModelDevice(model_options));
  if (self.gpu >= 0) {
    PrepareGpuGroups(config.sync().collective().algorithm());
    spdlog::info("training on GPU {}", self.gpu);
  }
  // Threads with their stacks and heaps, ZeroMQ's among them, and what OpenBLAS
  // takes for each of its own: it tries for ever.
  SL_RETURN_IF_ERROR(CheckAddressesLeft(
      (size_t{256} << 20) +
      (size_t{128} << 20) * static_cast<size_t>(std::max(self.threads, 1))));
  const OpenBlasKernels kernels = ChooseOpenBlasKernels();
  if (!kernels.sentence.empty()) {
    spdlog::log(kernels.changed ? spdlog::level::info : spdlog::level::warn,
                kernels.sentence);
  }
  SL_RETURN_IF_ERROR(SetComputeThreads(self.threads));
  const BlasLibrary blas = LoadedBlas();
  if (blas.fast) {
    spdlog::info("matrix products by {}", blas.name);
  } else {
    spdlog::warn(
        "matrix products by {}: training is about 15 times slower than with "
        "OpenBLAS; "
        "install libopenblas0-pthread",
        blas.name);
  }
  SL_ASSIGN_OR_RETURN(
      const DataSplit data,
      LoadData(config.data(), config.model(), place.data_dir()));
  spdlog::info("data: {}", data.description);
  const bool elastic = config.data().sampling() == config::Data::ELASTIC;
  SL_ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::Create({.examples = data.train->examples(),
                       .batch_size = config.data().batch_size(),
                       .rank = Rank{self.rank},
                       .world_size = place.workers(),
                       .seed = static_cast<uint64_t>(config.train().seed()),
                       .elastic = elastic}));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      CreateModel(config.model(), data.train->features(),
                                  data.train->classes(), model_options));
  WorkerPlace::Work work = {.length = {},
                            .batch_size = config.data().batch_size(),
                            .data = data.description,
                            .data_hash = data.hash};
  if (elastic) {
    const ElasticLength job =
        ElasticLengthOf(config.train(), data.train->examples(),
                        config.data().batch_size(), place.workers());
    work.length = job.length;
    work.elastic = job.elastic;
  } else {
    work.length = JobLengthOf(config.train(), sampler.steps_per_epoch());
  }
  return place.Train(work, model.get(), [&](Session& session) {
    return Trainer(self.threads, &data, &sampler, model.get(), &session).Run();
  });
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  slackline::ForkServerArguments arguments(argc, argv);
  return slackline::RunWorkerProgram(
      {.description =
           "Trains on its part of the data: pushes gradients to the servers "
           "and pulls parameters,\nor all-reduces with the other workers, as "
           "the config says. Start one process for each\nworker of the "
           "config, in any order; 'slackline run' does it on one host. A "
           "worker that\nis started again while the job runs over servers "
           "joins in.",
       .data_dir_help = "Folder with the data sets that the config names",
       .run = slackline::Work},
      arguments.argc(), arguments.argv());
}
