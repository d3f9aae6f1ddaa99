#include "tools/cli/launch/kubernetes_manifest.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/cluster_config.h"
#include "common/keys/key_file.h"
#include "common/membership/end_status.h"
#include "common/process/engine_index.h"
#include "common/process/job_key.h"
#include "common/process/member_environment.h"
#include "common/status.h"
#include "common/utf8.h"
#include "tools/cli/launch/yaml_text.h"
#include "tools/cli/members/member_launch.h"

namespace slackline {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kContainer[] = "slackline";
constexpr char kConfigFolder[] = "/etc/slackline";
constexpr char kConfigFile[] = "cluster.textproto";
constexpr char kKeysFolder[] = "/etc/slackline/keys";
// Pods of a group have one template, so what they see is the same for all.
constexpr char kWorkerKeyName[] = "worker.key";
constexpr char kRunsFolder[] = "/runs";
constexpr char kDefaultDataDir[] = "/data";
constexpr char kDefaultBinDir[] = "/opt/slackline/bin";
constexpr int kHealthPort = 8080;
constexpr absl::Duration kStartTimeout = absl::Minutes(10);
constexpr int kGraceSeconds = 30;
constexpr int kGraceSecondsWithCheckpoint = 120;
// As tools/container/Containerfile makes it.
constexpr int kUser = 10001;

// One group of servers or workers.
struct Group {
  std::string job;  // Its replicated job.
  bool worker = false;
  int first = 0;  // Index of its first process in the config.
  int count = 0;
  int cpus = 0;
  int memory_mb = 0;  // 0: not given.
  bool gpu = false;
  bool own_program = false;

  // In the secret, and as a file there.
  const char* key() const { return worker ? kWorkerKeyName : kJobKeyName; }
};

std::string ReplicatedJob(bool worker, int group) {
  const char* const role = worker ? "workers" : "servers";
  return group == 0 ? role : absl::StrCat(role, "-", group);
}

// The host of a process in the group's replicated job, whose only Job has
// number 0.
std::string HostOf(const std::string& name, bool worker, int group,
                   absl::string_view index) {
  return absl::StrCat(name, "-", ReplicatedJob(worker, group), "-0-", index,
                      ".", name);
}

std::vector<Group> GroupsOf(const config::ClusterConfig& config) {
  std::vector<Group> groups;
  int first = 0;
  for (int i = 0; i < config.server_size(); ++i) {
    const config::ServerGroup& group = config.server(i);
    groups.push_back({.job = ReplicatedJob(false, i),
                      .worker = false,
                      .first = first,
                      .count = group.count(),
                      .cpus = group.has_cpus() ? group.cpus() : group.threads(),
                      .memory_mb = group.memory_mb()});
    first += group.count();
  }
  first = 0;
  for (int i = 0; i < config.worker_size(); ++i) {
    const config::WorkerGroup& group = config.worker(i);
    groups.push_back({.job = ReplicatedJob(true, i),
                      .worker = true,
                      .first = first,
                      .count = group.count(),
                      .cpus = group.has_cpus() ? group.cpus() : group.threads(),
                      .memory_mb = group.memory_mb(),
                      .gpu = group.device() == config::WorkerGroup::CUDA,
                      .own_program = group.has_command()});
    first += group.count();
  }
  return groups;
}

std::string AutoIndex(int first) {
  return first == 0 ? kAutoIndex : absl::StrCat(kAutoIndex, "+", first);
}

// `slackline run` starts it so on one machine, but for its index.
MemberLaunch LaunchOfGroup(const KubernetesParts& parts, const Group& group) {
  const config::Launch& launch = parts.config.launch();
  const config::Kubernetes& kubernetes = launch.kubernetes();
  const bool has_data =
      launch.has_data_dir() || kubernetes.has_data_claim() ||
      (parts.config.has_data() && !parts.config.data().has_teacher_student());
  MemberLaunch member = LaunchOf(
      {.bin_dir = launch.has_bin_dir() ? launch.bin_dir() : kDefaultBinDir,
       .cluster_file = absl::StrCat(kConfigFolder, "/", kConfigFile),
       .data_dir = launch.has_data_dir() ? launch.data_dir()
                   : has_data            ? kDefaultDataDir
                                         : "",
       .out_dir = absl::StrCat(kRunsFolder, "/", parts.name),
       .key_folder = parts.key.has_value() ? kKeysFolder : "",
       .key_of_workers = kWorkerKeyName,
       .workers = WorkerProcesses(parts.config)},
      {.worker = group.worker, .index = group.first});
  const std::string index = absl::StrCat("--index=", group.first);
  for (std::string& word : member.command) {
    if (word == index) word = absl::StrCat("--index=", AutoIndex(group.first));
  }
  if (const auto variable = member.environment.find(kIndexVariable);
      variable != member.environment.end()) {
    variable->second = AutoIndex(group.first);
  }
  if (!group.worker && parts.config.has_checkpoint())
    member.command.emplace_back("--restore");
  return member;
}

OrderedJson Probe(const std::string& path, int period_seconds, int failures) {
  return {{"httpGet", {{"path", path}, {"port", "health"}}},
          {"periodSeconds", period_seconds},
          {"timeoutSeconds", 5},
          {"failureThreshold", failures}};
}

OrderedJson Environment(const KubernetesParts& parts,
                        const MemberLaunch& member) {
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, value] : member.environment)
    list.push_back({{"name", name}, {"value", value}});
  for (const std::string& variable : parts.config.launch().environment()) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    list.push_back({{"name", halves.first}, {"value", halves.second}});
  }
  // "$(NAME)" would be another variable.
  for (OrderedJson& each : list) {
    each["value"] =
        absl::StrReplaceAll(each["value"].get<std::string>(), {{"$(", "$$("}});
  }
  return list;
}

