#include "tools/cli/run/run.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/utf8.h"
#include "job/job_config.h"
#include "tools/cli/display.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/run/by_hand.h"
#include "tools/cli/run/given_config.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/run/job_place.h"
#include "tools/cli/run/job_text.h"
#include "tools/cli/run/kubernetes_run.h"
#include "tools/cli/run/run_beginning.h"
#include "tools/cli/run/run_job.h"
#include "tools/cli/run/submit_run.h"
#include "tools/cli/run/track_command.h"
#include "tools/experiment/replay_spec.h"

namespace slackline {
namespace {

absl::Status DryRun(const RunOptions& options,
                    const config::ClusterConfig& config,
                    const std::vector<std::string>& elsewhere,
                    Display* display) {
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  const bool is_remote = !place->Text().empty();
  const bool has_stand_ins = HasStandIns(config);
  SL_RETURN_IF_ERROR(place->Check());
  if (!options.resume.empty())
    SL_RETURN_IF_ERROR(ReadCheckpointOf(options, config, display).status());
  std::string data_dir;
  if (!options.data_dir.empty()) {  // Else it might have to be fetched.
    SL_ASSIGN_OR_RETURN(data_dir, place->FindData());
  }
  // Of a job on several machines this one has a part.
  if (!elsewhere.empty()) {
    display->Print(ByHandText(options, config, elsewhere));
  } else if (!is_remote) {
    SL_RETURN_IF_ERROR(place->CheckCapacity(data_dir));
  }
  display->Print(absl::StrCat(
      JobText(config), OwnProgramsText(config),
      has_stand_ins
          ? absl::StrCat("\nhosts: those that ",
                         config.launch().has_ray() ? "Ray" : "Slurm", " gives")
          : place->Text(),
      "\nnothing is started: --dry-run"));
  config::ClusterConfig shown = config;
  if (has_stand_ins) ForgetHosts(&shown);
  const std::string text =
      absl::StrCat(PortIsGiven(options) ? "" : kAnyPort, ToText(shown));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return absl::OkStatus();
}

// Given delays: checks that they are there, and writes a folder out in full, so
// that it is found from wherever a server is started.
absl::Status PutWholePath(const RunOptions& options,
                          config::ClusterConfig* config) {
  if (options.restart_workers > 0) {
    return absl::InvalidArgumentError(
        "--restart-workers: a job whose delays are given ends when it loses a "
        "worker, since every gradient has its turn; leave it out, and "
        "checkpoint "
        "{ on_server_loss: RESTORE } begins the whole job again");
  }
  sync::Delays& delays = *config->mutable_sync()->mutable_delays();
  const absl::StatusOr<ReplaySpec> found = ParseReplaySpec(delays.given(), "");
  if (!found.ok()) return Annotate(found.status(), "--delays");
  delays.set_given(found->text);
  return absl::OkStatus();
}

}  // namespace

int Run(const RunOptions& given) {
  RunOptions options = given;
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline run: ", text));
  };
  for (const auto& [flag, path] : {std::pair("--out", options.out_dir),
                                   std::pair("--resume", options.resume)}) {
    const absl::Status text = CheckPathText(flag, path);
    if (text.ok()) continue;
    complain(text.message());
    return kExitUsage;
  }
  if (const std::optional<config::ClusterConfig> as_given =
          WhatIsGiven(options);
      as_given.has_value() && as_given->launch().has_kubernetes()) {
    if (!options.track.empty() || as_given->has_track()) {
      complain(absl::StrCat(
          options.track.empty() ? "track" : "--track",
          ": the files of a run on Kubernetes are there and not here; leave it "
          "out, and give slackline track the folder of the volume"));
      return kExitUsage;
    }
    const absl::StatusOr<int> done =
        RunOnKubernetes(options, *as_given, &display);
    if (done.ok()) return *done;
    complain(done.status().message());
    return kExitFailed;
  }
  const absl::StatusOr<SlurmPlan> plan = PlanSlurm(&options);
  if (!plan.ok()) {
    complain(plan.status().message());
    return kExitUsage;
  }
  if (const absl::Status hosts = SetHosts(*plan, &options); !hosts.ok()) {
    complain(hosts.message());
    return kExitUsage;
  }
  absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(options.config_path, options.overrides);
  if (!config.ok()) {
    complain(config.status().message());
    return kExitUsage;
  }
  if (config->sync().has_delays()) {
    if (const absl::Status fit = PutWholePath(options, &*config); !fit.ok()) {
      complain(fit.message());
      return kExitUsage;
    }
  }
  // A batch job sends from a host of its own.
  const bool is_sent_from_here = !options.dry_run && !plan->submits;
  if (const int usable = CheckTrackers(
          TrackOptionsOf(config->track(), options.track, /*folder=*/".",
                         options.bin_dir),
          is_sent_from_here ? TrackersCheck::kPackages : TrackersCheck::kNames);
      usable != kExitDone) {
    return usable;
  }
  // Another engine goes to all hosts, and to this one, too.
  std::vector<std::string> elsewhere;
  if (ShellOf(config->launch()).name.empty())
    elsewhere = HostsElsewhere(*config);
  if (!elsewhere.empty() && !options.dry_run) {
    complain(ByHandText(options, *config, elsewhere));
    return kExitUsage;
  }
  if (options.dry_run) {
    const absl::Status checked = DryRun(options, *config, elsewhere, &display);
    if (checked.ok()) return kExitDone;
    complain(checked.message());
    return kExitFailed;
  }
  const absl::StatusOr<int> done =
      plan->submits ? RunBySlurm(options, *plan, *config, &display)
                    : RunJob(options, *config, &display);
  if (done.ok()) return *done;
  complain(done.status().message());
  return absl::IsCancelled(done.status()) ? kExitInterrupted : kExitFailed;
}

}  // namespace slackline
