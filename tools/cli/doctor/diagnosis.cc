#include "tools/cli/doctor/diagnosis.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/shell_line.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tools/cli/doctor/findings.h"
#include "tools/cli/doctor/network_findings.h"

namespace slackline {
namespace {

using doctor::Finding;
using doctor::Level;

constexpr absl::string_view kHere = "here";
// IPv6 requires this much of every link.
constexpr int kMtuSmall = 1280;
constexpr int64_t kClockFarUs = 1'000'000;
// Logs, metrics and the summary of a run.
constexpr int64_t kRunRoomMin = 1'000'000;
constexpr int64_t kRunRoomAmple = 100'000'000;
// Values and at most two slots of the optimizer.
constexpr int64_t kStateCopies = 3;
// Of /dev/shm, where DataLoader's workers and NCCL put their messages.
constexpr int64_t kShmRoomAmple = 64'000'000;
// An arena with a bound on addresses, and what a process takes beside it.
constexpr int64_t kArenaBytes = int64_t{512} << 20;
constexpr int64_t kServerAddressBytes = int64_t{256} << 20;
constexpr int64_t kWorkerAddressBytes = int64_t{384} << 20;
constexpr int64_t kThreadsPerMember = 8;

bool IsNumericAddress(absl::string_view name) {
  if (absl::StrContains(name, ':')) return true;
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.';
  });
}

bool IsLoopbackAddress(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

bool IsDoctorSize(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    using Field = google::protobuf::FieldDescriptor;
    const bool is_message = field.cpp_type() == Field::CPPTYPE_MESSAGE;
    const int count =
        field.is_repeated() ? reflection.FieldSize(message, &field)
        : (!is_message || reflection.HasField(message, &field)) ? 1
                                                                : 0;
    if (count > kDoctorListMax) return false;
    for (int k = 0; k < count; ++k) {
      if (is_message) {
        if (!IsDoctorSize(
                field.is_repeated()
                    ? reflection.GetRepeatedMessage(message, &field, k)
                    : reflection.GetMessage(message, &field))) {
          return false;
        }
      } else if (field.cpp_type() == Field::CPPTYPE_STRING) {
        const std::string text =
            field.is_repeated()
                ? reflection.GetRepeatedString(message, &field, k)
                : reflection.GetString(message, &field);
        if (text.size() > kDoctorTextMax) return false;
      } else if (field.cpp_type() == Field::CPPTYPE_INT64 &&
                 !field.is_repeated()) {
        // No file, time or rate is larger, and sums of a few do not overflow.
        const int64_t number = reflection.GetInt64(message, &field);
        if (number < -1 || number > int64_t{1} << 61) return false;
      }
    }
  }
  return true;
}

// The command that copies a folder to the host.
std::string CopyLine(const doctor::Job& job,
                     const std::vector<std::string>& flags,
                     const std::string& from, const std::string& host,
                     const std::string& to) {
  std::vector<std::string> words = {"rsync", "-a"};
  words.insert(words.end(), flags.begin(), flags.end());
  if (!job.ssh().empty()) words.insert(words.end(), {"-e", job.ssh()});
  words.push_back(absl::StrCat(from, "/"));
  words.push_back(absl::StrCat(job.ssh_user(), host, ":", to, "/"));
  return ShellLine(words);
}

class Diagnosis {
 public:
  explicit Diagnosis(const doctor::Facts& facts)
      : facts_(facts), findings_(facts.job().job()) {
    for (const doctor::Host& host : facts.host()) {
      hosts_[host.name()] = &host;
      for (const doctor::Name& name : host.facts().name()) {
        if (name.error().empty() && !IsLoopbackAddress(name.address()))
          known_.emplace(name.name(), name.address());
      }
    }
  }

  doctor::Report Run() {
    FindWrongInterfaces();
    for (const doctor::HostNeed& need : facts_.job().host()) {
      const auto found = hosts_.find(need.name());
      if (found == hosts_.end()) continue;
      const doctor::Host& host = *found->second;
      if (!host.unreached().empty()) {
        findings_.Add(doctor::ERROR, host.name(), "start", host.unreached());
        continue;
      }
      Versions(host);
      Names(need, host);
      Ports(host);
      Clock(host);
      LimitsOf(need, host);
      Memory(need, host);
      SharedMemory(need, host);
      Encryption(host);
      Folders(need, host);
      Data(need, host);
      Packages(need, host);
    }
    for (const Finding& found : facts_.found()) {
      findings_.Add(found.level(), found.host(), found.check(), found.value(),
                    found.bound(), found.fix());
    }
    NamesHere();
    if (facts_.has_key()) Key(facts_.key());
    Shared();
    FindInNetwork(facts_, misnamed_, &findings_);
    return findings_.Take();
  }