OrderedJson Resources(const Group& group) {
  OrderedJson requests = {{"cpu", absl::StrCat(group.cpus)}};
  OrderedJson limits = OrderedJson::object();
  if (group.memory_mb > 0) {
    const std::string memory = absl::StrCat(group.memory_mb, "Mi");
    requests["memory"] = memory;
    limits["memory"] = memory;
  }
  if (group.gpu) limits["nvidia.com/gpu"] = "1";
  OrderedJson resources = {{"requests", requests}};
  if (!limits.empty()) resources["limits"] = limits;
  return resources;
}

OrderedJson Container(const KubernetesParts& parts, const Group& group) {
  const config::Kubernetes& kubernetes = parts.config.launch().kubernetes();
  const MemberLaunch member = LaunchOfGroup(parts, group);
  OrderedJson command = OrderedJson::array();
  for (const std::string& word : member.command)
    command.push_back(absl::StrReplaceAll(word, {{"$(", "$$("}}));
  OrderedJson container = {{"name", kContainer},
                           {"image", kubernetes.image()},
                           {"command", command}};
  if (const OrderedJson environment = Environment(parts, member);
      !environment.empty())
    container["env"] = environment;
  container["ports"] = OrderedJson::array(
      {{{"name", "health"}, {"containerPort", parts.config.health().port()}}});
  container["resources"] = Resources(group);
  // An image may take its time to begin; after that a process that stands still
  // is started again, and one that waits for others is not.
  container["startupProbe"] = Probe("/healthz", 5, 120);
  container["livenessProbe"] = Probe("/healthz", 20, 3);
  container["readinessProbe"] = Probe("/readyz", 5, 1);
  OrderedJson mounts = {
      {{"name", "config"},
       {"mountPath", absl::StrCat(kConfigFolder, "/", kConfigFile)},
       {"subPath", kConfigFile},
       {"readOnly", true}},
      {{"name", "runs"}, {"mountPath", kRunsFolder}}};
  if (parts.key.has_value()) {
    mounts.push_back(
        {{"name", "keys"}, {"mountPath", kKeysFolder}, {"readOnly", true}});
  }
  if (kubernetes.has_data_claim()) {
    const config::Launch& launch = parts.config.launch();
    mounts.push_back({{"name", "data"},
                      {"mountPath", launch.has_data_dir() ? launch.data_dir()
                                                          : kDefaultDataDir},
                      {"readOnly", true}});
  }
  if (group.own_program)
    mounts.push_back({{"name", "shared-memory"}, {"mountPath", "/dev/shm"}});
  container["volumeMounts"] = mounts;
  container["securityContext"] = {
      {"allowPrivilegeEscalation", false},
      {"capabilities", {{"drop", OrderedJson::array({"ALL"})}}}};
  return container;
}

