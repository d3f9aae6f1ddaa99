#include "tools/cli/doctor/host_examiner.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"
#include "common/io/regular_file.h"
#include "common/io/state_hash.h"
#include "common/net/host_id.h"
#include "common/net/resolve.h"
#include "common/net/socket_address.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "job/job_config.h"
#include "tools/cli/doctor/key_facts.h"
#include "tools/cli/members/capacity.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/program_output.h"
#include "tools/cli/process.h"
#include "worker/data/data_files.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// An agent that says nothing for a minute is given up, so all of a look takes
// less: of what programs are asked, each and together, and of the data.
constexpr absl::Duration kProgramMax = absl::Seconds(20);
constexpr absl::Duration kProgramsMax = absl::Seconds(35);
constexpr absl::Duration kDataMax = absl::Seconds(15);
// What is written to see whether there is room.
constexpr size_t kMarkBytes = 64 << 10;
constexpr int64_t kBlockBytes = 1 << 20;
// Of a larger file parts are read, the same ones on every host.
constexpr int64_t kWholeFileMax = 256 << 20;
constexpr int64_t kBlocksOfLargeFile = 64;
constexpr int64_t kMappedBytes = 64 << 20;
constexpr int64_t kProgramBytesMax = 512 << 20;

// One line for each thing, NAME=VALUE.
constexpr char kPythonScript[] = R"(
import platform
import re
print('python=' + platform.python_version())
try:
    import torch
    print('torch=' + torch.__version__)
    print('cuda=' + (torch.version.cuda or ''))
    print('blas=' + ''.join(re.findall(r'BLAS_INFO=(\w+)', torch.__config__.show())))
    if torch.cuda.is_available():
        print('nccl=' + '.'.join(str(n) for n in torch.cuda.nccl.version()))
except Exception as error:
    print('no_torch=' + str(error).splitlines()[0])
try:
    import slackline
except Exception as error:
    print('no_slackline=' + str(error).splitlines()[0])
)";

absl::Duration ProgramTime(absl::Time end) {
  return std::min(end - TimeSource().Now(), kProgramMax);
}

std::string LastLineOf(const std::string& text) {
  const std::vector<std::string> lines = LastLines(text, 1);
  return lines.empty() ? "" : lines.front();
}

doctor::Program LookAtProgram(
    const std::string& path,
    const std::map<std::string, std::string>& environment, bool from_file,
    absl::Time end) {
  doctor::Program program;
  program.set_path(path);
  if (from_file) {
    const absl::StatusOr<std::string> file =
        ReadRegularFile(path, kProgramBytesMax);
    const std::string version = file.ok() ? VersionInFile(*file) : "";
    if (!version.empty()) {
      program.set_version(
          absl::StrCat(fs::path(path).filename().string(), " ", version));
      return program;
    }
  }
  const absl::StatusOr<ProgramOutput> said =
      OutputOf({.command = {path, "--version"},
                .environment = environment,
                .time_max = ProgramTime(end)});
  if (!said.ok()) {
    program.set_error(std::string(said.status().message()));
  } else if (!said->status.ok()) {
    program.set_error(absl::StrCat("--version ", said->status.ToString(),
                                   said->errors.empty() ? "" : ": ",
                                   LastLineOf(said->errors)));
  } else {
    program.set_version(
        said->output.substr(0, said->output.find_first_of("\r\n")));
  }
  return program;
}

doctor::Python LookAtPython(
    const std::string& interpreter,
    const std::map<std::string, std::string>& environment, absl::Time end) {
  doctor::Python python;
  const absl::StatusOr<ProgramOutput> said =
      OutputOf({.command = {interpreter, "-c", kPythonScript},
                .environment = environment,
                .time_max = ProgramTime(end)});
  if (!said.ok() || !said->status.ok()) {
    python.set_error(!said.ok() ? std::string(said.status().message())
                                : absl::StrCat(interpreter, " ",
                                               said->status.ToString(), ": ",
                                               LastLineOf(said->errors)));
    return python;
  }
  for (const absl::string_view line : absl::StrSplit(said->output, '\n')) {
    const std::pair<std::string, std::string> sides =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (sides.first == "python") python.set_version(sides.second);
    if (sides.first == "torch") python.set_torch(sides.second);
    if (sides.first == "cuda") python.set_cuda(sides.second);
    if (sides.first == "nccl") python.set_nccl(sides.second);
    if (sides.first == "blas") python.set_blas(sides.second);
    if (sides.first == "no_slackline") python.set_slackline_error(sides.second);
  }
  return python;
}