 private:
  // Several machines, so that a loopback address reaches the wrong one.
  bool HasSeveralMachines() const {
    std::set<std::string> machines;
    for (const doctor::Host& host : facts_.host())
      machines.insert(host.facts().machine_id());
    return machines.size() > 1;
  }

  std::string AddressOf(const std::string& name) const {
    const auto found = known_.find(name);
    return found == known_.end() ? "ADDRESS" : found->second;
  }

  void Versions(const doctor::Host& host) {
    const doctor::HostFacts& there = host.facts();
    const std::string& here = facts_.job().version();
    const doctor::Job& job = facts_.job();
    // "slackline_server 0.1.0 (v0.1.0-3-ga8b147a)": version, and commit.
    const auto word = [](const std::string& text, size_t index) {
      const std::vector<std::string> words = absl::StrSplit(text, ' ');
      return index < words.size() ? words[index] : "unknown";
    };
    const auto compare = [&](const std::string& path, const std::string& there,
                             const std::string& fix) {
      if (word(there, 1) != word(here, 1)) {
        findings_.Add(doctor::ERROR, host.name(), "version",
                      absl::StrCat(path, " is ", word(there, 1)),
                      absl::StrCat("slackline here is ", word(here, 1)), fix);
      } else if (word(there, 2) != word(here, 2)) {
        // Of one machine they are parts of one build, some of them older.
        findings_.Add(
            job.engine() == kHere ? doctor::NOTE : doctor::WARNING, host.name(),
            "version",
            absl::StrCat(path, " is of another build, ", word(there, 2)),
            absl::StrCat("slackline here is of ", word(here, 2)), fix);
      } else {
        findings_.Add(doctor::OK, host.name(), "version", there);
      }
    };
    const std::string fix = InstallText(job, host.name(), /*is_there=*/true);
    compare("slackline", there.version(), fix);
    for (const doctor::Program& program : there.program()) {
      if (!program.error().empty()) {
        findings_.Add(
            doctor::ERROR, host.name(), "programs",
            absl::StrCat(program.path(), ": ", program.error()),
            "it has to start",
            program.of_user()
                ? absl::StrCat("install it on ", host.name(),
                               ", or name its path in worker { command }")
                : fix);
      } else if (program.version().empty()) {
        findings_.Add(doctor::OK, host.name(), "programs", program.path());
      } else {
        compare(program.path(), program.version(), fix);
      }
    }
    if (!there.config_error().empty()) {
      findings_.Add(
          doctor::ERROR, host.name(), "config",
          absl::StrCat("it is not understood there: ", there.config_error()),
          "", fix);
    }
  }

  // A host with several interfaces whose own name leads to one that no other
  // host reaches, while it reaches them by another one.
  void FindWrongInterfaces() {
    for (const doctor::HostNeed& need : facts_.job().host()) {
      const auto found = hosts_.find(need.name());
      if (found == hosts_.end() || need.listen()) continue;
      const doctor::Name* self = nullptr;
      const doctor::Name* way = nullptr;  // To another host.
      for (const doctor::Name& name : found->second->facts().name()) {
        if (name.name() == need.name()) {
          self = &name;
        } else if (name.error().empty() && !name.own() &&
                   !name.source().empty()) {
          way = &name;
        }
      }
      if (self == nullptr || way == nullptr || !self->own() ||
          IsLoopbackAddress(self->address()) ||
          self->address() == way->source() || !IsCutOff(need.name())) {
        continue;
      }
      ways_[need.name()] = way;
      misnamed_.insert(need.name());
    }
  }

  // Others have tried to reach the host, and nobody has.
  bool IsCutOff(const std::string& host) const {
    bool any = false;
    for (const doctor::Pair& pair : facts_.pair()) {
      if (pair.to() != host || pair.from() == host) continue;
      for (const doctor::Connection& connection : pair.connection()) {
        if (!IsCut(connection.state())) return false;
        any = true;
      }
    }
    return any;
  }

