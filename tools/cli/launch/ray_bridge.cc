#include "tools/cli/launch/ray_bridge.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/shell_line.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/launch/remote_cluster.h"
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/launch/slurm_script.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/program_output.h"

namespace slackline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kBridgeSlice = absl::Milliseconds(20);
constexpr absl::Duration kSaySilenceAfter = absl::Seconds(10);
constexpr absl::Duration kSilentEndMax = absl::Seconds(1);
// Actors and the placement group are given back.
constexpr absl::Duration kBridgeEndMax = absl::Seconds(12);
// Longer than the program itself waits for Ray.
constexpr absl::Duration kGoneMax = absl::Seconds(30);
constexpr size_t kLineBytesMax = 1 << 20;
constexpr int64_t kErrorBytesMax = 16 << 10;
constexpr size_t kErrorLinesMax = 4;
// What binds a bundle to the node that has this address.
constexpr double kOfNode = 0.001;

// A path that children of this process can open.
std::string ProcPathOf(const Descriptor& file) {
  return absl::StrCat("/proc/", getpid(), "/fd/", file.get());
}

std::string TextOf(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && found->is_string()
             ? found->get<std::string>()
             : "";
}

// As many nodes as can have a process of the job, and those that are named.
absl::Status CheckNodes(const config::ClusterConfig& config,
                        bool on_these_hosts) {
  const config::Ray& ray = config.launch().ray();
  const int hosts = static_cast<int>(HostsOfMembers(config).size());
  if (on_these_hosts && ray.has_nodes() && ray.nodes() != hosts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch.ray.nodes (--nodes): value is ", ray.nodes(), ", and ", hosts,
        hosts == 1 ? " host is" : " hosts are",
        " named by the config, --hosts or --hostfile; leave nodes out"));
  }
  if (!on_these_hosts && ray.nodes() > hosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch.ray.nodes (--nodes): value is ", ray.nodes(),
                     "; the servers and workers of the config are on ", hosts,
                     " nodes at most"));
  }
  return absl::OkStatus();
}

}  // namespace

config::ClusterConfig WithHosts(config::ClusterConfig config,
                                const std::vector<std::string>& from,
                                const std::vector<std::string>& to) {
  std::map<std::string, std::string> now;
  for (size_t i = 0; i < from.size(); ++i) now[from[i]] = to[i];
  const auto rename = [&](auto* part) {
    const auto found = now.find(part->host());
    if (found != now.end()) part->set_host(found->second);
  };
  if (config.has_coordinator()) rename(config.mutable_coordinator());
  for (config::ServerGroup& group : *config.mutable_server()) rename(&group);
  for (config::WorkerGroup& group : *config.mutable_worker()) rename(&group);
  return config;
}

absl::StatusOr<std::unique_ptr<RayBridge>> RayBridge::Start(Options options) {
  SL_RETURN_IF_ERROR(CheckNodes(options.config, options.on_these_hosts));
  // No make_unique: the constructor is private.
  std::unique_ptr<RayBridge> bridge(new RayBridge(std::move(options)));
  bridge->hosts_ = HostsOfMembers(bridge->options_.config);
  SL_RETURN_IF_ERROR(bridge->StartProgram());
  // If it has ended already, whoever waits for its answer says why.
  (void)bridge->Say(bridge->Request());
  return bridge;
}

RayBridge::~RayBridge() {
  if (!child_.has_value()) return;
  to_ = Descriptor();
  const TimeSource time;
  // What has never answered may be no Python at all.
  const absl::Time end =
      time.Now() + (answers_ ? kBridgeEndMax : kSilentEndMax);
  while (!child_->Poll().has_value() && time.Now() < end)
    usleep(static_cast<useconds_t>(absl::ToInt64Microseconds(kBridgeSlice)));
  if (!answers_) child_->Signal(SIGKILL);
  // Whatever is left of it, its end is noticed by Ray.
}

