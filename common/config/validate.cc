#include "common/config/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "common/optim/stale_rule.h"
#include "google/protobuf/descriptor.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Bounds on counts. They refuse slips of the keyboard, not real clusters.
constexpr int kServersMax = 1024;
constexpr int kWorkersMax = 4096;
constexpr int kThreadsMax = 256;
constexpr int kGroupsMax = 1024;
constexpr int kJobLengthMax = 64;
constexpr int kHostLengthMax = 253;  // RFC 1035's bound on names.
constexpr int kKibMax = 1 << 20;     // 1 GiB, far from where int32 bytes end.
constexpr int kTimeoutMsMax = 24 * 3600 * 1000;
constexpr int kSlowdownMax = 1000;
constexpr int kStepMsMax = 3600 * 1000;
constexpr int kLatencyMsMax = 1000;
constexpr int kMibMax = 1 << 20;  // 1 TiB.
constexpr int kMovesMax = 1000000;
constexpr int64_t kStepsMax = int64_t{1} << 40;
// As the schema says.
constexpr int kNcclBucketKib = 25600;
constexpr int kGlooBucketKib = 4096;
constexpr int kStalenessMax = 1000000;
constexpr int kPhasesMax = 1000;
constexpr int kGpuMax = 1023;     // The largest index.
constexpr int kProblemsMax = 50;  // Nobody reads more.

// Gives every scalar field with a default an explicit value, in this message
// and in the blocks that are present in it.
void WriteScalarDefaults(Message* message) {
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (field->is_repeated()) {
        for (int k = 0; k < reflection.FieldSize(*message, field); ++k) {
          WriteScalarDefaults(
              reflection.MutableRepeatedMessage(message, field, k));
        }
      } else if (reflection.HasField(*message, field)) {
        WriteScalarDefaults(reflection.MutableMessage(message, field));
      }
      continue;
    }
    if (field->is_repeated() || !field->has_default_value() ||
        reflection.HasField(*message, field)) {
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        reflection.SetInt32(message, field, field->default_value_int32());
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(message, field, field->default_value_int64());
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(message, field, field->default_value_double());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(message, field, field->default_value_bool());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection.SetEnum(message, field, field->default_value_enum());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(message, field,
                             std::string(field->default_value_string()));
        break;
      default:
        break;  // The schema has no fields of other types.
    }
  }
}

bool IsNumericAddress(absl::string_view host) {
  return !host.empty() &&
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

// Two names for one interface would hide a port that is taken twice.
std::string SameHostKey(const std::string& host) {
  return host == "localhost" ? "127.0.0.1" : absl::AsciiStrToLower(host);
}

// A value as an error may show it: without control characters, cut to a line.
std::string Printable(const std::string& value) {
  const std::string text = absl::CHexEscape(value.substr(0, 64));
  return absl::StrCat("'", text, value.size() > 64 ? "..." : "", "'");
}

// Empty if `host` can be connected to as it is written, else what is wrong.
std::string HostProblem(const std::string& host) {
  if (host.empty()) return "is empty; a name or an IPv4 address is required";
  if (host == "*" || host == "0.0.0.0" || host == "::" || host == "[::]") {
    return absl::StrCat("value is ", host,
                        "; the other processes connect to this address, so "
                        "write the one under which they reach the machine");
  }
  if (host.size() > kHostLengthMax) {
    return absl::StrCat("value has ", host.size(), " characters; at most ",
                        kHostLengthMax, " are allowed");
  }
  if (absl::StrContains(host, "://")) {
    return absl::StrCat("value is ", Printable(host),
                        "; leave out the part up to ://");
  }
  const size_t colons = std::count(host.begin(), host.end(), ':');
  if (colons == 1) {
    return absl::StrCat("value is ", Printable(host),
                        "; the port goes into the field port");
  }
  if (colons > 1) {
    return absl::StrCat("value is ", Printable(host),
                        "; IPv6 addresses are not supported, write a name or "
                        "an IPv4 address");
  }
  for (const unsigned char c : host) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_') {
      return absl::StrCat("value is ", Printable(host),
                          "; only letters, digits, '.', '-' and '_' are "
                          "allowed in a host name");
    }
  }
  if (!IsNumericAddress(host)) return "";
  const std::vector<std::string> parts = absl::StrSplit(host, '.');
  bool valid = parts.size() == 4;
  for (const std::string& part : parts) {
    int number = 0;
    valid = valid && part.size() <= 3 && absl::SimpleAtoi(part, &number) &&
            number <= 255;
  }
  return valid ? ""
               : absl::StrCat("value is ", host,
                              "; an IPv4 address has four numbers from 0 to "
                              "255, as in 10.0.0.5");
}

bool IsCuda(const config::WorkerGroup& group) {
  return group.device() == config::WorkerGroup::CUDA;
}
bool HasCuda(const config::ClusterConfig& config) {
  return std::any_of(config.worker().begin(), config.worker().end(), IsCuda);
}
// Then they all-reduce by NCCL.
bool AllCuda(const config::ClusterConfig& config) {
  return std::all_of(config.worker().begin(), config.worker().end(), IsCuda);
}