  void Names(const doctor::HostNeed& need, const doctor::Host& host) {
    const bool several = HasSeveralMachines();
    for (const doctor::Name& name : host.facts().name()) {
      const bool is_self = name.name() == host.name();
      const auto& by_name = facts_.job().by_name();
      const bool needed = is_self || std::find(by_name.begin(), by_name.end(),
                                               name.name()) != by_name.end();
      const Level level = needed ? doctor::ERROR : doctor::WARNING;
      if (!name.error().empty()) {
        findings_.Add(
            level, host.name(), "names",
            absl::StrCat(name.name(), " is not known there: ", name.error()),
            needed ? "the job connects by it" : "the job does without",
            absl::StrCat("on ", host.name(), ": echo '", AddressOf(name.name()),
                         " ", name.name(), "' | sudo tee -a /etc/hosts"));
        continue;
      }
      const bool loopback = IsLoopbackAddress(name.address());
      // A name for this machine alone is fine where all is on it.
      if (loopback && several && !(is_self && need.listen())) {
        if (is_self) misnamed_.insert(host.name());
        findings_.Add(
            level, host.name(), "names",
            absl::StrCat(name.name(), " is ", name.address(),
                         " there, which only ", host.name(), " itself reaches"),
            needed ? "others have to reach it" : "the job does without",
            IsNumericAddress(name.name())
                ? "write the host's address in its network into the config"
                : absl::StrCat("on ", host.name(), ": sudo sed -i 's/^",
                               name.address(), "\\(.*", name.name(), "\\)/",
                               AddressOf(name.name()), "\\1/' /etc/hosts"));
        continue;
      }
      if (is_self && !name.own() && !need.listen()) {
        misnamed_.insert(host.name());
        findings_.Add(
            doctor::ERROR, host.name(), "names",
            absl::StrCat(name.name(), " is ", name.address(),
                         " there, which is no address of this host"),
            "its processes listen at the address of its name",
            absl::StrCat("correct the name, or have it listen at all: --set "
                         "server[N].listen=0.0.0.0"));
        continue;
      }
      if (const auto way = ways_.find(name.name());
          is_self && way != ways_.end()) {
        const std::string& right = way->second->source();
        findings_.Add(
            doctor::ERROR, host.name(), "names",
            absl::StrCat(name.name(), " is ", name.address(), " there, of ",
                         name.interface(), ", which no other host reaches"),
            absl::StrCat("others have to reach it, as at ", right, " of ",
                         way->second->interface()),
            IsNumericAddress(name.name())
                ? absl::StrCat("write ", right, " into the config")
                : absl::StrCat("on ", host.name(), ": sudo sed -i 's/^",
                               name.address(), "\\(.*", name.name(), "\\)/",
                               right, "\\1/' /etc/hosts, or ", right,
                               " in place of ", name.name(),
                               " in the config or --hosts"));
        continue;
      }
      const auto other = known_.find(name.name());
      if (ways_.count(name.name()) == 0 && !loopback && other != known_.end() &&
          other->second != name.address()) {
        findings_.Add(
            doctor::WARNING, host.name(), "names",
            absl::StrCat(name.name(), " is ", name.address(), " there, and ",
                         other->second, " elsewhere"),
            "one address is expected",
            absl::StrCat("getent hosts ", name.name(),
                         " on both; write the right address into the config"));
      } else {
        findings_.Add(
            doctor::OK, host.name(), "names",
            absl::StrCat(
                name.name(), " is ", name.address(),
                is_self ? ", its own, of " : ", by ",
                name.interface().empty() ? "no interface" : name.interface(),
                name.mtu() > 0 ? absl::StrCat(" (MTU ", name.mtu(), ")") : ""));
      }
    }
    Mtu(host);
  }

  void Mtu(const doctor::Host& host) {
    // By the names of others, if there are any.
    std::map<std::string, const doctor::Name*> small;
    for (const doctor::Name& name : host.facts().name()) {
      if (name.mtu() <= 0 || name.mtu() >= kMtuSmall) continue;
      const doctor::Name*& kept = small[name.interface()];
      if (kept == nullptr || kept->own()) kept = &name;
    }
    for (const auto& [interface, name] : small) {
      findings_.Add(
          doctor::WARNING, host.name(), "mtu",
          absl::StrCat(interface, ", by which ", name->name(),
                       " is reached, has packets of ", name->mtu(), " bytes"),
          "1500 are usual",
          absl::StrCat("on ", host.name(), ": sudo ip link set dev ", interface,
                       " mtu 1500, if all of the network takes that"));
    }
  }

  // The machine of the command follows the job at the coordinator.
  void NamesHere() {
    for (const doctor::Name& name : facts_.here().name()) {
      if (name.error().empty()) continue;
      findings_.Add(
          doctor::ERROR, "this machine", "names",
          absl::StrCat(name.name(), " is not known here: ", name.error()),
          "slackline run follows the job there",
          absl::StrCat("echo '", AddressOf(name.name()), " ", name.name(),
                       "' | sudo tee -a /etc/hosts"));
    }
  }

