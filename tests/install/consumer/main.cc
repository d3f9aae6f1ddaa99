// A program of somebody else: reads a job's config, and is a worker that is told
// to leave before it has found the job.
#include <cstdio>
#include <memory>

#include "common/net/zmq/zmq_transport.h"
#include "common/version.h"
#include "job/job_config.h"
#include "worker/session/worker_loop.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto config = slackline::LoadJobConfig(argv[1]);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
    return 1;
  }
  std::printf("slackline %s: job %s has %zu workers\n",
              slackline::VersionNumber().c_str(), config->job().c_str(),
              slackline::WorkerProcesses(*config).size());

  slackline::ZmqTransport transport;
  slackline::WorkerLoop::Options options;
  options.coordinator_endpoint = "ipc://nobody-listens-here";
  const auto loop = slackline::WorkerLoop::Start(transport, transport, options);
  if (!loop.ok()) {
    std::fprintf(stderr, "%s\n", loop.status().ToString().c_str());
    return 1;
  }
  (*loop)->Interrupt("this was a test");
  while ((*loop)->Next() != nullptr) {
  }
  return absl::IsCancelled((*loop)->ending()) ? 0 : 1;
}
