#include "tests/cluster/ssh_daemon.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr absl::Duration kReadyMax = absl::Seconds(30);

PortReservation AnyPort() {
  absl::StatusOr<PortReservation> port =
      PortReservation::AnyFree(SshDaemon::kFirst);
  SL_CHECK(port.ok(), port.status().ToString());
  return *std::move(port);
}

}  // namespace

std::string SshDaemon::Program() {
  for (const char* const path : {"/usr/sbin/sshd", "/usr/local/sbin/sshd"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

SshDaemon::SshDaemon(const std::string& folder)
    : folder_(folder), port_(AnyPort()) {
  // Of root's sshd the package makes this folder when it starts the service.
  mkdir("/run/sshd", 0755);
  mkdir(folder.c_str(), 0700);
  for (const char* const key : {"host", "user", "other"}) {
    Process made({"/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                  absl::StrCat(folder, "/", key)},
                 absl::StrCat(folder, "/keygen.log"));
    EXPECT_EQ(made.WaitText(kReadyMax), kEndedWell) << made.Output();
  }
  const std::vector<std::string> host_key =
      absl::StrSplit(ReadText(absl::StrCat(folder, "/host.pub")), ' ');
  std::ofstream known(absl::StrCat(folder, "/known_hosts"));
  for (const char* const address : {kFirst, kSecond}) {
    known << "[" << address << "]:" << port_.port() << " " << host_key.at(0)
          << " " << host_key.at(1) << "\n";
  }
  const std::vector<std::string> other_key =
      absl::StrSplit(ReadText(absl::StrCat(folder, "/other.pub")), ' ');
  known << "[" << kChanged << "]:" << port_.port() << " " << other_key.at(0)
        << " " << other_key.at(1) << "\n";
  std::ofstream(absl::StrCat(folder, "/sshd_config"))
      << "Port " << port_.port() << "\nListenAddress " << kFirst
      << "\nListenAddress " << kSecond << "\nListenAddress " << kUnknown
      << "\nListenAddress " << kChanged << "\nHostKey " << folder
      << "/host\nAuthorizedKeysFile " << folder
      << "/user.pub\nPidFile none\nStrictModes no\nUsePAM no\n"
      << "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
      << "PermitRootLogin prohibit-password\nMaxStartups 100\n";
  Start();
}

void SshDaemon::Start() {
  daemon_ = std::make_unique<Process>(
      std::vector<std::string>{Program(), "-D", "-e", "-f",
                               absl::StrCat(folder_, "/sshd_config")},
      absl::StrCat(folder_, "/sshd.log"));
  EXPECT_TRUE(WaitUntil(kReadyMax, [&] {
    return daemon_->Output().find(absl::StrCat(
               "Server listening on ", kUnknown)) != std::string::npos &&
           daemon_->Output().find(absl::StrCat("Server listening on ",
                                               kFirst)) != std::string::npos;
  })) << daemon_->Output();
}

std::string SshDaemon::BlockWithKey(const std::string& key) const {
  return absl::StrCat("ssh { port: ", port_.port(), " identity_file: \"",
                      folder_, "/", key,
                      "\" option: \"UserKnownHostsFile=", folder_,
                      "/known_hosts\" option: \"GlobalKnownHostsFile=none\" "
                      "option: \"StrictHostKeyChecking=yes\" }");
}

}  // namespace slackline