  void Ports(const doctor::Host& host) {
    for (const doctor::Opened::State& door : host.opened().door()) {
      const std::string what =
          door.port() > 0 ? absl::StrCat(door.port(), " (", door.label(), ")")
                          : door.label();
      if (door.error().empty()) {
        findings_.Add(doctor::OK, host.name(), "ports",
                      absl::StrCat(what, " is free at ", door.address()));
      } else if (door.taken()) {
        findings_.Add(doctor::ERROR, host.name(), "ports",
                      absl::StrCat(what, " is taken at ", door.address()),
                      "it has to be free",
                      absl::StrCat("on ", host.name(), ": ss -ltnp 'sport = :",
                                   door.port(), "' says by whom",
                                   door.label() == "coordinator"
                                       ? "; or --set coordinator.port=PORT"
                                   : absl::StartsWith(door.label(), kHealthDoor)
                                       ? "; or --set health.port=PORT"
                                       : ""));
      } else {
        findings_.Add(
            doctor::ERROR, host.name(), "ports",
            absl::StrCat("nobody can listen for ", what, ": ", door.error()),
            "the job listens there",
            absl::StrCat("on ", host.name(), ": ip address"));
      }
    }
  }

  void Clock(const doctor::Host& host) {
    const int64_t ahead = host.clock_ahead_us();
    const int64_t far = std::abs(ahead) - host.clock_error_us();
    const std::string text =
        absl::StrFormat("%.3f s %s this machine's (to %.3f s)",
                        static_cast<double>(std::abs(ahead)) / 1e6,
                        ahead < 0 ? "behind" : "ahead of",
                        static_cast<double>(host.clock_error_us()) / 1e6);
    if (far < kClockFarUs) {
      findings_.Add(doctor::OK, host.name(), "clock", text);
    } else {
      findings_.Add(
          doctor::NOTE, host.name(), "clock", text,
          "times in logs differ by that, nothing else",
          absl::StrCat("on ", host.name(), ": sudo chronyc makestep"));
    }
  }

  void LimitsOf(const doctor::HostNeed& need, const doctor::Host& host) {
    const doctor::Limits& limits = host.facts().limits();
    const int members = need.servers() + need.workers();
    const auto too_few = [](int64_t limit, int64_t needed) {
      return limit >= 0 && limit < needed;
    };
    const auto text = [](int64_t limit) {
      return limit < 0 ? std::string("no limit") : absl::StrCat(limit);
    };
    if (too_few(limits.open_files(), need.open_files())) {
      findings_.Add(
          doctor::ERROR, host.name(), "open files",
          absl::StrCat("at most ", limits.open_files(), " for a process"),
          absl::StrCat("at least ", need.open_files(), " are needed"),
          absl::StrCat("on ", host.name(), ": echo '* hard nofile ",
                       std::max<int64_t>(need.open_files(), 65536),
                       "' | sudo tee -a /etc/security/limits.conf, and log in "
                       "anew"));
    } else {
      findings_.Add(doctor::OK, host.name(), "open files",
                    text(limits.open_files()));
    }
    // A bound of addresses shrinks the arenas, and takes tcp where they do not
    // fit; without room for the threads a process ends.
    const int64_t least = need.workers() > 0
                              ? kWorkerAddressBytes + need.worker_bytes()
                              : kServerAddressBytes + need.server_bytes();
    const int64_t ample = least + kArenaBytes * members;
    const std::string fix =
        absl::StrCat("on ", host.name(),
                     ": ulimit -v unlimited before the agent starts, or ask "
                     "the batch system for more memory");
    if (too_few(limits.address_bytes(), least)) {
      findings_.Add(doctor::ERROR, host.name(), "addresses",
                    absl::StrCat("at most ", BytesWords(limits.address_bytes()),
                                 " for a process (ulimit -v)"),
                    absl::StrCat("at least ", BytesWords(least), " are needed"),
                    fix);
    } else if (too_few(limits.address_bytes(), ample)) {
      findings_.Add(
          facts_.job().shared_memory_only() ? doctor::ERROR : doctor::WARNING,
          host.name(), "addresses",
          absl::StrCat("at most ", BytesWords(limits.address_bytes()),
                       " for a process (ulimit -v)"),
          absl::StrCat("shared memory takes ", BytesWords(ample)), fix);
    } else {
      findings_.Add(doctor::OK, host.name(), "addresses",
                    limits.address_bytes() < 0
                        ? "no limit"
                        : BytesWords(limits.address_bytes()));
    }
    const int64_t threads = kThreadsPerMember * members + need.threads();
    if (!limits.root() && too_few(limits.processes(), threads)) {
      findings_.Add(
          doctor::ERROR, host.name(), "processes",
          absl::StrCat("at most ", limits.processes(),
                       " processes and threads of the user"),
          absl::StrCat("the job has about ", threads),
          absl::StrCat("on ", host.name(), ": echo '* hard nproc ",
                       std::max<int64_t>(2 * threads, 4096),
                       "' | sudo tee -a /etc/security/limits.conf, and log in "
                       "anew"));
    } else {
      findings_.Add(doctor::OK, host.name(), "processes",
                    text(limits.processes()));
    }
  }

