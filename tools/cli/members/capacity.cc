#include "tools/cli/members/capacity.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "tools/cli/text.h"
#include "worker/data/data_files.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Measured with a model of some KiB: what a process has for itself
// (RssAnon of /proc/PID/status).
constexpr int64_t kServerBytes = 4'000'000;
constexpr int64_t kWorkerBytes = 70'000'000;
// Values, gradients, and both on their way; on servers with the optimizer's.
constexpr int64_t kCopiesOfModel = 4;
// As many threads as this for each core are usual in a trial on a laptop.
constexpr int kThreadsPerCoreMax = 4;

// "1 server", "2 servers"
std::string Count(int count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

int64_t Bounded(double bytes) {
  return static_cast<int64_t>(std::clamp(bytes, 0.0, 1e15));
}

// Without compression. 0: not known.
int64_t PlainBytes(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return 0;
  if (!absl::EndsWith(path, ".gz")) return Bounded(static_cast<double>(size));
  // RFC 1952: the last four bytes are the size modulo 2^32, the least
  // significant first.
  std::ifstream file(path, std::ios::binary);
  file.seekg(-4, std::ios::end);
  unsigned char tail[4] = {};
  if (!file.read(reinterpret_cast<char*>(tail), sizeof(tail))) return 0;
  return int64_t{tail[0]} | int64_t{tail[1]} << 8 | int64_t{tail[2]} << 16 |
         int64_t{tail[3]} << 24;
}

int64_t DataBytes(const config::Data& data, const std::string& data_dir) {
  if (data.has_teacher_student()) {
    const auto& generated = data.teacher_student();
    return Bounded((static_cast<double>(generated.train_examples()) +
                    generated.test_examples()) *
                   generated.features() * sizeof(float));
  }
  int64_t bytes = 0;
  for (const DataFile& file : DataFilesOf(data)) {
    const absl::StatusOr<std::string> path = FindDataFile(file, data_dir);
    if (path.ok()) bytes += PlainBytes(*path);
  }
  return bytes;
}

// Of the layers whose both sides the config says.
int64_t ModelBytes(const config::ClusterConfig& config) {
  if (!config.model().has_mlp()) return 0;
  const auto& hidden = config.model().mlp().hidden();
  const auto& data = config.data();
  double before =
      data.has_teacher_student() ? data.teacher_student().features() : 0;
  double parameters = 0;
  for (const int width : hidden) {
    parameters += (before + 1) * width;
    before = width;
  }
  return Bounded(parameters * sizeof(float));
}

int64_t FirstNumberIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  // "max": there is no limit.
  return file >> word && absl::SimpleAtoi(word, &number) ? number : -1;
}

// The number behind a name in a file of such lines; 0: there is none.
int64_t NumberOf(const std::string& name, const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word >> number) {
    if (word == name) return number;
  }
  return 0;
}

// What the machine has left, or 0.
int64_t MemoryAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() >= 2 && words[0] == "MemAvailable:" &&
        absl::SimpleAtoi(words[1], &kib)) {
      return kib * 1024;
    }
  }
  return 0;
}

// What a container leaves of it.
int64_t LeftInContainer() {
  const int64_t limit = FirstNumberIn("/sys/fs/cgroup/memory.max");
  const int64_t used = FirstNumberIn("/sys/fs/cgroup/memory.current");
  if (limit < 0 || used < 0) return std::numeric_limits<int64_t>::max();
  // Files that are cached count as used, and are given up when need be.
  const char* const kStat = "/sys/fs/cgroup/memory.stat";
  const int64_t cached =
      NumberOf("inactive_file", kStat) + NumberOf("active_file", kStat);
  return std::max<int64_t>(limit - used + cached, 1);
}

}  // namespace

Capacity CapacityHere() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  Capacity here;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
    here.cores = CPU_COUNT(&cpus);
  here.memory_bytes = std::min(MemoryAvailable(), LeftInContainer());
  return here;
}

Demand DemandOf(const config::ClusterConfig& config,
                const std::string& data_dir) {
  Demand demand;
  for (const ServerProcess& server : ServerProcesses(config)) {
    ++demand.servers;
    demand.threads += server.threads;
  }
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    ++demand.workers;
    demand.threads += worker.threads;
  }
  demand.model_bytes = ModelBytes(config);
  const int64_t model = kCopiesOfModel * demand.model_bytes;
  if (config.has_data()) demand.data_bytes = DataBytes(config.data(), data_dir);
  demand.server_bytes = kServerBytes + (1 + config.replicas()) * model /
                                           std::max(demand.servers, 1);
  demand.worker_bytes = kWorkerBytes + model + demand.data_bytes;
  return demand;
}

std::string CoresWarning(const Demand& demand, const Capacity& capacity) {
  if (capacity.cores == 0 ||
      demand.threads <= kThreadsPerCoreMax * capacity.cores) {
    return "";
  }
  return absl::StrCat(
      "warning: ", Count(demand.workers, "worker"), " and ",
      Count(demand.servers, "server"), " have ", demand.threads,
      " threads that compute, and this "
      "machine has ",
      capacity.cores, capacity.cores == 1 ? " core" : " cores",
      ": steps wait for a core most of the time, and the speeds that are "
      "measured are those of the machine");
}

absl::Status CheckMemory(const Demand& demand, const Capacity& capacity) {
  if (capacity.memory_bytes == 0 ||
      demand.memory_bytes() <= capacity.memory_bytes) {
    return absl::OkStatus();
  }
  const auto text = [](int64_t bytes) {
    return BytesText(static_cast<double>(bytes));
  };
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job needs about ", text(demand.memory_bytes()), " of memory, and ",
      text(capacity.memory_bytes), " are free on this machine: ",
      Count(demand.workers, "worker"), " with ", text(demand.worker_bytes),
      " each (", text(demand.data_bytes), " of it data) and ",
      Count(demand.servers, "server"), " with ", text(demand.server_bytes),
      "; start fewer, or --no-memory-check if that is too careful"));
}

}  // namespace slackline
