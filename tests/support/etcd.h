// A real etcd for tests.
#pragma once

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_client.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/process.h"

namespace slackline {

// What a test that needs one says when it is skipped.
inline constexpr char kNoEtcd[] =
    "no etcd to keep a state in: 3.4 or later is needed, which tools/setup.sh "
    "installs";

// Its path; empty: there is none with a JSON gateway below /v3, as of 3.4.
inline std::string EtcdProgram() {
  const auto program = FindProgram("etcd");
  if (!program.ok()) return "";
  FILE* const output = popen((*program + " --version 2>&1").c_str(), "r");
  int major = 0;
  int minor = 0;
  const bool read = output != nullptr &&
                    fscanf(output, "etcd Version: %d.%d", &major, &minor) == 2;
  if (output != nullptr) pclose(output);
  return read && std::pair(major, minor) >= std::pair(3, 4) ? *program : "";
}

// One member of etcd, with its data in a folder of the test.
class Etcd {
 public:
  // With https. Its clients show certificates that `client_ca` has signed;
  // empty: they show none.
  struct Tls {
    std::string certificate;
    std::string private_key;
    std::string client_ca = {};
  };
  explicit Etcd(std::string program) : program_(std::move(program)) {}
  // `client`: for whom it is made, with the files that are right.
  Etcd(std::string program, const Tls& tls, EtcdClient::Options client)
      : program_(std::move(program)), tls_(tls), client_(std::move(client)) {}

  void Start(const std::vector<std::string>& flags = {}) {
    const std::string peers =
        absl::StrCat("http://127.0.0.1:", peer_port_.port());
    std::vector<std::string> command = {
        program_,
        "--data-dir=" + folder_.File("data"),
        "--name=test",
        "--listen-client-urls=" + url(),
        "--advertise-client-urls=" + url(),
        "--listen-peer-urls=" + peers,
        "--initial-advertise-peer-urls=" + peers,
        "--initial-cluster=test=" + peers,
        "--logger=zap",
        "--log-outputs=stderr"};
    if (tls_.has_value()) {
      command.insert(command.end(), {"--cert-file=" + tls_->certificate,
                                     "--key-file=" + tls_->private_key});
    }
    if (tls_.has_value() && !tls_->client_ca.empty()) {
      command.insert(command.end(), {"--client-cert-auth",
                                     "--trusted-ca-file=" + tls_->client_ca});
    }
    command.insert(command.end(), flags.begin(), flags.end());
    process_ = Must(ChildProcess::Start(
        {.command = command, .log_path = folder_.File("log")}));
    EtcdClient::Options options = client();
    options.timeout = absl::Seconds(60);
    Must(Must(EtcdClient::Create(options))->Get("is it there?").status());
  }
  // As whom it is for.
  EtcdClient::Options client() const {
    EtcdClient::Options options = client_;
    options.endpoints = {url()};
    return options;
  }
  void Kill() {
    process_->Signal(SIGKILL);
    process_->Wait();
  }
  std::string url() const {
    return absl::StrCat(tls_.has_value() ? "https" : "http",
                        "://127.0.0.1:", port_.port());
  }
  // A connection, which the caller closes.
  int Connect() const {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    return connection;
  }

 private:
  const std::string program_;
  const std::optional<Tls> tls_;
  const EtcdClient::Options client_ = {};
  const TempFolder folder_{"etcd."};
  const PortReservation port_ = Must(PortReservation::AnyFree("127.0.0.1"));
  const PortReservation peer_port_ =
      Must(PortReservation::AnyFree("127.0.0.1"));
  std::optional<ChildProcess> process_;
};

}  // namespace slackline