  void Memory(const doctor::HostNeed& need, const doctor::Host& host) {
    const int64_t free = host.facts().memory_bytes();
    const int64_t needed = need.servers() * need.server_bytes() +
                           need.workers() * need.worker_bytes();
    const std::string bound = absl::StrCat(
        "about ", BytesWords(needed), " are needed by ", need.servers(),
        need.servers() == 1 ? " server" : " servers", " and ", need.workers(),
        need.workers() == 1 ? " worker" : " workers");
    const std::string value =
        free == 0 ? "not known" : absl::StrCat(BytesWords(free), " are free");
    if (free > 0 && free < needed) {
      findings_.Add(doctor::ERROR, host.name(), "memory", value, bound,
                    "place fewer workers there, by --hosts HOST:WORKERS,...");
    } else {
      findings_.Add(doctor::OK, host.name(), "memory", value, bound);
    }
  }

  void SharedMemory(const doctor::HostNeed& need, const doctor::Host& host) {
    const doctor::HostFacts& there = host.facts();
    if (!there.shm_error().empty()) {
      findings_.Add(
          facts_.job().shared_memory_only() ? doctor::ERROR : doctor::WARNING,
          host.name(), "shared memory",
          absl::StrCat("it cannot be mapped: ", there.shm_error()),
          "processes of one host use it",
          "--set limits.transport=TCP, or raise ulimit -v there");
    } else {
      findings_.Add(doctor::OK, host.name(), "shared memory",
                    "it can be mapped");
    }
    // Slackline itself uses no files there.
    if (!need.own_programs()) return;
    const int64_t free = there.shm_free_bytes();
    if (free >= kShmRoomAmple) {
      findings_.Add(doctor::OK, host.name(), "/dev/shm",
                    absl::StrCat(BytesWords(free), " are free"));
      return;
    }
    findings_.Add(doctor::WARNING, host.name(), "/dev/shm",
                  free < 0 ? "it is not there"
                           : absl::StrCat(BytesWords(free), " are free"),
                  absl::StrCat("PyTorch's DataLoader and NCCL take some ",
                               BytesWords(kShmRoomAmple)),
                  absl::StrCat("on ", host.name(),
                               ": sudo mount -o remount,size=1G /dev/shm (of a "
                               "container: --shm-size=1g)"));
  }

  // What processes there need to take part in a job with a key.
  void Encryption(const doctor::Host& host) {
    if (!facts_.job().has_key()) return;
    const std::string& error = host.facts().curve_error();
    if (!error.empty()) {
      findings_.Add(
          doctor::ERROR, host.name(), "key", error.substr(0, error.find("; ")),
          "the job encrypts what it sends",
          absl::StrCat("install libzmq5 of the distribution on ", host.name()));
      return;
    }
    const std::string& engine = facts_.job().engine();
    findings_.Add(doctor::OK, host.name(), "key",
                  engine == kHere
                      ? "ZeroMQ can encrypt"
                      : absl::StrCat("ZeroMQ can encrypt, and the key of the "
                                     "job comes there by the agent (",
                                     engine, ")"));
  }

  void Key(const doctor::KeyFacts& key) {
    constexpr absl::string_view kWhere = "this machine";
    const auto add = [&](Level level, absl::string_view value,
                         absl::string_view bound = "",
                         absl::string_view fix = "") {
      findings_.Add(level, kWhere, "key", value, bound, fix);
    };
    const std::string init =
        ShellLine({"slackline", "keys", "init", "--key", key.file()});
    if (key.insecure() && key.given()) {
      add(doctor::ERROR,
          absl::StrCat("--key ", key.file(), ", and insecure: true"),
          "with that a job has no key", "leave out one of the two");
    } else if (key.insecure()) {
      add(doctor::WARNING,
          "insecure: true: nothing on the wire is encrypted, and whoever "
          "reaches a port can read, change and stop the job",
          "a key protects a job", "take insecure out of the config");
    } else if (!key.error().empty()) {
      // The command that mends it stands behind the first semicolon.
      const std::pair<std::string, std::string> sides =
          absl::StrSplit(key.error(), absl::MaxSplits("; ", 1));
      add(doctor::ERROR, sides.first, "", sides.second);
    } else if (!key.mode().empty()) {
      add(doctor::OK,
          absl::StrCat(key.file(), ", ",
                       key.given() ? "named by --key" : "the user's", ", mode ",
                       key.mode()));
    } else if (key.given()) {
      add(doctor::ERROR, absl::StrCat("--key ", key.file(), " is not there"),
          "the job takes its key from it", init);
    } else if (key.can_be_made()) {
      add(doctor::OK, absl::StrCat(key.file(), " is made when the job starts"));
    } else {
      add(doctor::NOTE,
          key.file().empty()
              ? "this user has no home, where a key could be kept"
              : absl::StrCat(key.file(), " cannot be made"),
          "each run gets a key of its own, and commands reach it by its folder",
          "slackline keys init --key FILE, and --key FILE");
    }
  }