std::string NumericAddress(const sockaddr* address) {
  char text[NI_MAXHOST] = {};
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                        : sizeof(sockaddr_in);
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string whole = text;
  return whole.substr(0, whole.find('%'));
}

// The address of this host from which packets to `address` go.
std::string SourceOf(const std::string& address) {
  constexpr int kDiscardPort = 9;  // Nothing is sent.
  const absl::StatusOr<SocketAddress> to =
      SocketAddress::Of(address, kDiscardPort);
  if (!to.ok()) return "";
  const Descriptor socket(::socket(to->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), to->any(), to->size) != 0) return "";
  const absl::StatusOr<SocketAddress> source =
      SocketAddress::OfSocket(socket.get());
  return source.ok() ? NumericAddress(source->any()) : "";
}

std::string InterfaceWith(const std::string& address) {
  std::string name;
  ifaddrs* interfaces = nullptr;
  if (address.empty() || getifaddrs(&interfaces) != 0) return name;
  for (const ifaddrs* i = interfaces; i != nullptr && name.empty();
       i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if ((family == AF_INET || family == AF_INET6) &&
        NumericAddress(i->ifa_addr) == address) {
      name = i->ifa_name;
    }
  }
  freeifaddrs(interfaces);
  if (name.empty() && absl::StartsWith(address, "127.")) name = "lo";
  return name;
}

int MtuOf(const std::string& interface) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

doctor::Limits LookAtLimits() {
  const auto bounded = [](rlim_t limit) -> int64_t {
    if (limit == RLIM_INFINITY) return -1;
    return static_cast<int64_t>(std::min<rlim_t>(limit, rlim_t{1} << 60));
  };
  const auto limit_of = [](int which) {
    rlimit limit = {};
    if (getrlimit(which, &limit) != 0)
      limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
    return limit;
  };
  doctor::Limits limits;
  limits.set_open_files(bounded(limit_of(RLIMIT_NOFILE).rlim_max));
  // Nobody raises these.
  limits.set_processes(bounded(limit_of(RLIMIT_NPROC).rlim_cur));
  limits.set_address_bytes(bounded(limit_of(RLIMIT_AS).rlim_cur));
  limits.set_root(geteuid() == 0);
  return limits;
}

// As processes of a job do it.
std::string SharedMemoryError() {
  const Descriptor file(memfd_create("doctor", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), kMappedBytes) != 0)
    return absl::StrCat("memfd_create: ", std::strerror(errno));
  void* const mapped = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return absl::StrCat("mmap: ", std::strerror(errno));
  munmap(mapped, kMappedBytes);
  return "";
}

int64_t FreeBytes(const std::string& folder) {
  struct statvfs about = {};
  if (statvfs(folder.c_str(), &about) != 0) return -1;
  return static_cast<int64_t>(
      std::min<uint64_t>(about.f_bavail, uint64_t{1} << 40) *
      std::min<uint64_t>(about.f_frsize, uint64_t{1} << 20));
}

// The folder, or its nearest parent that is there.
std::string ExistingFolder(const std::string& path) {
  fs::path folder = path;
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder.string();
}

bool IsMarkName(const std::string& name) {
  return absl::StartsWith(name, ".slackline-") && !absl::StrContains(name, '/');
}

int CountGpus() {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/dev", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int number = 0;
    if (absl::StartsWith(name, "nvidia") &&
        absl::SimpleAtoi(name.substr(6), &number)) {
      ++count;
    }
  }
  return count;
}

