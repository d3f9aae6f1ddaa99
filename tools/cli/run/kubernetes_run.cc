#include "tools/cli/run/kubernetes_run.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/io/descriptor.h"
#include "common/process/exit_code.h"
#include "common/process/job_key.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "job/job_config.h"
#include "tools/cli/launch/kubernetes_manifest.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/members/program_output.h"
#include "tools/cli/process.h"
#include "tools/cli/run/job_text.h"
#include "tools/cli/run/out_folder.h"

namespace slackline {
namespace {

// What cannot be kept there is not taken here. Empty: nothing.
std::string WhatDoesNotFit(const RunOptions& options) {
  if (!options.hosts.empty() || !options.host_file.empty()) {
    return "--hosts, --hostfile: the pods have names of their own; leave it "
           "out";
  }
  if (!options.slurm_sets.empty() || !options.slurm_options.empty() ||
      !options.nodes.empty() || options.detach) {
    return "--nodes, flags of Slurm: this job is for Kubernetes; leave them "
           "out, or say "
           "--on slurm";
  }
  if (options.restart_workers > 0 || options.restart_servers.has_value()) {
    return "--restart-workers, --restart-servers: pods are started again by "
           "Kubernetes; set launch.kubernetes.pod_restarts";
  }
  if (!options.resume.empty() || options.new_run) {
    return "--resume, --new-run: a JobSet goes on with the run of its name, "
           "from that one's newest checkpoint, and begins anew under another "
           "name; set launch.kubernetes.name";
  }
  if (!options.out_dir.empty()) {
    return "--out: the folder of the run has the name of the JobSet, in the "
           "volume of launch.kubernetes.claim; set launch.kubernetes.name";
  }
  if (!options.data_dir.empty()) {
    return "--data-dir: the pods have their data elsewhere; set "
           "launch.data_dir "
           "and launch.kubernetes.data_claim";
  }
  return "";
}

// Hands the manifests to kubectl, which says what it does.
absl::Status Apply(const std::string& program, const std::string& manifests) {
  const absl::StatusOr<std::string> path = FindProgram(program);
  if (!path.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "--on kubernetes: ", path.status().message(),
        ": install kubectl, or print the manifests with --print and apply them "
        "where it is"));
  }
  SL_ASSIGN_OR_RETURN(const Descriptor input, FileInMemory());
  const Descriptor errors(dup(STDERR_FILENO));
  SL_RETURN_IF_ERROR(Annotate(WriteAll(input.get(), manifests),
                              "the manifests cannot be handed to kubectl"));
  lseek(input.get(), 0, SEEK_SET);
  SL_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start({.command = {*path, "apply", "-f", "-"},
                           .log_path = {},
                           .standard_input = input.get(),
                           .standard_output = errors.get()}));
  if (child.Wait().ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      ShellLine({program, "apply", "-f", "-"}),
      " has failed, as it says above; --print shows what it was given. A "
      "cluster needs JobSet (jobset.sigs.k8s.io)"));
}

std::string WatchText(const config::Kubernetes& kubernetes,
                      const std::string& name) {
  std::vector<std::string> kubectl = {kubernetes.program()};
  if (kubernetes.has_namespace_())
    kubectl.insert(kubectl.end(), {"--namespace", kubernetes.namespace_()});
  const auto line = [&](std::vector<std::string> words) {
    words.insert(words.begin(), kubectl.begin(), kubectl.end());
    return ShellLine(words);
  };
  const std::string pods =
      absl::StrCat("jobset.sigs.k8s.io/jobset-name=", name);
  return absl::StrCat(
      "it is not followed from here:\n  ", line({"get", "jobset", name}),
      "\n  ", line({"get", "pods", "--selector", pods}), "\n  ",
      line({"logs", "--follow", "--prefix", "--selector",
            absl::StrCat(
                pods, ",jobset.sigs.k8s.io/replicatedjob-name=", "servers")}),
      "\n  ",
      line({"delete", absl::StrCat("jobset/", name),
            absl::StrCat("configmap/", name, "-config"),
            absl::StrCat("secret/", name, "-keys")}),
      "   # ends it");
}

}  // namespace

absl::StatusOr<int> RunOnKubernetes(RunOptions options,
                                    const config::ClusterConfig& given,
                                    Display* display) {
  const auto refuse = [&](absl::string_view why) {
    display->Print(absl::StrCat("slackline run: ", why));
    return kExitUsage;
  };
  if (const std::string why = WhatDoesNotFit(options); !why.empty())
    return refuse(why);
  const std::string name =
      given.launch().kubernetes().has_name()
          ? given.launch().kubernetes().name()
          : JobSetName(
                RunName(given.job(), ModeText(given), TimeSource().WallNow()));
  // A name that is refused is shown as it was given.
  for (std::string& field : KubernetesFields(given, JobSetName(name)))
    options.overrides.sets.push_back(std::move(field));
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(options.config_path, options.overrides);
  if (!config.ok()) return refuse(config.status().message());
  SL_RETURN_IF_ERROR(CheckWorkersHavePrograms(*config));
  SL_ASSIGN_OR_RETURN(const std::optional<KeyOfRun> key,
                      MakeKeyOfRun(*config, options.key));
  const bool has_own_secret = config->launch().kubernetes().has_secret();
  if (key.has_value() && key->file.empty() && !has_own_secret) {
    return refuse(
        "--on kubernetes: no key can be kept for this user, so nobody would "
        "have the one in the manifests; make one with `slackline keys init "
        "--key FILE`, and name it with --key FILE");
  }
  std::optional<keys::Key> of_job;
  if (key.has_value()) of_job = key->key;
  const absl::StatusOr<std::string> manifests =
      KubernetesManifests({.config = *config, .name = name, .key = of_job});
  if (!manifests.ok()) return refuse(manifests.status().message());
  const config::Kubernetes& kubernetes = config->launch().kubernetes();
  display->Print(absl::StrCat(JobText(*config), ": JobSet ", name));
  if (!kubernetes.has_claim()) {
    display->Print(
        "warning: launch.kubernetes.claim is not given, so the model, the logs "
        "and the records are gone with the pods");
  }
  const bool needs_data = config->has_data() &&
                          !config->data().has_teacher_student() &&
                          !kubernetes.has_data_claim();
  if (needs_data) {
    display->Print(absl::StrCat(
        "warning: launch.kubernetes.data_claim is not given, so the image has "
        "to have the data, at ",
        config->launch().has_data_dir() ? config->launch().data_dir()
                                        : "/data"));
  }
  if (key.has_value() && !has_own_secret) {
    display->Print(
        absl::StrCat("the manifests have the key of the job, in the Secret ",
                     name, "-keys: whoever reads them can take part in it"));
  }
  if (options.dry_run || options.print_script) {
    std::fwrite(manifests->data(), 1, manifests->size(), stdout);
    display->Print(absl::StrCat("nothing is started: ",
                                options.dry_run ? "--dry-run" : "--print"));
    return kExitDone;
  }
  SL_RETURN_IF_ERROR(Apply(kubernetes.program(), *manifests));
  display->Print(WatchText(kubernetes, name));
  std::printf("%s\n", name.c_str());
  return kExitDone;
}

}  // namespace slackline