  void Folders(const doctor::HostNeed& need, const doctor::Host& host) {
    const int64_t state = kStateCopies * facts_.job().model_bytes();
    std::set<std::string> bad;
    for (const doctor::FolderFacts& folder : host.facts().folder()) {
      const bool checkpoints =
          folder.folder().use() == doctor::Folder::CHECKPOINTS;
      if (checkpoints && !need.writes_checkpoints()) continue;
      // One place that is full, or cannot be written to, is said once.
      if (!folder.error().empty() && !bad.insert(folder.existing()).second)
        continue;
      const std::string& path = folder.folder().path();
      const char* const check = checkpoints ? "checkpoint folder"
                                : folder.folder().use() == doctor::Folder::RUN
                                    ? "run folder"
                                    : "working folder";
      const std::string other =
          checkpoints ? "or another by --set checkpoint.folder=DIR"
                      : "or another by --out, or --set launch.runs_dir=DIR";
      if (folder.folder().use() == doctor::Folder::WORKING) {
        if (folder.existing() == path) {
          findings_.Add(doctor::OK, host.name(), check, path);
        } else {
          findings_.Add(doctor::ERROR, host.name(), check,
                        absl::StrCat(path, " is not there"),
                        "programs of workers run where slackline is called",
                        absl::StrCat("on ", host.name(), ": mkdir -p ", path));
        }
        continue;
      }
      const std::string where =
          folder.existing() == path
              ? path
              : absl::StrCat(path, " (to be made in ", folder.existing(), ")");
      if (!folder.error().empty()) {
        findings_.Add(doctor::ERROR, host.name(), check,
                      absl::StrCat(where, ": ", folder.error()),
                      "it has to be written to",
                      absl::StrCat("on ", host.name(), ": ",
                                   FolderFix(folder.error(), folder.existing()),
                                   ", ", other));
        continue;
      }
      const int64_t least =
          checkpoints ? state : kRunRoomMin + facts_.job().model_bytes();
      const int64_t ample = checkpoints
                                ? (facts_.job().checkpoint_keep() + 1) * state
                                : kRunRoomAmple + facts_.job().model_bytes();
      const std::string value = absl::StrCat(
          where, " has ", BytesWords(folder.free_bytes()), " free");
      const std::string fix =
          absl::StrCat("on ", host.name(), ": df -h ", folder.existing(),
                       ", and make room, ", other);
      if (folder.free_bytes() < least) {
        findings_.Add(
            doctor::ERROR, host.name(), check, value,
            absl::StrCat("at least ", BytesWords(least), " are needed"), fix);
      } else if (folder.free_bytes() < ample) {
        findings_.Add(doctor::WARNING, host.name(), check, value,
                      absl::StrCat(BytesWords(ample), " would do for long"),
                      fix);
      } else {
        findings_.Add(doctor::OK, host.name(), check, value);
      }
    }
  }

  static std::string FolderFix(const std::string& error,
                               const std::string& folder) {
    if (absl::StrContains(error, "No space left"))
      return absl::StrCat("df -h ", folder, ", and make room");
    if (absl::StrContains(error, "Read-only")) {
      return absl::StrCat("sudo mount -o remount,rw $(findmnt -no TARGET -T ",
                          folder, ")");
    }
    if (absl::StrContains(error, "Permission denied"))
      return absl::StrCat("sudo chown $(id -un) ", folder);
    return absl::StrCat("findmnt -T ", folder);
  }

