#include "tests/cluster/slurm_daemons.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "tests/support/job_test.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr absl::Duration kReadyMax = absl::Seconds(60);
constexpr std::array kNodes = {SlurmDaemons::kFirst, SlurmDaemons::kSecond,
                               SlurmDaemons::kThird};

PortReservation AnyPort() {
  absl::StatusOr<PortReservation> port = PortReservation::AnyFree("127.0.0.1");
  SL_CHECK(port.ok(), port.status().ToString());
  return *std::move(port);
}

std::string ShortHostName() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  const std::string whole = name.data();
  return whole.substr(0, whole.find('.'));
}

// Empty: its process has ended.
std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The parent of a process; 0: it has ended.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  pid_t parent = 0;
  // "PID (NAME) STATE PARENT ...", whatever the name is.
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(text.rfind(')') + 1), ' ', absl::SkipEmpty());
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &parent)) return 0;
  return parent;
}

// Processes that Slurm has started on the node, and the daemons that watch
// them, which are nobody's children.
std::vector<pid_t> ProcessesOfNode(const std::string& node,
                                   const std::string& config_file) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string text = absl::StrCat(
        std::string(1, '\0'), Read(absl::StrCat("/proc/", pid, "/environ")));
    const auto has = [&](const std::string& name, const std::string& value) {
      const std::string entry_text = absl::StrCat(
          std::string(1, '\0'), name, "=", value, std::string(1, '\0'));
      return absl::StrContains(text, entry_text);
    };
    if (!has("SLURMD_NODENAME", node) || !has("SLURM_CONF", config_file))
      continue;
    found.push_back(pid);
    const pid_t parent = ParentOf(pid);
    if (absl::StartsWith(Read(absl::StrCat("/proc/", parent, "/cmdline")),
                         "slurmstepd: ")) {
      found.push_back(parent);
    }
  }
  return found;
}

}  // namespace

bool SlurmDaemons::AreInstalled() {
  if (geteuid() != 0) return false;
  for (const char* const path : {"/usr/sbin/munged", "/usr/sbin/slurmctld",
                                 "/usr/sbin/slurmd", "/usr/bin/srun"}) {
    if (access(path, X_OK) != 0) return false;
  }
  return true;
}

