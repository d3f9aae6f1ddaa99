#include "common/config/launch_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/address_secret.h"

namespace slackline {
namespace {

// The names of its pods have more behind it, and 63 characters at most.
constexpr size_t kJobSetNameLengthMax = 40;

void CheckRay(const config::Ray& ray, const ConfigProblems& problems) {
  if (ray.has_nodes()) problems.Range("nodes", ray.nodes(), 1, 4096);
  for (const std::string& resource : ray.resource()) {
    const size_t equals = resource.rfind('=');
    double amount = 0;
    if (equals != std::string::npos && equals > 0 &&
        absl::SimpleAtod(resource.substr(equals + 1), &amount) && amount > 0 &&
        std::isfinite(amount)) {
      continue;
    }
    problems.Add("resource", absl::StrCat("value is ", Printable(resource),
                                          "; NAME=AMOUNT is required, with an "
                                          "amount above 0, as in "
                                          "\"memory=16e9\""));
  }
}

// Names of objects in Kubernetes: labels of DNS, with dots in between for some.
void CheckKubernetes(const config::Kubernetes& kubernetes,
                     const ConfigProblems& problems) {
  const auto check_name = [&](const std::string& field, const std::string& name,
                              size_t length_max, bool may_have_dots) {
    bool fits = !name.empty() && name.size() <= length_max &&
                absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
                absl::ascii_isalnum(static_cast<unsigned char>(name.back()));
    for (const unsigned char c : name) {
      fits = fits && (absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                      c == '-' || (may_have_dots && c == '.'));
    }
    if (fits) return;
    problems.Add(
        field, absl::StrCat("value is ", Printable(name), "; 1 to ", length_max,
                            " lower-case letters, digits or '-'",
                            may_have_dots ? " or '.'" : "",
                            " are required, the first and the last a "
                            "letter or digit"));
  };
  if (kubernetes.has_name()) {
    check_name("name", kubernetes.name(), kJobSetNameLengthMax, false);
    if (!kubernetes.name().empty() &&
        absl::ascii_isdigit(static_cast<unsigned char>(kubernetes.name()[0]))) {
      problems.Add("name",
                   absl::StrCat("value is ", Printable(kubernetes.name()),
                                "; a letter has to come first, since "
                                "a service has this name, too"));
    }
  }
  if (kubernetes.has_namespace_())
    check_name("namespace", kubernetes.namespace_(), 63, false);
  for (const auto& [field, has, name] :
       {std::tuple("claim", kubernetes.has_claim(), kubernetes.claim()),
        std::tuple("data_claim", kubernetes.has_data_claim(),
                   kubernetes.data_claim()),
        std::tuple("secret", kubernetes.has_secret(), kubernetes.secret())}) {
    if (has) check_name(field, name, 253, true);
  }
  const std::string& image = kubernetes.image();
  if (!kubernetes.has_image()) {
    problems.Add("image",
                 "is missing; name an image that has Slackline in it, as in "
                 "image: \"registry/slackline:1\" (docs/manual/clusters.md "
                 "says how to make one)");
  } else if (image.empty() ||
             !std::all_of(image.begin(), image.end(), [](unsigned char c) {
               return absl::ascii_isgraph(c);
             })) {
    problems.Add("image", absl::StrCat("value is ", Printable(image),
                                       "; a name without blanks is required"));
  }
  if (kubernetes.has_grace_seconds())
    problems.Range("grace_seconds", kubernetes.grace_seconds(), 1, 86400);
  problems.Range("pod_restarts", kubernetes.pod_restarts(), 0, 1000000);
}

// Each is a word or a line of a batch script.
void CheckSlurm(const config::Slurm& slurm, bool has_checkpoint,
                const ConfigProblems& problems) {
  const auto check_text = [&](const std::string& name,
                              const std::string& text) {
    const bool is_line =
        !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
          return absl::ascii_iscntrl(static_cast<unsigned char>(c));
        });
    if (is_line) return true;
    problems.Add(name, absl::StrCat("value is ", Printable(text),
                                    "; a text without line breaks is "
                                    "required"));
    return false;
  };
  for (const auto& [name, has, text] :
       {std::tuple("partition", slurm.has_partition(), slurm.partition()),
        std::tuple("account", slurm.has_account(), slurm.account()),
        std::tuple("qos", slurm.has_qos(), slurm.qos()),
        std::tuple("time", slurm.has_time(), slurm.time()),
        std::tuple("constraint", slurm.has_constraint(), slurm.constraint())}) {
    if (has) check_text(name, text);
  }
  for (const auto& [name, options] :
       {std::pair("option", &slurm.option()),
        std::pair("srun_option", &slurm.srun_option())}) {
    for (const std::string& option : *options) {
      if (!check_text(name, option) || option[0] == '-') continue;
      problems.Add(name,
                   absl::StrCat("value is ", Printable(option),
                                "; an option with its dashes is required, "
                                "as in \"--exclusive\""));
    }
  }
  if (slurm.has_nodes()) problems.Range("nodes", slurm.nodes(), 1, 4096);
  problems.Range("warning_seconds", slurm.warning_seconds(), 1, 65535);
  if (slurm.requeue() && !has_checkpoint) {
    problems.Add("requeue",
                 "value is true; a job that is queued again goes on from a "
                 "checkpoint: a checkpoint block is required, as in "
                 "checkpoint { every_epochs: 1 }");
  }
}

}  // namespace

