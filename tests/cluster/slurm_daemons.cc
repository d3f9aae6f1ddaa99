#include "tests/cluster/slurm_daemons.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tests/support/job_test.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr absl::Duration kReadyMax = absl::Seconds(60);

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

}  // namespace

bool SlurmDaemons::AreInstalled() {
  if (geteuid() != 0) return false;
  for (const char* const path : {"/usr/sbin/munged", "/usr/sbin/slurmctld",
                                 "/usr/sbin/slurmd", "/usr/bin/srun"}) {
    if (access(path, X_OK) != 0) return false;
  }
  return true;
}

SlurmDaemons::SlurmDaemons(const std::string& folder) : folder_(folder) {
  for (int i = 0; i < 3; ++i) ports_.push_back(AnyPort());
  for (const char* const below : {"", "/state", "/spool"})
    mkdir(absl::StrCat(folder, below).c_str(), 0755);
  const std::string key = absl::StrCat(folder, "/munge.key");
  std::ofstream(key) << std::string(1024, 'k');
  chmod(key.c_str(), 0600);
  const std::string socket = absl::StrCat(folder, "/munge.socket");
  const std::string host = ShortHostName();
  std::ofstream config(absl::StrCat(folder, "/slurm.conf"));
  config << "ClusterName=test\nSlurmctldHost=" << host
         << "(127.0.0.1)\nSlurmctldPort=" << ports_[0].port()
         << "\nAuthType=auth/munge\nAuthInfo=socket=" << socket
         << "\nMpiDefault=none\nProctrackType=proctrack/linuxproc\n"
         << "TaskPlugin=task/none\nSelectType=select/cons_tres\n"
         << "SelectTypeParameters=CR_Core\nSlurmUser=root\nSlurmdUser=root\n"
         << "StateSaveLocation=" << folder
         << "/state\nSlurmdSpoolDir=" << folder
         << "/spool/%n\nSlurmctldPidFile=" << folder
         << "/slurmctld.pid\nSlurmdPidFile=" << folder
         << "/slurmd-%n.pid\nReturnToService=2\nSwitchType=switch/none\n"
         << "JobAcctGatherType=jobacct_gather/none\n"
         << "AccountingStorageType=accounting_storage/none\n";
  int port = 1;
  for (const char* const node : {kFirst, kSecond}) {
    config << "NodeName=" << node << " NodeHostname=" << host
           << " NodeAddr=" << node << " Port=" << ports_[port++].port()
           << " CPUs=2 State=UNKNOWN\n";
    mkdir(absl::StrCat(folder, "/spool/", node).c_str(), 0755);
  }
  config << "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE "
            "State=UP\n";
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
  for (const char* const node : {kFirst, kSecond}) {
    daemons_.push_back(Start(absl::StrCat("slurmd-", node),
                             {"/usr/sbin/slurmd", "-D", "-N", node}));
  }
  std::string nodes;
  const bool ready = WaitUntil(kReadyMax, [&] {
    const std::unique_ptr<Process> asked =
        Start("sinfo", {"/usr/bin/sinfo", "--noheader", "--format=%D %t;"});
    asked->WaitText(kReadyMax);
    nodes = asked->Output();
    return absl::StrContains(nodes, "2 idle;");
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
}

std::vector<std::string> SlurmDaemons::Command(
    const std::vector<std::string>& words) const {
  std::vector<std::string> all = {
      "/usr/bin/env", absl::StrCat("SLURM_CONF=", folder_, "/slurm.conf")};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

std::unique_ptr<Process> SlurmDaemons::Start(
    const std::string& name, const std::vector<std::string>& words) const {
  const std::string log = absl::StrCat(folder_, "/", name, ".log");
  unlink(log.c_str());
  return std::make_unique<Process>(Command(words), log);
}

}  // namespace slackline
