#include "tools/cli/init/first_config.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/status.h"

namespace slackline {
namespace {

// They refuse slips of the keyboard.
constexpr int kProcessesMax = 4096;
constexpr int kServersGuessMax = 4;

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

absl::Status CheckCount(const char* flag, int count, int min) {
  if (count >= min && count <= kProcessesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": value is ", count, "; ", min, " to ", kProcessesMax,
                   " is required"));
}

absl::Status CheckEngine(const FirstJob& job) {
  if (job.engine != "here" && job.engine != "ssh" && job.engine != "slurm" &&
      job.engine != "ray") {
    return absl::InvalidArgumentError(
        absl::StrCat("--on: value is ", job.engine,
                     "; here, ssh, slurm or ray is required"));
  }
  if (job.engine == "ssh" && job.hosts.empty()) {
    return absl::InvalidArgumentError(
        "--hosts: ssh needs the hosts, as in --hosts n1:4,n2:4");
  }
  if (job.engine != "ssh" && !job.hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hosts: with --on ", job.engine,
                     " there are none to name; leave it "
                     "out, or choose --on ssh"));
  }
  return absl::OkStatus();
}

int Workers(const FirstJob& job) {
  if (job.hosts.empty()) return job.workers;
  int workers = 0;
  for (const HostSlots& host : job.hosts)
    workers += static_cast<int>(host.slots);
  return workers;
}

int Servers(const FirstJob& job) {
  const int hosts = std::max<int>(1, static_cast<int>(job.hosts.size()));
  const int guess =
      std::max(hosts, std::clamp((Workers(job) + 1) / 2, 1, kServersGuessMax));
  if (job.servers > 0) return job.servers;
  return job.copies ? std::max(2, guess) : guess;
}

std::string Group(const char* kind, const std::string& host, int count,
                  const std::string& more) {
  return absl::StrCat(
      kind, " {", host.empty() ? "" : absl::StrCat(" host: ", Quoted(host)),
      count == 1 ? "" : absl::StrCat(" count: ", count), more, " }\n");
}

std::string Processes(const FirstJob& job) {
  const std::string command =
      job.program.empty() ? ""
                          : absl::StrCat(" command: ", Quoted(job.program));
  std::vector<HostSlots> hosts = job.hosts;
  if (hosts.empty()) {
    hosts.push_back({.host = job.engine == "here" ? "127.0.0.1" : "",
                     .slots = job.workers});
  }
  const int servers = Servers(job);
  const int count = static_cast<int>(hosts.size());
  std::string text =
      "# Servers hold the parameters. More of them share the load; the first "
      "one "
      "also has\n# the coordinator.\n";
  for (int i = 0; i < count; ++i) {
    const int here = servers / count + (i < servers % count ? 1 : 0);
    if (here > 0)
      absl::StrAppend(&text, Group("server", hosts[i].host, here, ""));
  }
  absl::StrAppend(&text, "\n# Workers compute gradients",
                  job.program.empty()
                      ? ".\n"
                      : ": each runs this command, in which\n# "
                        "slackline.join() knows which worker it is.\n");
  for (const HostSlots& host : hosts) {
    absl::StrAppend(&text, Group("worker", host.host,
                                 static_cast<int>(host.slots), command));
  }
  return text;
}

std::string Engine(const FirstJob& job) {
  if (job.engine == "here") {
    return "\n# All on this machine. For several: `slackline init --on ssh "
           "--hosts n1:4,n2:4`,\n# or docs/manual/clusters.md.\n";
  }
  return absl::StrCat(
      "\n# How processes are started there; needs no "
      "flag then. Fields: docs/manual/clusters.md.\nlaunch { ",
      job.engine, " {} }\n");
}

std::string Training(const FirstJob& job) {
  if (!job.program.empty()) {
    return "\n# Model, data and optimizer are those of the program.\ntrain { "
           "seed: 1 }\n";
  }
  return "\n# Two hidden layers.\nmodel { mlp { hidden: [512, 512] } }\n\n"
         "# MNIST, in the folder mnist below --data-dir; without that flag it "
         "is "
         "downloaded.\n# Each worker takes batch_size examples in a step.\n"
         "data {\n  idx { folder: \"mnist\" }\n  batch_size: 64\n"
         "  normalisation { given { mean: 0.1307 deviation: 0.3081 } }\n}\n\n"
         "optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }\n"
         "# The rate rises for 100 steps, then half a cosine down to 0.\n"
         "schedule { warmup_steps: 100 cosine {} }\n"
         "train { epochs: 5 seed: 1 }\n";
}

std::string Safety(const FirstJob& job) {
  std::string text;
  if (!job.checkpoints.empty()) {
    absl::StrAppend(
        &text,
        "\n# Every ten minutes, and when the machine is taken away (SIGTERM). "
        "After a loss the\n# job goes on from the last one by itself.\n"
        "checkpoint { folder: ",
        Quoted(job.checkpoints),
        " every_seconds: 600 on_server_loss: RESTORE }\n");
  }
  if (job.copies) {
    absl::StrAppend(
        &text,
        "\n# Each shard has a copy on another server: one server may "
        "die, and nothing is lost.\nreplicas: 1\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> FirstConfig(const FirstJob& job) {
  SL_RETURN_IF_ERROR(CheckEngine(job));
  SL_RETURN_IF_ERROR(CheckCount("--workers", Workers(job), 1));
  SL_RETURN_IF_ERROR(CheckCount("--servers", Servers(job), 1));
  if (job.copies && Servers(job) < 2) {
    return absl::InvalidArgumentError(
        "--servers: copies are on another server; at least 2 is required");
  }
  if (job.engine != "here" && !job.checkpoints.empty() &&
      job.checkpoints[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "--checkpoints: value is ", job.checkpoints, "; with --on ", job.engine,
        " an absolute path is required, of a folder that all hosts share"));
  }
  config::ClusterConfig mode;
  SL_RETURN_IF_ERROR(SetMode(job.mode, &mode));
  return absl::StrCat(
      "# Written by `slackline init`. Every field and its default: "
      "proto/cluster.proto;\n# `slackline run FILE --dry-run` shows the config "
      "whole and starts nothing.\njob: ",
      Quoted(job.program.empty() ? "mnist" : "own-program"), "\n\n",
      Processes(job), Engine(job), Training(job),
      "\n# How far workers may drift apart. bsp: not at all; ssp { staleness: "
      "3 "
      "}: three\n# steps; asp: as they like; allreduce: no servers in the "
      "steps. "
      "--mode changes it\n# for one run. docs/manual/which-mode.md helps to "
      "choose.\n"
      "sync { ",
      mode.sync().ShortDebugString(), " }\n", Safety(job));
}

}  // namespace slackline