  // The first host that has the data stands for all, or this machine.
  void Data(const doctor::HostNeed& need, const doctor::Host& host) {
    if (!need.data()) return;
    const auto is_whole = [](const doctor::HostFacts& facts) {
      return facts.data_file_size() > 0 &&
             std::all_of(facts.data_file().begin(), facts.data_file().end(),
                         [](const auto& file) { return file.error().empty(); });
    };
    std::string owner = "this machine";
    const doctor::HostFacts* model =
        is_whole(facts_.here()) ? &facts_.here() : nullptr;
    for (const doctor::Host& other : facts_.host()) {
      if (model != nullptr) break;
      if (!is_whole(other.facts())) continue;
      model = &other.facts();
      owner = other.name();
    }
    const doctor::Job& job = facts_.job();
    const bool from_here = owner == "this machine";
    const std::string fix =
        job.engine() == kHere
            ? "slackline data says what is there; name its folder by --data-dir"
            : absl::StrCat(
                  from_here ? "" : absl::StrCat("on ", owner, ": "),
                  CopyLine(job, {"--checksum"},
                           from_here ? job.data_here() : job.data_there(),
                           host.name(), job.data_there()),
                  ", or name its folder there by --set launch.data_dir=DIR");
    for (const doctor::DataFile& file : host.facts().data_file()) {
      if (!file.error().empty()) {
        findings_.Add(doctor::ERROR, host.name(), "data", file.error(),
                      "its workers read it", fix);
        return;
      }
    }
    int64_t bytes = 0;
    for (int i = 0; i < host.facts().data_file_size(); ++i) {
      const doctor::DataFile& file = host.facts().data_file(i);
      bytes += std::min(file.bytes(), int64_t{1} << 50);
      if (model == nullptr || i >= model->data_file_size()) continue;
      const doctor::DataFile& same = model->data_file(i);
      const bool is_read = file.hash() != 0 && same.hash() != 0;
      if (file.bytes() == same.bytes() &&
          (!is_read || file.hash() == same.hash())) {
        continue;
      }
      if (file.name() != same.name()) {  // Packed by gzip, or not.
        findings_.Add(doctor::NOTE, host.name(), "data",
                      absl::StrCat(file.name(), " is not compared"),
                      absl::StrCat(owner, " has ", same.name()));
        return;
      }
      findings_.Add(
          doctor::ERROR, host.name(), "data",
          file.bytes() == same.bytes()
              ? absl::StrCat(file.name(), " has other bytes (hash ",
                             absl::Hex(file.hash(), absl::kZeroPad16), ")")
              : absl::StrCat(file.name(), " has ", file.bytes(), " bytes"),
          file.bytes() == same.bytes()
              ? absl::StrCat(owner, " has ",
                             absl::Hex(same.hash(), absl::kZeroPad16))
              : absl::StrCat(owner, " has ", same.bytes()),
          fix);
      return;
    }
    findings_.Add(doctor::OK, host.name(), "data",
                  absl::StrCat(host.facts().data_file_size(), " files, ",
                               BytesWords(bytes), ", as on ", owner));
  }

  void Packages(const doctor::HostNeed& need, const doctor::Host& host) {
    const doctor::HostFacts& there = host.facts();
    if (there.has_python()) {
      const doctor::Python& python = there.python();
      if (!python.error().empty()) {
        findings_.Add(doctor::ERROR, host.name(), "python", python.error(),
                      "workers start with it",
                      absl::StrCat("install it on ", host.name(),
                                   ", or name another in worker { command }"));
      } else {
        findings_.Add(
            doctor::OK, host.name(), "python",
            absl::StrCat(
                python.version(), ", PyTorch ",
                python.torch().empty() ? "is not there" : python.torch(),
                python.cuda().empty() ? ""
                                      : absl::StrCat(", CUDA ", python.cuda()),
                python.nccl().empty() ? ""
                                      : absl::StrCat(", NCCL ", python.nccl()),
                python.blas().empty()
                    ? ""
                    : absl::StrCat(", BLAS ", python.blas())));
        if (!python.slackline_error().empty()) {
          findings_.Add(
              doctor::WARNING, host.name(), "python",
              absl::StrCat("import slackline: ", python.slackline_error()),
              "scripts that join need it",
              facts_.job().engine() == kHere
                  ? "export PYTHONPATH=DIR, or install the wheel"
                  : "--set launch.environment=PYTHONPATH=DIR, or install the "
                    "wheel there");
        }
      }
    }
    if (need.gpus() > there.gpus()) {
      findings_.Add(
          doctor::ERROR, host.name(), "gpu",
          absl::StrCat(there.gpus(), " devices",
                       there.gpu_driver().empty()
                           ? ", no driver"
                           : absl::StrCat(", driver ", there.gpu_driver())),
          absl::StrCat(need.gpus(), " are needed"),
          absl::StrCat("on ", host.name(),
                       ": nvidia-smi -L; or --set worker[N].device=CPU"));
    } else if (there.gpus() > 0) {
      findings_.Add(
          doctor::OK, host.name(), "gpu",
          absl::StrCat(there.gpus(), " devices, driver ", there.gpu_driver()));
    }
  }