std::string KeysName(const KubernetesParts& parts) {
  return absl::StrCat(parts.name, "-keys");
}

OrderedJson Volumes(const KubernetesParts& parts, const Group& group) {
  const config::Kubernetes& kubernetes = parts.config.launch().kubernetes();
  OrderedJson volumes = {
      {{"name", "config"},
       {"configMap", {{"name", absl::StrCat(parts.name, "-config")}}}}};
  if (parts.key.has_value()) {
    // Of root, and for the group of the pod.
    volumes.push_back(
        {{"name", "keys"},
         {"secret",
          {{"secretName",
            kubernetes.has_secret() ? kubernetes.secret() : KeysName(parts)},
           {"items", OrderedJson::array(
                         {{{"key", group.key()}, {"path", group.key()}}})},
           {"defaultMode", 0440}}}});
  }
  OrderedJson runs = {{"name", "runs"}};
  if (kubernetes.has_claim()) {
    runs["persistentVolumeClaim"] = {{"claimName", kubernetes.claim()}};
  } else {
    runs["emptyDir"] = OrderedJson::object();
  }
  volumes.push_back(runs);
  if (kubernetes.has_data_claim()) {
    volumes.push_back(
        {{"name", "data"},
         {"persistentVolumeClaim",
          {{"claimName", kubernetes.data_claim()}, {"readOnly", true}}}});
  }
  // That of a container is 64 MB, too little for the loaders of PyTorch.
  if (group.own_program) {
    volumes.push_back(
        {{"name", "shared-memory"}, {"emptyDir", {{"medium", "Memory"}}}});
  }
  return volumes;
}

// By the table above.
OrderedJson PodFailurePolicy(const config::ClusterConfig& config) {
  const bool restores =
      config.checkpoint().on_server_loss() == config::Checkpoint::RESTORE;
  const auto on_exit = [](const char* action, const OrderedJson& values) {
    return OrderedJson{{"action", action},
                       {"onExitCodes",
                        {{"containerName", kContainer},
                         {"operator", "In"},
                         {"values", values}}}};
  };
  const OrderedJson taken_away = {
      {"action", "Ignore"},
      {"onPodConditions", OrderedJson::array({{{"type", "DisruptionTarget"},
                                               {"status", "True"}}})}};
  const OrderedJson failed =
      on_exit("FailJob",
              restores ? OrderedJson::array({2}) : OrderedJson::array({1, 2}));
  return {
      {"rules", OrderedJson::array(
                    {on_exit("Ignore", OrderedJson::array({kExitSuspended})),
                     taken_away, failed})}};
}

OrderedJson Labels(const KubernetesParts& parts) {
  return {{"app.kubernetes.io/name", "slackline"},
          {"app.kubernetes.io/instance", parts.name}};
}

// It counts pods that have failed. With RESTORE one loss ends all pods.
int BackoffLimit(const config::ClusterConfig& config, const Group& group) {
  const int64_t each =
      config.checkpoint().on_server_loss() == config::Checkpoint::RESTORE
          ? group.count
          : 1;
  return static_cast<int>(
      std::min<int64_t>(config.launch().kubernetes().pod_restarts() * each,
                        std::numeric_limits<int32_t>::max()));
}

