// A job as a JobSet of Kubernetes: which names its pods have, and the
// manifests. Pure functions.
//
// Each group of the config is a replicated job of one Indexed Job, whose pods
// have the names JOBSET-servers-0-INDEX and JOBSET-workers-0-INDEX, the second
// group servers-1-0-INDEX. A process finds its place by --index=auto.
//
// | a pod ends with | then |
// | --- | --- |
// | 0 | it is done |
// | 75, suspended | a new one goes on from the checkpoint, however often |
// | anything, since its node is drained or taken away | a new one, however
// often
// |
// | 1 failed, 2 wrong config | the JobSet fails. With on_server_loss: RESTORE 1
// counts as below |
// | anything else, 69 and SIGKILL among it | a new one, up to pod_restarts
// times
// |
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "proto/keys.pb.h"

namespace slackline {

// Of a JobSet: its pods' names, which have more behind it, are names of hosts,
// of 63 characters at most.
inline constexpr size_t kJobSetNameMax = 40;

// "mnist-bsp-20260102t030405z", of a run that would have a folder
// "mnist-bsp-20260102T030405Z" elsewhere. At most kJobSetNameMax lower-case
// letters, digits and '-'.
std::string JobSetName(absl::string_view run_name);

// What the pods' config says in place of what `given` does, as fields to be set
// ("server[0].host=..."): hosts, and where nothing else is given the health
// port, and a start timeout that leaves time for images to be loaded.
std::vector<std::string> KubernetesFields(const config::ClusterConfig& given,
                                          const std::string& name);

struct KubernetesParts {
  // With the fields above. launch.kubernetes has an image.
  config::ClusterConfig config;
  std::string name;  // Of the JobSet.
  // Of the job; nullopt with insecure: true.
  std::optional<keys::Key> key = std::nullopt;
};
// A ConfigMap with the config, a Secret with the keys unless
// launch.kubernetes.secret names one, and the JobSet. Pods of servers get the
// job's key, those of workers what a worker holds. InvalidArgument names the
// field that does not fit, and what to do.
absl::StatusOr<std::string> KubernetesManifests(const KubernetesParts& parts);

}  // namespace slackline