// Paths are those of other hosts: what is there shows when it is started.
void CheckLaunch(const config::ClusterConfig& config,
                 const ConfigProblems& config_problems) {
  const config::Launch& launch = config.launch();
  const ConfigProblems problems = config_problems.In("launch");
  for (const auto& [name, path] : {std::pair("bin_dir", launch.bin_dir()),
                                   std::pair("runs_dir", launch.runs_dir()),
                                   std::pair("data_dir", launch.data_dir())}) {
    if (path.empty() || path[0] == '/') continue;
    problems.Add(name, absl::StrCat("value is ", Printable(path),
                                    "; an absolute path is required"));
  }
  problems.Range("log_mib", launch.log_mib(), 0, 1 << 20, "0: no bound");
  for (const std::string& variable : launch.environment()) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos && equals > 0) continue;
    problems.Add("environment", absl::StrCat("value is ", Printable(variable),
                                             "; NAME=VALUE is required, as in "
                                             "\"OMP_NUM_THREADS=1\""));
  }
  if (launch.has_ssh() && launch.ssh().has_port())
    problems.In("ssh").Range("port", launch.ssh().port(), 1, 65535);
  if (launch.has_slurm())
    CheckSlurm(launch.slurm(), config.has_checkpoint(), problems.In("slurm"));
  if (launch.has_ray()) CheckRay(launch.ray(), problems.In("ray"));
  if (launch.has_kubernetes())
    CheckKubernetes(launch.kubernetes(), problems.In("kubernetes"));
}

void CheckTrack(const config::ClusterConfig& config,
                const ConfigProblems& config_problems) {
  if (!config.has_track()) return;
  const config::Track& track = config.track();
  const ConfigProblems problems = config_problems.In("track");
  if (!track.has_mlflow() && !track.has_wandb() && !track.has_tensorboard()) {
    problems.Add("",
                 "names no tracker; write mlflow {}, wandb {} or tensorboard "
                 "{} in it, or leave it out");
  }
  const auto check = [&](const char* field, bool is_given,
                         const std::string& value) {
    if (is_given && value.empty())
      problems.Add(field, "is empty; write a name, or leave it out");
    if (std::any_of(value.begin(), value.end(), absl::ascii_iscntrl)) {
      problems.Add(field,
                   "has a control character; write it without, in one line");
    }
  };
  check("project", track.has_project(), track.project());
  check("wandb.folder", track.wandb().has_folder(), track.wandb().folder());
  check("tensorboard.folder", track.tensorboard().has_folder(),
        track.tensorboard().folder());
  check("mlflow.place", track.mlflow().has_place(), track.mlflow().place());
  // The config is copied to all hosts, and shown to whoever asks.
  if (MayHaveSecret(track.mlflow().place())) {
    problems.Add("mlflow.place",
                 absl::StrCat("has an '@', a password or a token in its "
                              "address; ",
                              kWithoutSecret));
  }
}

}  // namespace slackline