// The name of the mode that is set.
std::string ModeField(const config::Sync& sync) {
  return config::Sync::descriptor()
      ->FindFieldByNumber(sync.mode_case())
      ->name();
}

class Validator {
 public:
  Validator(const config::ClusterConfig& config, const FieldOrigins& origins)
      : config_(config), origins_(origins) {}

  absl::Status Run() {
    CheckJob();
    CheckServers();
    CheckWorkers();
    CheckHosts();
    CheckPorts();
    CheckModel();
    CheckData();
    CheckModelFitsData();
    CheckOptimizer();
    CheckSchedule();
    CheckSync();
    CheckTrain();
    CheckLimits();
    CheckRebalance();
    if (problems_.empty()) return absl::OkStatus();
    if (problems_.size() > kProblemsMax) {
      const size_t more = problems_.size() - kProblemsMax;
      problems_.resize(kProblemsMax);
      problems_.push_back(absl::StrCat("and ", more, " more"));
    }
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(const std::string& path, absl::string_view text) {
    problems_.push_back(
        absl::StrCat(origins_.Nearest(path), ": ", path, ": ", text));
  }

  // `bound` completes "... is required".
  template <typename Value>
  void Require(bool ok, const std::string& path, Value value,
               absl::string_view bound, absl::string_view fix = "") {
    if (ok) return;
    Problem(path, absl::StrCat("value is ", value, "; ", bound, " is required",
                               fix.empty() ? "" : "; ", fix));
  }

  bool Range(const std::string& path, int64_t value, int64_t low, int64_t high,
             absl::string_view fix = "") {
    if (value >= low && value <= high) return true;
    Problem(path, absl::StrCat("value is ", value, "; ", low, " to ", high,
                               " is required", fix.empty() ? "" : "; ", fix));
    return false;
  }

  void AtLeastZero(const std::string& path, double value) {
    Require(std::isfinite(value) && value >= 0, path, value, "at least 0");
  }
  void AboveZero(const std::string& path, double value,
                 absl::string_view fix = "") {
    Require(std::isfinite(value) && value > 0, path, value, "above 0", fix);
  }
  void Fraction(const std::string& path, double value) {
    Require(value >= 0 && value < 1, path, value, "at least 0 and below 1");
  }

  void CheckJob() {
    const std::string& job = config_.job();
    if (!config_.has_job()) {
      return Problem("job", "is missing; name the run, as in job: \"mnist\"");
    }
    bool valid = !job.empty() && job.size() <= kJobLengthMax &&
                 absl::ascii_isalnum(static_cast<unsigned char>(job[0]));
    for (const unsigned char c : job) {
      valid =
          valid && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
    }
    // Output files and sockets carry the name.
    if (!valid) {
      Problem("job", absl::StrCat(
                         "value is ", Printable(job), "; 1 to ", kJobLengthMax,
                         " letters, digits, '-', '_' or '.' are required, "
                         "the first a letter or digit"));
    }
  }

  void CheckServers() {
    if (config_.server_size() == 0) {
      return Problem("server",
                     "is missing; at least one is required, as in server { "
                     "host: \"127.0.0.1\" }");
    }
    int64_t total = 0;
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      const std::string path = absl::StrCat("server[", i, "]");
      Range(path + ".count", group.count(), 1, kServersMax);
      Range(path + ".threads", group.threads(), 1, kThreadsMax);
      Range(path + ".port", group.port(), 0, 65535);
      CheckSlowdown(path + ".slowdown", group.slowdown(),
                    "1 is the server's own speed");
      total += group.count();
    }
    CheckTotal("server", config_.server_size(), total, kServersMax);
  }