std::vector<std::string> RayBridge::Words(const std::string& verb) const {
  // Isolated: modules in this folder are none of its business. What reaches a
  // host needs no packages, either, and is there sooner without.
  std::vector<std::string> words = {python_};
  if (verb == "reach") words.insert(words.end(), {"-I", "-S"});
  words.insert(words.end(), {ProcPathOf(text_), verb, name_});
  return words;
}

absl::Status RayBridge::StartProgram() {
  const config::Ray& ray = options_.config.launch().ray();
  const absl::StatusOr<std::string> python = FindProgram(ray.python());
  if (!python.ok()) {
    return absl::NotFoundError(
        absl::StrCat("launch.ray.python: ", python.status().message(),
                     "; name a Python that has Ray, as in --set "
                     "launch.ray.python=/opt/ray/bin/python3"));
  }
  python_ = *python;
  name_ = absl::StrCat("slackline-ray-", absl::Hex(RandomToken()),
                       absl::Hex(RandomToken()));
  SL_ASSIGN_OR_RETURN(text_, FileInMemory());
  SL_RETURN_IF_ERROR(WriteAll(text_.get(), kRayBridgeText));
  SL_ASSIGN_OR_RETURN(errors_, FileInMemory());
  fcntl(errors_.get(), F_SETFL, O_APPEND);
  signal(SIGPIPE, SIG_IGN);  // A closed pipe shows in write().
  SL_ASSIGN_OR_RETURN(Pipe to, OpenPipe());
  SL_ASSIGN_OR_RETURN(Pipe from, OpenPipe());
  to_ = std::move(to.write);
  from_ = std::move(from.read);
  fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  SL_ASSIGN_OR_RETURN(ChildProcess child,
                      ChildProcess::Start({.command = Words("serve"),
                                           .log_path = {},
                                           .standard_input = to.read.get(),
                                           .standard_output = from.write.get(),
                                           .standard_error = errors_.get()}));
  child_ = std::move(child);
  return absl::OkStatus();
}

std::string RayBridge::Request() const {
  const config::Ray& ray = options_.config.launch().ray();
  const SlurmNeeds needs = NeedsOf(options_.config);
  Json bundles = Json::array();
  for (const std::string& host : hosts_) {
    Json bundle = {{"CPU", needs.cpus_per_node}};
    if (needs.gpus_per_node > 0) bundle["GPU"] = needs.gpus_per_node;
    for (const std::string& resource : ray.resource()) {
      const size_t equals = resource.rfind('=');
      double amount = 0;
      if (absl::SimpleAtod(resource.substr(equals + 1), &amount))
        bundle[resource.substr(0, equals)] = amount;
    }
    if (options_.on_these_hosts) bundle[absl::StrCat("node:", host)] = kOfNode;
    bundles.push_back(std::move(bundle));
  }
  return Json({{"address", ray.address()},
               {"job", options_.config.job()},
               {"autoscaled", ray.autoscaled()},
               {"bundles", std::move(bundles)}})
      .dump();
}

absl::Status RayBridge::Say(const std::string& line) {
  return Annotate(WriteAll(to_.get(), absl::StrCat(line, "\n")),
                  "--on ray: the bridge to Ray");
}

absl::StatusOr<std::optional<std::string>> RayBridge::NextLine() {
  while (true) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> bytes;
    const ssize_t count = read(from_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return std::nullopt;
    if (count <= 0 || received_.size() > kLineBytesMax) {
      const std::vector<std::string> said =
          LastLines(TailOf(errors_, kErrorBytesMax), kErrorLinesMax);
      return absl::UnavailableError(
          absl::StrCat("the bridge to Ray, which launch.ray.python (", python_,
                       ") runs, has ended", said.empty() ? "" : ": ",
                       absl::StrJoin(said, "; ")));
    }
    received_.append(bytes.data(), static_cast<size_t>(count));
  }
}