std::string GpuDriver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  ..."
    if (!word.empty() && absl::ascii_isdigit(word[0]) &&
        absl::StrContains(word, '.')) {
      return std::string(word);
    }
  }
  return "";
}

// 0: `end` has come.
absl::StatusOr<uint64_t> HashOfFile(const std::string& path, int64_t bytes,
                                    absl::Time end) {
  const TimeSource time;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return absl::UnavailableError(std::strerror(errno));
  const int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  const int64_t read = bytes <= kWholeFileMax ? blocks : kBlocksOfLargeFile;
  std::vector<uint64_t> hashes;
  std::string block(kBlockBytes, '\0');
  for (int64_t i = 0; i < read; ++i) {
    if (time.Now() > end) return uint64_t{0};
    const int64_t at =
        (read == blocks ? i : i * (blocks - 1) / (read - 1)) * kBlockBytes;
    const ssize_t received = pread(file.get(), block.data(), block.size(), at);
    if (received < 0) return absl::UnavailableError(std::strerror(errno));
    hashes.push_back(BytesHash(block.data(), static_cast<size_t>(received)));
  }
  return BytesHash(hashes.data(), hashes.size() * sizeof(uint64_t));
}

}  // namespace

std::vector<doctor::Name> LookUpNames(const std::vector<std::string>& names) {
  const std::vector<std::string> own = OwnAddresses();
  std::vector<doctor::Name> found;
  for (const std::string& host : names) {
    doctor::Name& name = found.emplace_back();
    name.set_name(host);
    const absl::StatusOr<std::string> address = ResolveHost(host);
    if (!address.ok()) {
      // "host n2: Name or service not known; ...": what the resolver says.
      std::string why(address.status().message());
      why = why.substr(0, why.find(';'));
      const std::string prefix = absl::StrCat("host ", host, ": ");
      name.set_error(absl::StartsWith(why, prefix) ? why.substr(prefix.size())
                                                   : why);
      continue;
    }
    name.set_address(*address);
    name.set_own(IsOwnAddress(*address, own));
    name.set_source(name.own() ? *address : SourceOf(*address));
    name.set_interface(InterfaceWith(name.source()));
    if (!name.interface().empty()) name.set_mtu(MtuOf(name.interface()));
  }
  return found;
}

std::vector<doctor::DataFile> LookAtData(const config::Data& data,
                                         const std::string& folder) {
  const absl::Time end = TimeSource().Now() + kDataMax;
  std::vector<doctor::DataFile> files;
  for (const DataFile& wanted : DataFilesOf(data)) {
    doctor::DataFile& file = files.emplace_back();
    const absl::StatusOr<std::string> path = FindDataFile(wanted, folder);
    if (!path.ok()) {
      file.set_error(absl::StrCat(wanted.names.front(), " is not in ", folder));
      continue;
    }
    file.set_name(fs::path(*path).lexically_relative(folder).string());
    std::error_code error;
    file.set_bytes(static_cast<int64_t>(fs::file_size(*path, error)));
    const absl::StatusOr<uint64_t> hash =
        error ? absl::UnavailableError(error.message())
              : HashOfFile(*path, file.bytes(), end);
    if (hash.ok()) {
      file.set_hash(*hash);
    } else {
      file.set_bytes(0);
      file.set_error(absl::StrCat(*path, ": ", hash.status().message()));
    }
  }
  return files;
}

HostExaminer::~HostExaminer() {
  for (const std::string& mark : marks_) unlink(mark.c_str());
}

absl::StatusOr<doctor::Reply> HostExaminer::Answer(
    const doctor::Question& question) {
  doctor::Reply reply;
  switch (question.what_case()) {
    case doctor::Question::kLook:
      *reply.mutable_facts() = Look(question.look());
      break;
    case doctor::Question::kOpen:
      doors_ = std::make_unique<Doors>(question.open());
      *reply.mutable_opened() = doors_->opened();
      break;
    case doctor::Question::kTry:
      *reply.mutable_tried() = TryDoors(question.try_());
      break;
    case doctor::Question::kSeeMarks:
      reply.mutable_marks_seen();
      if (!IsMarkName(question.see_marks().mark())) break;
      for (const doctor::Folder& folder : question.see_marks().folder()) {
        std::error_code ignored;
        if (fs::exists(absl::StrCat(ExistingFolder(folder.path()), "/",
                                    question.see_marks().mark()),
                       ignored)) {
          reply.mutable_marks_seen()->add_use(folder.use());
        }
      }
      break;
    case doctor::Question::WHAT_NOT_SET:
      return absl::InvalidArgumentError("an empty question");
  }
  reply.set_wall_ns(absl::ToUnixNanos(TimeSource().WallNow()));
  return reply;
}