  // Folders that hosts share with the machine of the command, and so with each
  // other: each sees the mark that was left here.
  void Shared() {
    Share(
        doctor::Folder::CHECKPOINTS, facts_.job().shares_checkpoints(),
        "checkpoint folder",
        "name a folder that all of them mount by --set checkpoint.folder=DIR");
    Share(doctor::Folder::RUN, facts_.job().shares_run_folder(), "run folder",
          "name a folder that all of them mount by --out");
  }
  void Share(doctor::Folder::Use use, bool needed, const char* check,
             const char* fix) {
    if (!needed) return;
    const auto folder_of = [use](const doctor::HostFacts& facts) {
      for (const doctor::FolderFacts& folder : facts.folder()) {
        if (folder.folder().use() == use) return folder;
      }
      return doctor::FolderFacts();
    };
    const doctor::FolderFacts here = folder_of(facts_.here());
    if (!here.error().empty()) {
      findings_.Add(doctor::ERROR, "this machine", check,
                    absl::StrCat(here.folder().path(), ": ", here.error()),
                    "it has to be written to", fix);
      return;
    }
    for (const doctor::HostNeed& need : facts_.job().host()) {
      const auto found = hosts_.find(need.name());
      if (!need.writes_checkpoints() || found == hosts_.end() ||
          !found->second->unreached().empty()) {
        continue;
      }
      const doctor::FolderFacts there = folder_of(found->second->facts());
      if (!there.error().empty()) continue;  // Folders() has said it.
      const auto& seen = found->second->marks_seen().use();
      if (std::find(seen.begin(), seen.end(), use) != seen.end()) {
        findings_.Add(
            doctor::OK, need.name(), check,
            absl::StrCat(there.folder().path(), " is that of this machine"));
      } else {
        findings_.Add(doctor::ERROR, need.name(), check,
                      absl::StrCat(there.folder().path(), " there is not ",
                                   here.folder().path(), " of this machine"),
                      "all hosts that write there share one folder", fix);
      }
    }
  }

  const doctor::Facts& facts_;
  std::map<std::string, const doctor::Host*> hosts_;
  std::map<std::string, std::string> known_;  // Addresses, by name.
  std::set<std::string> misnamed_;  // Who listens where others do not connect.
  std::map<std::string, const doctor::Name*> ways_;  // Of some of these, out.
  Findings findings_;
};

std::string LevelWord(Level level) {
  return absl::AsciiStrToLower(doctor::Level_Name(level));
}

}  // namespace

absl::Status CheckReply(const doctor::Reply& reply) {
  if (IsDoctorSize(reply)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "an answer has longer lists, texts or numbers than any agent sends");
}

void TakeReply(doctor::Reply reply, doctor::Host* host) {
  switch (reply.what_case()) {
    case doctor::Reply::kFacts:
      *host->mutable_facts() = std::move(*reply.mutable_facts());
      break;
    case doctor::Reply::kOpened:
      *host->mutable_opened() = std::move(*reply.mutable_opened());
      break;
    case doctor::Reply::kMarksSeen:
      *host->mutable_marks_seen() = std::move(*reply.mutable_marks_seen());
      break;
    case doctor::Reply::kTried:
    case doctor::Reply::WHAT_NOT_SET:
      break;
  }
}

std::string InstallText(const doctor::Job& job, const std::string& host,
                        bool is_there) {
  if (job.engine() == kHere) {
    return "build all of Slackline anew, or name the right folder by --bin-dir";
  }
  // rsync makes the last folder of a path, and others if it is told to.
  std::vector<std::string> flags;
  if (!is_there) flags.emplace_back("--mkpath");
  return absl::StrCat(
      CopyLine(job, flags, job.bin_here(), host, job.bin_there()),
      ", or name the folder of the same version there by --set "
      "launch.bin_dir=DIR");
}

doctor::Report Diagnose(const doctor::Facts& facts) {
  return Diagnosis(facts).Run();
}

std::string FindingLine(const Finding& finding) {
  std::string line =
      absl::StrCat(LevelWord(finding.level()), ": ", finding.host(), ": ",
                   finding.check(), ": ", finding.value());
  if (!finding.bound().empty())
    absl::StrAppend(&line, " (", finding.bound(), ")");
  if (!finding.fix().empty()) absl::StrAppend(&line, "; ", finding.fix());
  return line;
}

std::string ReportText(const doctor::Report& report, bool all) {
  std::string text;
  int fine = 0;
  std::set<std::string> hosts;
  std::vector<std::string> checks;
  for (const Finding& finding : report.finding()) {
    hosts.insert(finding.host());
    const bool is_fine = finding.level() == doctor::OK;
    if (is_fine) {
      ++fine;
      if (std::find(checks.begin(), checks.end(), finding.check()) ==
          checks.end()) {
        checks.push_back(finding.check());
      }
    }
    if (is_fine && !all) continue;
    absl::StrAppend(&text, FindingLine(finding), "\n");
  }
  const auto count = [](int number, const char* what) {
    return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
  };
  absl::StrAppend(
      &text, "job ", report.job(), ": ", count(report.errors(), "error"), ", ",
      count(report.warnings(), "warning"), "; ", count(fine, "check"),
      fine == 1 ? " is" : " are", " fine",
      checks.empty() ? ""
                     : absl::StrCat(" (", absl::StrJoin(checks, ", "), ")"),
      all || fine == 0 ? "" : "; --verbose shows them", "\n");
  return text;
}

}  // namespace slackline
