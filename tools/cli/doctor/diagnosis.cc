#include "tools/cli/doctor/diagnosis.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/config/shell_line.h"
#include "tools/cli/doctor/copy_lines.h"
#include "tools/cli/doctor/file_findings.h"
#include "tools/cli/doctor/findings.h"
#include "tools/cli/doctor/name_findings.h"
#include "tools/cli/doctor/network_findings.h"

namespace slackline {
namespace {

using doctor::Finding;
using doctor::Level;

constexpr int64_t kClockFarUs = 1'000'000;
// Of /dev/shm, where DataLoader's workers and NCCL put their messages.
constexpr int64_t kShmRoomAmple = 64'000'000;
// An arena with a bound on addresses, and what a process takes beside it.
constexpr int64_t kArenaBytes = int64_t{512} << 20;
constexpr int64_t kServerAddressBytes = int64_t{256} << 20;
constexpr int64_t kWorkerAddressBytes = int64_t{384} << 20;
constexpr int64_t kThreadsPerMember = 8;

class Diagnosis {
 public:
  explicit Diagnosis(const doctor::Facts& facts)
      : facts_(facts), findings_(facts.job().job()), names_(facts, &findings_) {
    for (const doctor::Host& host : facts.host()) hosts_[host.name()] = &host;
  }

  doctor::Report Run() {
    for (const doctor::HostNeed& need : facts_.job().host()) {
      const auto found = hosts_.find(need.name());
      if (found == hosts_.end()) continue;
      const doctor::Host& host = *found->second;
      if (!host.unreached().empty()) {
        findings_.Add(doctor::ERROR, host.name(), "start", host.unreached());
        continue;
      }
      Versions(host);
      names_.Find(need, host);
      Ports(host);
      Clock(host);
      LimitsOf(need, host);
      Memory(need, host);
      SharedMemory(need, host);
      Encryption(host);
      FindInFolders(facts_.job(), need, host, &findings_);
      FindInData(facts_, need, host, &findings_);
      Packages(need, host);
    }
    for (const Finding& found : facts_.found()) {
      findings_.Add(found.level(), found.host(), found.check(), found.value(),
                    found.bound(), found.fix());
    }
    names_.FindHere();
    if (facts_.has_key()) Key(facts_.key());
    FindShared(facts_, &findings_);
    FindInNetwork(facts_, names_.misnamed(), &findings_);
    return findings_.Take();
  }

 private:
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
            job.engine() == kEngineHere ? doctor::NOTE : doctor::WARNING,
            host.name(), "version",
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
          "times in logs differ by that, and exchanges of keys need clocks "
          "that agree to much less than limits.lease_ms",
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
                  engine == kEngineHere
                      ? "ZeroMQ can encrypt"
                      : absl::StrCat("ZeroMQ can encrypt, and the key of the "
                                     "job comes there by the agent (",
                                     engine, ")"));
    const doctor::KeyFacts& here = facts_.key();
    const std::string& there = host.facts().key_fingerprint();
    if (here.given() || here.fingerprint().empty() || there.empty() ||
        there == here.fingerprint()) {
      return;
    }
    findings_.Add(
        doctor::NOTE, host.name(), "key",
        "the user's key there is another than here",
        "processes that are started by hand need the same one",
        ShellLine({"scp", "-p", here.file(),
                   absl::StrCat(host.name(), ":.config/slackline/key")}));
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
          "each run gets a key of its own, and commands reach it by its "
          "folder; "
          "one on Kubernetes needs the file of a key",
          "slackline keys init --key FILE, and --key FILE");
    }
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
              facts_.job().engine() == kEngineHere
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

  const doctor::Facts& facts_;
  std::map<std::string, const doctor::Host*> hosts_;
  Findings findings_;
  NameFindings names_;
};

}  // namespace

doctor::Report Diagnose(const doctor::Facts& facts) {
  return Diagnosis(facts).Run();
}

}  // namespace slackline
