#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "tools/cli/launch/remote_shell.h"

namespace slackline {
namespace {

// What people type to reach the host in the same way.
std::string PortFlag(const config::Ssh& ssh) {
  return ssh.has_port() ? absl::StrCat("-p ", ssh.port(), " ") : "";
}

std::string Advice(const config::Ssh& ssh, const std::string& host,
                   absl::string_view output) {
  const std::string who =
      absl::StrCat(ssh.has_user() ? absl::StrCat(ssh.user(), "@") : "", host);
  const auto says = [&](const char* text) {
    return absl::StrContains(output, text);
  };
  if (says("HOST IDENTIFICATION HAS CHANGED")) {
    return absl::StrCat(
        "the host has another key than before; if that is right, `ssh-keygen "
        "-R ",
        host, "` forgets the old one");
  }
  if (says("Host key verification failed") || says("host key is known")) {
    return absl::StrCat("its key is not known here: `ssh-keyscan ",
                        PortFlag(ssh), host,
                        " >> ~/.ssh/known_hosts` takes it, once you trust the "
                        "network");
  }
  if (says("Permission denied (")) {
    return absl::StrCat(
        "no key of yours is accepted there: `ssh-copy-id ", PortFlag(ssh), who,
        "` adds yours, or `ssh-add` unlocks one with a passphrase; ssh is not "
        "given a password here");
  }
  if (says("Could not resolve hostname"))
    return "its name is not known here: correct it in the config or in "
           "--hosts, or add it to /etc/hosts or ~/.ssh/config";
  if (says("Connection refused") && IsLoopback(host)) {
    return "nobody listens there, and it is this machine: name the hosts of "
           "the job by --hosts HOST:WORKERS,..., or start an sshd here";
  }
  if (says("Connection refused")) {
    return "nobody listens there: start its sshd, or name its port by launch { "
           "ssh { port: ... } }";
  }
  if (says("timed out") || says("No route to host"))
    return "it does not answer: check its address, and the firewall on the way";
  return "";
}

}  // namespace

RemoteShell SshShell(const config::Ssh& ssh) {
  RemoteShell shell;
  shell.name = "ssh";
  shell.line = [ssh](const std::string& host,
                     const std::vector<std::string>& command) {
    // It asks for nothing: there is nobody to answer. The first value of an
    // option counts, so the user's come before ours.
    std::vector<std::string> words = {ssh.program(), "-T", "-o",
                                      "BatchMode=yes"};
    for (const std::string& option : ssh.option())
      words.insert(words.end(), {"-o", option});
    if (ssh.has_user()) words.insert(words.end(), {"-l", ssh.user()});
    if (ssh.has_port())
      words.insert(words.end(), {"-p", absl::StrCat(ssh.port())});
    if (ssh.has_identity_file()) {
      words.insert(words.end(),
                   {"-i", ssh.identity_file(), "-o", "IdentitiesOnly=yes"});
    }
    // A connection of its own, that ends with this command.
    for (const char* const option :
         {"ConnectTimeout=15", "ServerAliveInterval=15",
          "ServerAliveCountMax=3", "ControlMaster=no", "ControlPath=none"}) {
      words.insert(words.end(), {"-o", option});
    }
    words.insert(words.end(), {"--", host, ShellLine(command)});
    return words;
  };
  shell.advice = [ssh](const std::string& host, absl::string_view output) {
    return Advice(ssh, host, output);
  };
  return shell;
}

}  // namespace slackline