doctor::FolderFacts HostExaminer::LookAtFolder(const doctor::Folder& folder,
                                               const doctor::Look& look) {
  doctor::FolderFacts facts;
  *facts.mutable_folder() = folder;
  const std::string existing = ExistingFolder(folder.path());
  facts.set_existing(existing);
  facts.set_free_bytes(FreeBytes(existing));
  if (folder.use() == doctor::Folder::WORKING || !IsMarkName(look.mark()))
    return facts;
  const std::string path = absl::StrCat(existing, "/", look.mark());
  const Descriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (file.get() < 0) {
    facts.set_error(std::strerror(errno));
    return facts;
  }
  const std::string block(kMarkBytes, '\0');
  const ssize_t written = write(file.get(), block.data(), block.size());
  if (written < 0 || fsync(file.get()) != 0) {
    facts.set_error(std::strerror(errno));
  } else if (written < static_cast<ssize_t>(block.size())) {
    facts.set_error(std::strerror(ENOSPC));
  }
  if (!look.keep_marks()) {
    unlink(path.c_str());
  } else if (std::find(marks_.begin(), marks_.end(), path) == marks_.end()) {
    marks_.push_back(path);
  }
  return facts;
}

doctor::HostFacts HostExaminer::Look(const doctor::Look& look) {
  doctor::HostFacts facts;
  facts.set_version(VersionText("slackline"));
  facts.set_machine_id(HostId());
  for (doctor::Name& name :
       LookUpNames({look.name().begin(), look.name().end()})) {
    *facts.add_name() = std::move(name);
  }
  *facts.mutable_limits() = LookAtLimits();
  const Capacity here = CapacityHere();
  facts.set_memory_bytes(here.memory_bytes);
  facts.set_cores(here.cores);
  facts.set_shm_free_bytes(FreeBytes("/dev/shm"));
  facts.set_shm_error(SharedMemoryError());
  facts.set_curve_error(std::string(CheckCurve().message()));
  for (const doctor::Folder& folder : look.folder())
    *facts.add_folder() = LookAtFolder(folder, look);
  const std::map<std::string, std::string> environment(
      look.environment().begin(), look.environment().end());
  const absl::Time end = TimeSource().Now() + kProgramsMax;
  for (const std::string& path : look.program())
    *facts.add_program() =
        LookAtProgram(path, environment, look.versions_from_files(), end);
  for (const std::string& name : look.user_program()) {
    doctor::Program& program = *facts.add_program();
    program.set_of_user(true);
    const absl::StatusOr<std::string> found = FindProgram(name);
    program.set_path(found.ok() ? *found : name);
    if (!found.ok()) program.set_error(std::string(found.status().message()));
  }
  if (!look.python().empty())
    *facts.mutable_python() = LookAtPython(look.python(), environment, end);
  facts.set_gpus(CountGpus());
  facts.set_gpu_driver(GpuDriver());
  if (look.config().empty()) return facts;
  const absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(look.config(), "cluster.textproto");
  if (!config.ok()) {
    facts.set_config_error(std::string(config.status().message()));
    return facts;
  }
  facts.set_key_fingerprint(
      KeyFingerprint(config->job(), user_key_, absl::Now()));
  if (!look.data_folder().empty() && config->has_data()) {
    for (doctor::DataFile& file :
         LookAtData(config->data(), look.data_folder())) {
      *facts.add_data_file() = std::move(file);
    }
  }
  return facts;
}

}  // namespace slackline