  void CheckWorkers() {
    if (config_.worker_size() == 0) {
      return Problem("worker",
                     "is missing; at least one is required, as in worker { "
                     "host: \"127.0.0.1\" count: 4 }");
    }
    int64_t total = 0;
    bool counts_ok = config_.worker_size() <= kGroupsMax, gpus_ok = true;
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      const std::string path = absl::StrCat("worker[", i, "]");
      counts_ok =
          Range(path + ".count", group.count(), 1, kWorkersMax) && counts_ok;
      if (group.device() == config::WorkerGroup::DEVICE_UNSPECIFIED) {
        Problem(path + ".device",
                "value is DEVICE_UNSPECIFIED; CPU or CUDA is required");
      }
      gpus_ok = CheckGpuList(path, group) && gpus_ok;
      Range(path + ".threads", group.threads(), 1, kThreadsMax);
      CheckSlowdown(path + ".slowdown", group.slowdown(),
                    "1 is the worker's own speed");
      CheckConditions(path + ".conditions", group.conditions());
      total += group.count();
    }
    CheckTotal("worker", config_.worker_size(), total, kWorkersMax);
    if (gpus_ok && counts_ok && total <= kWorkersMax) CheckGpusDiffer();
  }

  void CheckConditions(const std::string& path,
                       const config::Conditions& conditions) {
    const double step_ms = conditions.step_ms();
    Require(step_ms >= 0 && step_ms <= kStepMsMax, path + ".step_ms", step_ms,
            absl::StrCat("0 to ", kStepMsMax));
    if (conditions.has_random()) {
      const config::RandomSlowdown& random = conditions.random();
      if (random.distribution() ==
          config::RandomSlowdown::DISTRIBUTION_UNSPECIFIED) {
        Problem(path + ".random.distribution",
                "value is DISTRIBUTION_UNSPECIFIED; UNIFORM, EXPONENTIAL or "
                "PARETO is required");
      }
      Require(random.mean() > 0 && random.mean() <= kSlowdownMax,
              path + ".random.mean", random.mean(),
              absl::StrCat("above 0 and at most ", kSlowdownMax),
              "1 makes a step twice as long, on average");
    }
    if (conditions.has_periodic())
      CheckPeriodic(path + ".periodic", conditions.periodic());
    for (int i = 0; i < conditions.pause_size(); ++i)
      CheckPause(absl::StrCat(path, ".pause[", i, "]"), conditions.pause(i));
    if (conditions.has_link()) CheckLink(path + ".link", conditions.link());
  }

  void CheckPeriodic(const std::string& path,
                     const config::PeriodicSlowdown& periodic) {
    if (periodic.has_factor()) {
      CheckSlowdown(path + ".factor", periodic.factor(),
                    "1 is the worker's own speed");
    } else {
      Problem(path + ".factor",
              "is missing; how many times slower, as in factor: 4");
    }
    if (periodic.has_slow_ms()) {
      AboveZero(path + ".slow_ms", periodic.slow_ms());
    } else {
      Problem(path + ".slow_ms",
              "is missing; how long it is slow, as in slow_ms: 2000");
    }
    if (periodic.has_fast_ms()) {
      AtLeastZero(path + ".fast_ms", periodic.fast_ms());
    } else {
      Problem(path + ".fast_ms",
              "is missing; how long it is not slow, as in fast_ms: 8000");
    }
    AtLeastZero(path + ".offset_ms", periodic.offset_ms());
  }

  void CheckPause(const std::string& path, const config::Pause& pause) {
    if (pause.has_step()) {
      Range(path + ".step", pause.step(), 0, kStepsMax,
            "the first step has the number 0");
    } else {
      Problem(path + ".step", "is missing; before which step, as in step: 300");
    }
    if (!pause.has_ms()) {
      return Problem(path + ".ms", "is missing; how long, as in ms: 5000");
    }
    // Who waits for this worker would give up.
    const int wait_ms = config_.limits().wait_timeout_ms();
    Require(pause.ms() > 0 && pause.ms() < wait_ms, path + ".ms", pause.ms(),
            absl::StrCat("above 0 and less than limits.wait_timeout_ms (",
                         wait_ms, ")"));
  }

  void CheckLink(const std::string& path, const config::Link& link) {
    Require(link.latency_ms() >= 0 && link.latency_ms() <= kLatencyMsMax,
            path + ".latency_ms", link.latency_ms(),
            absl::StrCat("0 to ", kLatencyMsMax));
    if (link.has_bandwidth_mbit()) {
      AboveZero(path + ".bandwidth_mbit", link.bandwidth_mbit(),
                "leave it out for no bound");
    } else if (link.latency_ms() == 0) {
      Problem(path,
              "has neither latency_ms nor bandwidth_mbit; give one, or leave "
              "the link out");
    }
    if (AllCuda(config_) && MayAllReduce()) {
      Problem(path,
              "cannot be: these workers all-reduce by NCCL, which knows no "
              "such links; leave it out, or use bsp, ssp or asp");
    }
  }

  bool MayAllReduce() const {
    const config::Sync& sync = config_.sync();
    return sync.has_allreduce() || sync.has_auto_() ||
           std::any_of(sync.phase().begin(), sync.phase().end(),
                       [](const config::Phase& phase) {
                         return phase.has_allreduce();
                       });
  }

  // Whether the list, if there is one, can be used.
  bool CheckGpuList(const std::string& path, const config::WorkerGroup& group) {
    if (group.gpu_size() == 0) return true;
    if (group.device() != config::WorkerGroup::CUDA) {
      Problem(path + ".gpu",
              "is for workers that train on GPUs; add device: CUDA, or leave "
              "it out");
      return false;
    }
    if (group.gpu_size() != group.count()) {
      Problem(path + ".gpu",
              absl::StrCat("lists ", group.gpu_size(), "; one for each of the ",
                           group.count(),
                           " processes of the group is required, or none"));
      return false;
    }
    bool in_range = true;
    for (int i = 0; i < group.gpu_size(); ++i) {
      in_range = Range(absl::StrCat(path, ".gpu[", i, "]"), group.gpu(i), 0,
                       kGpuMax) &&
                 in_range;
    }
    return in_range;
  }

  // No two processes on one GPU: NCCL refuses that.
  void CheckGpusDiffer() {
    // Machine and index to the field that takes it.
    std::map<std::pair<std::string, int>, std::string> taken;
    const std::vector<WorkerProcess> workers = WorkerProcesses(config_);
    size_t rank = 0;
    for (int i = 0; i < config_.worker_size(); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      for (int p = 0; p < group.count(); ++p, ++rank) {
        const WorkerProcess& worker = workers[rank];
        if (worker.gpu < 0) continue;
        const std::string path = absl::StrCat(
            "worker[", i, "]",
            group.gpu_size() > 0 ? absl::StrCat(".gpu[", p, "]") : "");
        const auto [other, is_new] =
            taken.insert({{MachineOf(worker.host), worker.gpu}, path});
        if (is_new) continue;
        Problem(path, absl::StrCat("GPU ", worker.gpu, " of ", worker.host,
                                   " is already taken by ", other->second,
                                   "; each worker needs its own, list "
                                   "different ones in the field gpu"));
      }
    }
  }

  void CheckSlowdown(const std::string& path, double value,
                     absl::string_view fix) {
    Require(value >= 1 && value <= kSlowdownMax, path, value,
            absl::StrCat("1 to ", kSlowdownMax), fix);
  }

  void CheckTotal(const std::string& field, int groups, int64_t processes,
                  int64_t processes_max) {
    if (groups > kGroupsMax) {
      Problem(field, absl::StrCat("there are ", groups, " blocks; at most ",
                                  kGroupsMax, " are allowed, use count"));
    } else if (groups > 1 && processes > processes_max) {
      Problem(field, absl::StrCat("there are ", processes,
                                  " processes in all; at most ", processes_max,
                                  " are allowed"));
    }
  }

  struct HostField {
    std::string path;
    std::string host;
  };

  // Fields with a usable address; the others are reported.
  std::vector<HostField> UsableHosts() {
    std::vector<HostField> usable;
    const auto add = [&](const std::string& path, bool given,
                         const std::string& host) {
      const std::string problem =
          given ? HostProblem(host)
                : "is missing; write the address of the machine, as in host: "
                  "\"127.0.0.1\"";
      if (problem.empty()) {
        usable.push_back({path, host});
      } else {
        Problem(path, problem);
      }
    };
    // A coordinator's host that is the default repeats the server's problems.
    if (!origins_.At("coordinator.host").empty()) {
      add("coordinator.host", true, config_.coordinator().host());
    }
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      add(absl::StrCat("server[", i, "].host"), group.has_host(), group.host());
    }
    for (int i = 0; i < std::min(config_.worker_size(), kGroupsMax); ++i) {
      const config::WorkerGroup& group = config_.worker(i);
      add(absl::StrCat("worker[", i, "].host"), group.has_host(), group.host());
    }
    return usable;
  }

  void CheckHosts() {
    const HostField* loopback = nullptr;
    const HostField* remote = nullptr;
    std::set<std::string> remote_hosts;
    const std::vector<HostField> hosts = UsableHosts();
    for (const HostField& field : hosts) {
      if (IsLoopback(field.host)) {
        if (loopback == nullptr) loopback = &field;
        continue;
      }
      if (remote == nullptr) remote = &field;
      const bool first = remote_hosts.insert(SameHostKey(field.host)).second;
      if (first && !config_.insecure()) {
        Problem(field.path,
                absl::StrCat("value is ", field.host,
                             "; nothing on the wire is encrypted or "
                             "authenticated, set insecure: true to accept that "
                             "on a network that you trust"));
      }
    }
    if (loopback != nullptr && remote != nullptr) {
      Problem(loopback->path,
              absl::StrCat("value is ", loopback->host, "; processes on ",
                           remote->host, " (", remote->path,
                           ") cannot reach that, write this machine's address "
                           "on their network"));
    }
    const size_t machines = remote_hosts.size() + (loopback != nullptr ? 1 : 0);
    if (config_.limits().transport() == config::Limits::IPC && machines > 1) {
      Problem("limits.transport",
              absl::StrCat("value is IPC, but the config names ", machines,
                           " hosts; IPC works within one host, AUTO uses it "
                           "where it can"));
    }
  }

  // Ports [first, end) on one host, asked for by one field.
  struct PortClaim {
    std::string path;
    std::string host;
    int64_t first = 0;
    int64_t end = 0;
  };

  void CheckPorts() {
    const int coordinator_port = config_.coordinator().port();
    Range("coordinator.port", coordinator_port, 0, 65535);
    std::vector<PortClaim> claims;
    const auto claim = [&](const std::string& path, const std::string& host,
                           int64_t port, int64_t count) {
      if (port < 1 || port > 65535 || count < 1) return;  // Free, or reported.
      if (port + count > 65536) {
        return Problem(
            path, absl::StrCat("value is ", port, "; the group's ", count,
                               " threads need ports up to ", port + count - 1,
                               ", 65535 is the largest"));
      }
      const std::string key = SameHostKey(host);
      for (const PortClaim& other : claims) {
        const int64_t shared = std::max(port, other.first);
        if (other.host != key || shared >= std::min(port + count, other.end)) {
          continue;
        }
        const std::string origin = origins_.At(other.path);
        return Problem(
            path,
            absl::StrCat("address ", host, ":", shared, " is already taken by ",
                         other.path, " (", origin.empty() ? "default" : origin,
                         "); choose another port, or 0 for any"));
      }
      claims.push_back({path, key, port, port + count});
    };
    claim("coordinator.port", config_.coordinator().host(), coordinator_port,
          1);
    for (int i = 0; i < std::min(config_.server_size(), kGroupsMax); ++i) {
      const config::ServerGroup& group = config_.server(i);
      claim(absl::StrCat("server[", i, "].port"), group.host(), group.port(),
            int64_t{group.count()} * group.threads());
    }
  }

  void CheckModel() {
    const config::Model& model = config_.model();
    switch (model.kind_case()) {
      case config::Model::kSoftmax:
      case config::Model::kLenet:
        break;
      case config::Model::kMlp:
        if (model.mlp().hidden_size() == 0) {
          Problem("model.mlp.hidden",
                  "is missing; at least one layer is required, as in hidden: "
                  "512; a net without hidden layers is softmax {}");
        }
        if (model.mlp().hidden_size() > 64) {
          Problem("model.mlp.hidden",
                  absl::StrCat("there are ", model.mlp().hidden_size(),
                               " layers; at most 64 are allowed"));
        }
        for (int i = 0; i < std::min(model.mlp().hidden_size(), 64); ++i) {
          Range(absl::StrCat("model.mlp.hidden[", i, "]"),
                model.mlp().hidden(i), 1, 1 << 16);
        }
        break;
      case config::Model::kLogistic:
        AtLeastZero("model.logistic.l2", model.logistic().l2());
        break;
      case config::Model::KIND_NOT_SET:
        Problem("model",
                "is missing; one of softmax, mlp, lenet and logistic is "
                "required, as in model { softmax {} }");
    }
  }

  // A file or folder below the data folder.
  void CheckDataPath(const std::string& path, bool given,
                     const std::string& value, absl::string_view example) {
    if (!given || value.empty()) {
      return Problem(path, absl::StrCat("is missing; write its place below the "
                                        "data folder, as in ",
                                        example));
    }
    const std::vector<std::string> parts = absl::StrSplit(value, '/');
    if (value[0] == '/' ||
        std::find(parts.begin(), parts.end(), "..") != parts.end()) {
      return Problem(path,
                     absl::StrCat("value is ", Printable(value),
                                  " and leaves the data folder; write it "
                                  "relative to the folder that --data-dir "
                                  "names"));
    }
    for (const unsigned char c : value) {
      if (absl::ascii_iscntrl(c)) {
        return Problem(path, absl::StrCat("value is ", Printable(value),
                                          "; remove the control character"));
      }
    }
  }

  void CheckData() {
    const config::Data& data = config_.data();
    switch (data.source_case()) {
      case config::Data::kIdx:
        CheckDataPath("data.idx.folder", true, data.idx().folder(), "mnist");
        break;
      case config::Data::kLibsvm: {
        const config::LibsvmData& libsvm = data.libsvm();
        CheckDataPath("data.libsvm.train", libsvm.has_train(), libsvm.train(),
                      "a9a/a9a.gz");
        CheckDataPath("data.libsvm.test", libsvm.has_test(), libsvm.test(),
                      "a9a/a9a.t.gz");
        if (libsvm.has_features()) {
          Range("data.libsvm.features", libsvm.features(), 1, 1 << 26);
        } else {
          Problem("data.libsvm.features",
                  "is missing; the largest feature index is required, as in "
                  "features: 123");
        }
        break;
      }
      case config::Data::kTeacherStudent: {
        const config::TeacherStudentData& teacher = data.teacher_student();
        const std::string path = "data.teacher_student";
        Range(path + ".features", teacher.features(), 1, 1 << 20);
        Range(path + ".classes", teacher.classes(), 2, 1 << 16);
        Range(path + ".train_examples", teacher.train_examples(), 1, 1 << 28);
        Range(path + ".test_examples", teacher.test_examples(), 1, 1 << 28);
        Require(teacher.seed() >= 0, path + ".seed", teacher.seed(),
                "at least 0");
        break;
      }
      case config::Data::SOURCE_NOT_SET:
        Problem("data",
                "is missing; one of idx, libsvm and teacher_student is "
                "required, as in data { idx { folder: \"mnist\" } }");
    }
    if (config_.has_data()) {
      Range("data.batch_size", data.batch_size(), 1, 1 << 20);
    }
  }

  void CheckModelFitsData() {
    const config::Data& data = config_.data();
    if (config_.model().has_logistic()) {
      if (data.has_idx()) {
        Problem("model.logistic",
                "separates two classes, data.idx has ten; use softmax {}");
      }
      if (data.has_teacher_student() && data.teacher_student().classes() != 2) {
        Problem("data.teacher_student.classes",
                absl::StrCat("value is ", data.teacher_student().classes(),
                             "; model.logistic separates two classes, write 2 "
                             "or use softmax {}"));
      }
    }
    if (config_.model().has_lenet()) {
      const auto check = [&](const std::string& path, int features) {
        if (features == 784) return;
        Problem(path, absl::StrCat("value is ", features,
                                   "; model.lenet reads 28x28 pixels, 784 is "
                                   "required, or use another model"));
      };
      if (data.libsvm().has_features()) {
        check("data.libsvm.features", data.libsvm().features());
      }
      if (data.has_teacher_student()) {
        check("data.teacher_student.features",
              data.teacher_student().features());
      }
    }
  }

  template <typename Kind>
  void CheckRates(const std::string& path, const Kind& kind) {
    if (kind.has_learning_rate()) {
      AboveZero(path + ".learning_rate", kind.learning_rate());
    } else {
      Problem(path + ".learning_rate",
              "is missing; above 0 is required, as in learning_rate: 0.05");
    }
    AtLeastZero(path + ".weight_decay", kind.weight_decay());
  }

  template <typename Kind>
  void CheckAdam(const std::string& path, const Kind& kind) {
    CheckRates(path, kind);
    Fraction(path + ".beta1", kind.beta1());
    Fraction(path + ".beta2", kind.beta2());
    AboveZero(path + ".epsilon", kind.epsilon());
  }

  void CheckOptimizer() {
    const config::Optimizer& optimizer = config_.optimizer();
    switch (optimizer.kind_case()) {
      case config::Optimizer::kSgd:
        CheckRates("optimizer.sgd", optimizer.sgd());
        break;
      case config::Optimizer::kMomentum:
        CheckRates("optimizer.momentum", optimizer.momentum());
        Fraction("optimizer.momentum.momentum",
                 optimizer.momentum().momentum());
        break;
      case config::Optimizer::kNesterov:
        CheckRates("optimizer.nesterov", optimizer.nesterov());
        Fraction("optimizer.nesterov.momentum",
                 optimizer.nesterov().momentum());
        break;
      case config::Optimizer::kAdagrad:
        CheckRates("optimizer.adagrad", optimizer.adagrad());
        AboveZero("optimizer.adagrad.epsilon", optimizer.adagrad().epsilon());
        break;
      case config::Optimizer::kAdam:
        CheckAdam("optimizer.adam", optimizer.adam());
        break;
      case config::Optimizer::kAdamw:
        CheckAdam("optimizer.adamw", optimizer.adamw());
        break;
      case config::Optimizer::KIND_NOT_SET:
        Problem("optimizer",
                "is missing; one of sgd, momentum, nesterov, adagrad, adam and "
                "adamw is required, as in optimizer { sgd { learning_rate: "
                "0.05 } }");
    }
  }

  void CheckSchedule() {
    const config::LearningRateSchedule& schedule = config_.schedule();
    Range("schedule.warmup_steps", schedule.warmup_steps(), 0, kStepsMax);
    if (schedule.has_step()) {
      if (schedule.step().has_every_epochs()) {
        AboveZero("schedule.step.every_epochs", schedule.step().every_epochs());
      } else {
        Problem("schedule.step.every_epochs",
                "is missing; above 0 is required, as in every_epochs: 2");
      }
      AboveZero("schedule.step.factor", schedule.step().factor());
    }
    if (schedule.has_cosine()) {
      const double factor = schedule.cosine().final_factor();
      Require(factor >= 0 && factor <= 1, "schedule.cosine.final_factor",
              factor, "0 to 1");
    }
  }

  void CheckStaleness(const std::string& path, int staleness) {
    Range(path, staleness, 0, kStalenessMax, "for no bound use asp {}");
  }

  // `block` is a Sync or a Phase at `path`.
  template <typename Block>
  void CheckMode(const std::string& path, const Block& block) {
    if (block.has_ssp()) {
      CheckStaleness(path + ".ssp.staleness", block.ssp().staleness());
    }
    if (block.has_dssp()) {
      const config::Dssp& dssp = block.dssp();
      CheckStaleness(path + ".dssp.min_staleness", dssp.min_staleness());
      CheckStaleness(path + ".dssp.max_staleness", dssp.max_staleness());
      if (dssp.max_staleness() < dssp.min_staleness()) {
        Problem(path + ".dssp.max_staleness",
                absl::StrCat("value is ", dssp.max_staleness(), "; at least ",
                             path, ".dssp.min_staleness (",
                             dssp.min_staleness(), ") is required"));
      }
    }
    if (block.has_backup()) {
      const int workers = static_cast<int>(WorkerProcesses(config_).size());
      const std::string field = path + ".backup.workers";
      if (workers < 2) {
        Problem(field, absl::StrCat("there is ", workers,
                                    " worker; at least 2 are "
                                    "required, of which one may be late"));
      } else {
        Range(field, block.backup().workers(), 1, workers - 1,
              absl::StrCat("there are ", workers, " workers"));
      }
    }
  }

  void CheckSync() {
    const config::Sync& sync = config_.sync();
    CheckMode("sync", sync);
    if (sync.has_auto_()) CheckAuto();
    for (int i = 0; i < sync.stale_size(); ++i) {
      const absl::Status rule = StaleRule::Create(sync.stale(i)).status();
      if (!rule.ok()) {
        Problem(absl::StrCat("sync.stale[", i, "]"),
                std::string(rule.message()));
      }
    }
    CheckPhases();
    const config::Collective& collective = sync.collective();
    Range("sync.collective.bucket_kib", collective.bucket_kib(), 1, kKibMax);
    const config::Collective::Algorithm algorithm = collective.algorithm();
    if (algorithm == config::Collective::ALGORITHM_UNSPECIFIED) {
      Problem("sync.collective.algorithm",
              "value is ALGORITHM_UNSPECIFIED; RING, TREE or ANY is required");
    } else if (algorithm != config::Collective::RING && !AllCuda(config_)) {
      Problem("sync.collective.algorithm",
              absl::StrCat("value is ",
                           config::Collective::Algorithm_Name(algorithm),
                           "; without NCCL, which needs device: CUDA in all "
                           "workers, only RING is there"));
    }
    const config::Sync::PushType type = sync.push_type();
    if (type == config::Sync::PUSH_TYPE_UNSPECIFIED) {
      Problem("sync.push_type",
              "value is PUSH_TYPE_UNSPECIFIED; FLOAT32, BFLOAT16 or FLOAT16 is "
              "required");
    } else if (type != config::Sync::FLOAT32 && !HasCuda(config_)) {
      Problem("sync.push_type",
              absl::StrCat("value is ", config::Sync::PushType_Name(type),
                           "; workers round on GPUs only, FLOAT32 is required "
                           "without device: CUDA"));
    }
  }

  void CheckAuto() {
    const config::Auto& policy = config_.sync().auto_();
    CheckStaleness("sync.auto.staleness", policy.staleness());
    const double even = policy.even_below();
    const bool even_ok = std::isfinite(even) && even >= 1;
    Require(even_ok, "sync.auto.even_below", even, "at least 1",
            "1 is a slowest worker as fast as the median one");
    const double straggler = policy.straggler_above();
    const bool straggler_ok = std::isfinite(straggler);
    Require(straggler_ok, "sync.auto.straggler_above", straggler, "a number");
    if (even_ok && straggler_ok && straggler <= even) {
      Problem("sync.auto.straggler_above",
              absl::StrCat("value is ", straggler,
                           "; more than sync.auto.even_below (", even,
                           ") is required, so that it does not act on noise"));
    }
    Range("sync.auto.hold_ms", policy.hold_ms(), 100, 3600 * 1000);
  }

  void CheckPhases() {
    const config::Sync& sync = config_.sync();
    const int phases = sync.phase_size();
    if (phases == 0) return;
    if (sync.mode_case() != config::Sync::MODE_NOT_SET) {
      Problem("sync.phase[0]",
              absl::StrCat("there is sync.", ModeField(sync),
                           ", too; keep the phases or that mode (--mode "
                           "replaces phases)"));
    }
    if (phases > kPhasesMax) {
      return Problem("sync.phase",
                     absl::StrCat("there are ", phases, " phases; at most ",
                                  kPhasesMax, " are allowed"));
    }
    double before = 0;
    for (int i = 0; i < phases; ++i) {
      const config::Phase& phase = sync.phase(i);
      const std::string path = absl::StrCat("sync.phase[", i, "]");
      const std::string until = path + ".until_epoch";
      if (phase.mode_case() == config::Phase::MODE_NOT_SET) {
        Problem(path,
                "has no mode; one of bsp, ssp, dssp, asp, backup and allreduce "
                "is required, as in phase { allreduce {} until_epoch: 1 }");
      }
      CheckMode(path, phase);
      if (i + 1 == phases) {
        if (!phase.has_until_epoch()) continue;
        Problem(until, absl::StrCat("value is ", phase.until_epoch(),
                                    "; the last phase lasts until the end of "
                                    "the job, leave it out or add a phase"));
      } else if (!phase.has_until_epoch()) {
        Problem(until,
                "is missing; only the last phase has no end, write until how "
                "many epochs of the job this one lasts");
      } else {
        const double value = phase.until_epoch();
        if (before == 0) {
          AboveZero(until, value);
        } else {
          Require(std::isfinite(value) && value > before, until, value,
                  absl::StrCat("above ", before,
                               ", where the phase before "
                               "ends,"));
        }
        if (std::isfinite(value)) before = std::max(before, value);
      }
    }
  }

  void CheckTrain() {
    const config::Train& train = config_.train();
    AboveZero("train.epochs", train.epochs());
    Require(train.seed() >= 0, "train.seed", train.seed(), "at least 0");
    if (train.has_max_steps()) {
      Range("train.max_steps", train.max_steps(), 1, kStepsMax,
            "leave it out for no bound");
    }
    AboveZero("train.eval_every_epochs", train.eval_every_epochs(),
              "more than train.epochs evaluates at the end only");
    CheckStop();
  }

  void CheckStop() {
    const config::Stop& stop = config_.train().stop();
    if (stop.has_test_accuracy()) {
      const double accuracy = stop.test_accuracy();
      Require(accuracy > 0 && accuracy <= 1, "train.stop.test_accuracy",
              accuracy, "above 0 and at most 1", "0.97 is 97 %");
    }
    if (stop.has_test_loss()) {
      AboveZero("train.stop.test_loss", stop.test_loss());
    }
    if (stop.has_wall_seconds()) {
      AboveZero("train.stop.wall_seconds", stop.wall_seconds());
    }
  }

  void CheckLimits() {
    const config::Limits& limits = config_.limits();
    Range("limits.lease_ms", limits.lease_ms(), 200, 3600 * 1000);
    Range("limits.start_timeout_ms", limits.start_timeout_ms(), 1000,
          kTimeoutMsMax);
    const bool wait_in_range = Range(
        "limits.wait_timeout_ms", limits.wait_timeout_ms(), 1, kTimeoutMsMax);
    // Else a wait gives up before a dead process can be found out.
    if (wait_in_range && limits.wait_timeout_ms() <= limits.lease_ms()) {
      Problem("limits.wait_timeout_ms",
              absl::StrCat("value is ", limits.wait_timeout_ms(),
                           "; more than limits.lease_ms (", limits.lease_ms(),
                           ") is required, so that a dead process is noticed "
                           "before others give up"));
    }
    // What is larger than the window would wait for room forever.
    const bool shard =
        Range("limits.shard_kib", limits.shard_kib(), 1, kKibMax);
    const bool message =
        Range("limits.message_kib", limits.message_kib(), 1, kKibMax);
    const bool window =
        Range("limits.window_kib", limits.window_kib(), 1, kKibMax);
    if (shard && message && window &&
        limits.window_kib() <
            std::max(limits.shard_kib(), limits.message_kib())) {
      Problem("limits.window_kib",
              absl::StrCat("value is ", limits.window_kib(),
                           "; at least limits.shard_kib (", limits.shard_kib(),
                           ") and limits.message_kib (", limits.message_kib(),
                           ") is required"));
    }
    if (limits.transport() == config::Limits::TRANSPORT_UNSPECIFIED) {
      Problem("limits.transport",
              "value is TRANSPORT_UNSPECIFIED; AUTO, TCP or IPC is required");
    }
  }

  void CheckRebalance() {
    const config::Rebalance& rebalance = config_.rebalance();
    if (rebalance.mode() == config::Rebalance::MODE_UNSPECIFIED) {
      Problem("rebalance.mode",
              "value is MODE_UNSPECIFIED; OFF, MANUAL or AUTO is required");
    }
    Range("rebalance.interval_ms", rebalance.interval_ms(), 100, 3600 * 1000,
          "mode: MANUAL never looks by itself");
    const double threshold = rebalance.threshold();
    const bool threshold_ok = std::isfinite(threshold) && threshold >= 1.01;
    Require(threshold_ok, "rebalance.threshold", threshold, "at least 1.01");
    const double target = rebalance.target();
    if (!(target >= 1)) {
      Require(false, "rebalance.target", target, "at least 1",
              "1 is a thread with the mean load");
    } else if (threshold_ok && target >= threshold) {
      Problem("rebalance.target",
              absl::StrCat("value is ", target,
                           "; less than rebalance.threshold (", threshold,
                           ") is required, so that it does not act on noise"));
    }
    const double utilisation = rebalance.min_utilisation();
    Require(utilisation >= 0 && utilisation <= 1, "rebalance.min_utilisation",
            utilisation, "0 to 1");
    Range("rebalance.rest_ms", rebalance.rest_ms(), 0, kTimeoutMsMax);
    Range("rebalance.budget_mib", rebalance.budget_mib(), 1, kMibMax);
    Range("rebalance.moves_max", rebalance.moves_max(), 1, kMovesMax);
    Range("rebalance.concurrent_moves", rebalance.concurrent_moves(), 1, 64);
  }

  const config::ClusterConfig& config_;
  const FieldOrigins& origins_;
  std::vector<std::string> problems_;
};

}  // namespace