OrderedJson ReplicatedJobOf(const KubernetesParts& parts, const Group& group) {
  const config::Kubernetes& kubernetes = parts.config.launch().kubernetes();
  const int grace = kubernetes.has_grace_seconds() ? kubernetes.grace_seconds()
                    : parts.config.has_checkpoint()
                        ? kGraceSecondsWithCheckpoint
                        : kGraceSeconds;
  const OrderedJson pod = {
      {"restartPolicy", "Never"},
      {"terminationGracePeriodSeconds", grace},
      {"enableServiceLinks", false},
      {"automountServiceAccountToken", false},
      {"securityContext",
       {{"runAsNonRoot", true},
        {"runAsUser", kUser},
        {"runAsGroup", kUser},
        {"fsGroup", kUser},
        {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
      {"containers", OrderedJson::array({Container(parts, group)})},
      {"volumes", Volumes(parts, group)}};
  return {{"name", group.job},
          {"replicas", 1},
          {"template",
           {{"spec",
             {{"completionMode", "Indexed"},
              {"completions", group.count},
              {"parallelism", group.count},
              {"backoffLimit", BackoffLimit(parts.config, group)},
              {"podFailurePolicy", PodFailurePolicy(parts.config)},
              {"template",
               {{"metadata", {{"labels", Labels(parts)}}}, {"spec", pod}}}}}}}};
}

OrderedJson Metadata(const KubernetesParts& parts, const std::string& name) {
  OrderedJson metadata = {{"name", name}};
  const config::Kubernetes& kubernetes = parts.config.launch().kubernetes();
  if (kubernetes.has_namespace_())
    metadata["namespace"] = kubernetes.namespace_();
  metadata["labels"] = Labels(parts);
  return metadata;
}

// What YAML could not carry.
absl::Status CheckTexts(const KubernetesParts& parts) {
  const config::Launch& launch = parts.config.launch();
  for (const std::string& variable : launch.environment()) {
    if (IsUtf8(variable) && variable.find('\0') == std::string::npos) continue;
    return absl::InvalidArgumentError(
        "launch.environment: a value is no UTF-8 or has a zero byte, and "
        "Kubernetes takes texts alone; leave it out");
  }
  for (int i = 0; i < parts.config.worker_size(); ++i) {
    const config::WorkerGroup& group = parts.config.worker(i);
    if (!IsUtf8(group.command()) ||
        group.command().find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker[", i,
          "].command: is no UTF-8, and Kubernetes takes nothing else"));
    }
    if (group.gpu_size() > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker[", i,
          "].gpu: each pod has one GPU, which has number 0 there; leave it "
          "out"));
    }
  }
  return absl::OkStatus();
}

// Whether one folder is the other, or in it.
bool Overlap(absl::string_view one, absl::string_view other) {
  one = absl::StripSuffix(one, "/");
  other = absl::StripSuffix(other, "/");
  return one == other || absl::StartsWith(one, absl::StrCat(other, "/")) ||
         absl::StartsWith(other, absl::StrCat(one, "/"));
}

// Folders in the container, and addresses in the pod.
absl::Status CheckPlaces(const config::ClusterConfig& config) {
  const config::Launch& launch = config.launch();
  const std::string bin_dir =
      launch.has_bin_dir() ? launch.bin_dir() : kDefaultBinDir;
  if (launch.kubernetes().has_data_claim() && launch.has_data_dir()) {
    for (const std::string& other :
         {std::string(kRunsFolder), std::string(kConfigFolder), bin_dir}) {
      if (!Overlap(launch.data_dir(), other)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "launch.data_dir: value is ", launch.data_dir(),
          "; launch.kubernetes.data_claim is mounted there, and ", other,
          " in the container is another folder; choose one apart, as in "
          "--set launch.data_dir=/data"));
    }
  }
  if (launch.has_runs_dir()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch.runs_dir: value is ", launch.runs_dir(),
        "; the folders of runs are in the volume of launch.kubernetes.claim, "
        "at ",
        kRunsFolder, "; leave it out"));
  }
  const std::string& checkpoints = config.checkpoint().folder();
  if (!checkpoints.empty() &&
      !absl::StartsWith(checkpoints, absl::StrCat(kRunsFolder, "/"))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint.folder: value is ", checkpoints,
        "; what is not in the volume at ", kRunsFolder,
        " is gone with its pod; leave it out, or name a folder there"));
  }
  if (config.health().has_host() && IsLoopback(config.health().host())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "health.host: value is ", config.health().host(),
        "; the probes of Kubernetes come from outside of the pod; leave it "
        "out"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string JobSetName(absl::string_view run_name) {
  std::string name;
  for (const char c : absl::AsciiStrToLower(run_name)) {
    const bool fits = absl::ascii_isalnum(static_cast<unsigned char>(c));
    if (fits || (!name.empty() && name.back() != '-')) name += fits ? c : '-';
  }
  // The time at the end makes it another one than the last.
  const size_t dash = name.rfind('-');
  if (name.size() > kJobSetNameMax && dash != std::string::npos &&
      name.size() - dash < kJobSetNameMax) {
    const std::string time = name.substr(dash);
    std::string begin = name.substr(0, kJobSetNameMax - time.size());
    while (!begin.empty() && begin.back() == '-') begin.pop_back();
    name = begin + time;
  }
  name = name.substr(0, kJobSetNameMax);
  while (!name.empty() && name.back() == '-') name.pop_back();
  // Names of services begin with a letter.
  if (name.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(name[0])))
    name = absl::StrCat("job-", name).substr(0, kJobSetNameMax);
  while (name.back() == '-') name.pop_back();
  return name;
}