absl::StatusOr<config::ClusterConfig> RayBridge::AwaitHosts(
    SignalWatch* signals) {
  const TimeSource time;
  const absl::Time say_at = time.Now() + kSaySilenceAfter;
  bool said = false;
  while (true) {
    SL_RETURN_IF_ERROR(CheckSignals(signals, kBridgeSlice));
    absl::StatusOr<std::optional<std::string>> line = NextLine();
    if (!line.ok()) return Annotate(line.status(), "--on ray");
    if (!line->has_value()) {
      if (answers_ || said || time.Now() < say_at) continue;
      said = true;
      if (options_.say) {
        options_.say(absl::StrCat("waits for launch.ray.python (", python_,
                                  "), which has said nothing yet"));
      }
      continue;
    }
    answers_ = true;
    const Json message = Json::parse(**line, nullptr, /*exceptions=*/false);
    if (!message.is_object()) {
      return absl::InternalError(
          absl::StrCat("--on ray: the bridge to Ray has said '",
                       line->value().substr(0, 80), "', which is no message"));
    }
    if (const std::string text = TextOf(message, "say"); !text.empty()) {
      if (options_.say) options_.say(text);
      continue;
    }
    if (const std::string text = TextOf(message, "error"); !text.empty())
      return absl::FailedPreconditionError(absl::StrCat("--on ray: ", text));
    head_ = TextOf(message, "head");
    std::vector<std::string> hosts;
    for (const Json& host : message.value("hosts", Json::array()))
      hosts.push_back(host.is_string() ? host.get<std::string>() : "");
    if (hosts.size() != hosts_.size() || absl::c_linear_search(hosts, "")) {
      return absl::InternalError(
          absl::StrCat("--on ray: the bridge to Ray has given ", hosts.size(),
                       " nodes, and ", hosts_.size(), " are needed"));
    }
    return WithHosts(options_.config, hosts_, hosts);
  }
}

absl::StatusOr<config::ClusterConfig> RayBridge::AwaitNodes(
    SignalWatch* signals) {
  return AwaitHosts(signals);
}

absl::StatusOr<config::ClusterConfig> RayBridge::ReplaceNodes(
    SignalWatch* signals) {
  SL_RETURN_IF_ERROR(Say(R"({"ask": "nodes"})"));
  return AwaitHosts(signals);
}

std::string RayBridge::GoneText(const std::string& why) const {
  return absl::StrCat("the Ray cluster at ", head_, " is gone: ", why);
}

std::string RayBridge::LookCommand() const {
  return ShellLine({"ray", "status", absl::StrCat("--address=", head_)});
}

std::string RayBridge::WhyGone() {
  const TimeSource time;
  const absl::Time end = time.Now() + kGoneMax;
  absl::Status there;
  // Ray ends a program whose cluster is gone, which shows below.
  Say(R"({"ask": "gone"})").IgnoreError();
  while (time.Now() < end) {
    const absl::StatusOr<std::optional<std::string>> line = NextLine();
    there = line.status();
    if (!there.ok()) break;
    if (!line->has_value()) {
      usleep(static_cast<useconds_t>(absl::ToInt64Microseconds(kBridgeSlice)));
      continue;
    }
    const Json message = Json::parse(**line, nullptr, /*exceptions=*/false);
    if (!message.is_object() || !message.contains("gone")) continue;
    const std::string why = TextOf(message, "gone");
    return why.empty() ? "" : GoneText(why);
  }
  return GoneText(there.ok() ? absl::StrCat("Ray has said nothing for ",
                                            absl::FormatDuration(kGoneMax))
                             : std::string(there.message()));
}

RemoteShell RayBridge::Shell() const {
  RemoteShell shell;
  shell.name = "ray";
  shell.line = [words = Words("reach")](
                   const std::string& host,
                   const std::vector<std::string>& command) {
    std::vector<std::string> line = words;
    line.push_back(host);
    line.insert(line.end(), command.begin(), command.end());
    return line;
  };
  shell.advice = [](const std::string& /*host*/, absl::string_view output) {
    if (absl::StrContains(output, "bridge to Ray has ended"))
      return "the way to the Ray cluster is lost; `ray status` says how it is";
    return "";
  };
  return shell;
}

}  // namespace slackline