SlurmDaemons::SlurmDaemons(const std::string& folder)
    : folder_(folder),
      spool_(absl::StrCat(testing::TempDir(), "/slurm-", getpid())) {
  unlink(spool_.c_str());
  for (size_t i = 0; i <= kNodes.size(); ++i) ports_.push_back(AnyPort());
  for (const char* const below : {"", "/state", "/spool"})
    mkdir(absl::StrCat(folder, below).c_str(), 0755);
  EXPECT_EQ(symlink(absl::StrCat(folder, "/spool").c_str(), spool_.c_str()), 0);
  const std::string key = absl::StrCat(folder, "/munge.key");
  std::ofstream(key) << std::string(1024, 'k');
  chmod(key.c_str(), 0600);
  const std::string socket = absl::StrCat(folder, "/munge.socket");
  const std::string host = ShortHostName();
  std::ofstream config(absl::StrCat(folder, "/slurm.conf"));
  config << "ClusterName=test\nSlurmctldHost=" << host
         << "(127.0.0.1)\nSlurmctldPort=" << ports_[0].port()
         << "\nAuthType=auth/munge\nAuthInfo=socket="
         << socket
         // What is queued again waits as long as a credential lives.
         << ",cred_expire=5"
         << "\nMpiDefault=none\nProctrackType=proctrack/linuxproc\n"
         << "TaskPlugin=task/none\nSelectType=select/cons_tres\n"
         << "SelectTypeParameters=CR_Core\nSlurmUser=root\nSlurmdUser=root\n"
         << "StateSaveLocation=" << folder
         << "/state\nSlurmdSpoolDir=" << spool_
         << "/%n\nSlurmctldPidFile=" << folder
         << "/slurmctld.pid\nSlurmdPidFile=" << folder
         << "/slurmd-%n.pid\nReturnToService=2\nSwitchType=switch/none\n"
         << "JobAcctGatherType=jobacct_gather/none\n"
         << "AccountingStorageType=accounting_storage/none\n"
         << "SlurmdParameters=config_overrides\nMessageTimeout=10\n"
         << "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
         << "SchedulerParameters=sched_interval=1,bf_interval=1\n";
  int port = 1;
  for (const char* const node : kNodes) {
    config << "NodeName=" << node << " NodeHostname=" << host
           << " NodeAddr=" << node << " Port=" << ports_[port++].port()
           << " CPUs=" << kProcessors << " State=UNKNOWN\n";
    mkdir(absl::StrCat(folder, "/spool/", node).c_str(), 0755);
  }
  config << "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 "
            "PreemptMode=REQUEUE\n"
         << "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF\n";
  config.close();
  daemons_.push_back(Start(
      "munged",
      {"/usr/sbin/munged", "--foreground", "--force",
       absl::StrCat("--key-file=", key), absl::StrCat("--socket=", socket),
       absl::StrCat("--pid-file=", folder, "/munged.pid"),
       absl::StrCat("--seed-file=", folder, "/munge.seed"),
       absl::StrCat("--log-file=", folder, "/munge.log")}));
  EXPECT_TRUE(
      WaitUntil(kReadyMax, [&] { return access(socket.c_str(), F_OK) == 0; }));
  daemons_.push_back(Start("slurmctld", {"/usr/sbin/slurmctld", "-D"}));
  for (const char* const node : kNodes) {
    daemons_.push_back(Start(absl::StrCat("slurmd-", node),
                             {"/usr/sbin/slurmd", "-D", "-N", node}));
    daemon_of_node_[node] = daemons_.back().get();
  }
  std::string nodes;
  const bool ready = WaitUntil(kReadyMax, [&] {
    const std::unique_ptr<Process> asked = Start(
        "sinfo",
        {"/usr/bin/sinfo", "--noheader", "--partition=low", "--format=%D %t;"});
    asked->WaitText(kReadyMax);
    nodes = asked->Output();
    return absl::StrContains(nodes, "3 idle;");
  });
  EXPECT_TRUE(ready) << nodes;
}

SlurmDaemons::~SlurmDaemons() {
  // A step whose daemon is gone would wait for it for ever.
  WaitUntil(kReadyMax, [&] {
    const std::unique_ptr<Process> asked =
        Start("squeue", {"/usr/bin/squeue", "--noheader"});
    return asked->WaitText(kReadyMax) != kEndedWell || asked->Output().empty();
  });
  // A daemon that uses another one ends before it.
  while (!daemons_.empty()) daemons_.pop_back();
  unlink(spool_.c_str());
}

std::vector<std::string> SlurmDaemons::Command(
    const std::vector<std::string>& words) const {
  std::vector<std::string> all = {
      "/usr/bin/env", absl::StrCat("SLURM_CONF=", folder_, "/slurm.conf")};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

std::string SlurmDaemons::Ask(const std::vector<std::string>& words) const {
  const std::unique_ptr<Process> asked = Start("asked", words);
  EXPECT_EQ(asked->WaitText(kReadyMax), kEndedWell)
      << absl::StrJoin(words, " ") << ": " << asked->Output();
  return asked->Output();
}

void SlurmDaemons::KillNode(const std::string& node) {
  kill(daemon_of_node_.at(node)->pid(), SIGKILL);
  const std::vector<pid_t> processes =
      ProcessesOfNode(node, absl::StrCat(folder_, "/slurm.conf"));
  EXPECT_GE(processes.size(), 3u) << "a daemon, an agent, a member";
  for (const pid_t pid : processes) kill(pid, SIGKILL);
  Ask({"/usr/bin/scontrol", "update", absl::StrCat("nodename=", node),
       "state=down", "reason=killed"});
}

std::unique_ptr<Process> SlurmDaemons::Start(
    const std::string& name, const std::vector<std::string>& words) const {
  const std::string log = absl::StrCat(folder_, "/", name, ".log");
  unlink(log.c_str());
  return std::make_unique<Process>(Command(words), log);
}

}  // namespace slackline