std::vector<std::string> KubernetesFields(const config::ClusterConfig& given,
                                          const std::string& name) {
  std::vector<std::string> fields = {
      absl::StrCat("coordinator.host=", HostOf(name, false, 0, "0"))};
  for (int i = 0; i < given.server_size(); ++i) {
    fields.push_back(absl::StrCat(
        "server[", i, "].host=", HostOf(name, false, i, kIndexInHost)));
  }
  for (int i = 0; i < given.worker_size(); ++i) {
    fields.push_back(absl::StrCat(
        "worker[", i, "].host=", HostOf(name, true, i, kIndexInHost)));
  }
  if (given.health().port() == 0)
    fields.push_back(absl::StrCat("health.port=", kHealthPort));
  if (!given.health().has_host()) fields.emplace_back("health.host=0.0.0.0");
  if (!given.limits().has_start_timeout_ms()) {
    fields.push_back(absl::StrCat("limits.start_timeout_ms=",
                                  absl::ToInt64Milliseconds(kStartTimeout)));
  }
  return fields;
}

absl::StatusOr<std::string> KubernetesManifests(const KubernetesParts& parts) {
  SL_RETURN_IF_ERROR(CheckTexts(parts));
  SL_RETURN_IF_ERROR(CheckPlaces(parts.config));
  const config::Kubernetes& kubernetes = parts.config.launch().kubernetes();
  if (parts.config.has_checkpoint() && !kubernetes.has_claim()) {
    return absl::InvalidArgumentError(
        "launch.kubernetes.claim: is missing; the job has a checkpoint block, "
        "and what a pod writes is gone with it: name a PersistentVolumeClaim "
        "that all pods can mount, as in claim: \"slackline-runs\"");
  }
  config::ClusterConfig of_pods = parts.config;
  of_pods.clear_launch();
  const OrderedJson config_map = {
      {"apiVersion", "v1"},
      {"kind", "ConfigMap"},
      {"metadata", Metadata(parts, absl::StrCat(parts.name, "-config"))},
      {"data", {{kConfigFile, ToText(of_pods)}}}};
  OrderedJson jobs = OrderedJson::array();
  for (const Group& group : GroupsOf(parts.config))
    jobs.push_back(ReplicatedJobOf(parts, group));
  const OrderedJson job_set = {
      {"apiVersion", "jobset.x-k8s.io/v1alpha2"},
      {"kind", "JobSet"},
      {"metadata", Metadata(parts, parts.name)},
      {"spec",
       {{"network",
         {{"enableDNSHostnames", true},
          {"subdomain", parts.name},
          // Pods find each other before they are ready.
          {"publishNotReadyAddresses", true}}},
        {"successPolicy", {{"operator", "All"}}},
        // Pods are started again one by one, by their own policies.
        {"failurePolicy", {{"maxRestarts", 0}}},
        {"replicatedJobs", jobs}}}};
  std::string manifests = absl::StrCat(
      "# Written by `slackline run --on kubernetes`.\n", YamlText(config_map));
  if (parts.key.has_value() && !kubernetes.has_secret()) {
    SL_ASSIGN_OR_RETURN(const keys::Key of_worker,
                        RoleKeyOf(*parts.key, parts.config.job(), Role::kWorker,
                                  "the key of the job"));
    const OrderedJson secret = {{"apiVersion", "v1"},
                                {"kind", "Secret"},
                                {"metadata", Metadata(parts, KeysName(parts))},
                                {"type", "Opaque"},
                                {"stringData",
                                 {{kJobKeyName, KeyText(*parts.key)},
                                  {kWorkerKeyName, KeyText(of_worker)}}}};
    absl::StrAppend(&manifests, "---\n", YamlText(secret));
  }
  absl::StrAppend(&manifests, "---\n", YamlText(job_set));
  return manifests;
}

}  // namespace slackline