void FillDefaults(config::ClusterConfig* config) {
  config::Coordinator* coordinator = config->mutable_coordinator();
  if (!coordinator->has_host() && config->server_size() > 0 &&
      config->server(0).has_host()) {
    coordinator->set_host(config->server(0).host());
  }
  config::LearningRateSchedule* schedule = config->mutable_schedule();
  if (schedule->kind_case() == config::LearningRateSchedule::KIND_NOT_SET) {
    schedule->mutable_constant();
  }
  config::Sync* sync = config->mutable_sync();
  if (sync->mode_case() == config::Sync::MODE_NOT_SET &&
      sync->phase_size() == 0) {
    sync->mutable_bsp();
  }
  config::Collective* collective = sync->mutable_collective();
  if (!collective->has_bucket_kib()) {
    collective->set_bucket_kib(AllCuda(*config) ? kNcclBucketKib
                                                : kGlooBucketKib);
  }
  config->mutable_train();
  config->mutable_limits();
  config->mutable_rebalance();
  WriteScalarDefaults(config);
}

absl::Status ValidateConfig(const config::ClusterConfig& config,
                            const FieldOrigins& origins) {
  return Validator(config, origins).Run();
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" ||
         (IsNumericAddress(host) && absl::StartsWith(host, "127."));
}

}  // namespace slackline
