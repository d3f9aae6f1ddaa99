// A program of somebody else: a worker with a model of its own, which is told
// to leave before it has found the job.
#include <cstdio>
#include <memory>

#include "common/net/zmq/zmq_transport.h"
#include "common/version.h"
#include "job/job_config.h"
#include "programs/worker/worker_program.h"

// With a config alone: a session of it. Else: the program around a session.
int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    return slackline::RunWorkerProgram(
        {.description = "Somebody else's worker.",
         .data_dir_help = "",
         .run = [](slackline::WorkerPlace&) { return absl::OkStatus(); }},
        argc, argv);
  }
  const auto config = slackline::LoadJobConfig(argv[1]);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
    return 1;
  }
  std::printf("slackline %s: job %s has %zu workers\n",
              slackline::VersionNumber().c_str(), config->job().c_str(),
              slackline::WorkerProcesses(*config).size());

  float weight[6] = {};
  slackline::HostParameters::Parameter parameter;
  parameter.table.name = "weight";
  parameter.table.shape = {2, 3};
  parameter.table.initializer.set_kind(slackline::wire::Initializer::OF_WORKER);
  parameter.values = weight;
  auto parameters = slackline::HostParameters::Create({parameter});
  if (!parameters.ok()) {
    std::fprintf(stderr, "%s\n", parameters.status().ToString().c_str());
    return 1;
  }
  slackline::ZmqTransport transport;
  slackline::Session::Options options;
  options.config = *config;
  options.length = {.steps_total = 1, .steps_per_epoch = 1};
  const auto session =
      slackline::Session::Create(options, &*parameters, transport, transport);
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
    return 1;
  }
  (*session)->Interrupt("this was a test");
  while ((*session)->Next()) {
  }
  std::fprintf(stderr, "%s\n", (*session)->ending().ToString().c_str());
  return absl::IsCancelled((*session)->ending()) ? 0 : 1;
}
