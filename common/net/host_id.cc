#include "common/net/host_id.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

std::string UniqueName() {
  std::random_device device;
  const auto draw = [&] {
    return absl::Hex((uint64_t{device()} << 32) | device(), absl::kZeroPad16);
  };
  return absl::StrCat("slackline-", draw(), draw());
}

}  // namespace

std::string HostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) boot = "unknown";

  std::array<char, HOST_NAME_MAX + 1> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {};

  // The link reads "net:[4026531840]": the number is the namespace's inode.
  std::array<char, 64> net{};
  if (readlink("/proc/self/ns/net", net.data(), net.size() - 1) < 0) net = {};

  return absl::StrCat(boot, "/", host[0] ? host.data() : "unknown", "/",
                      net[0] ? net.data() : "net:unknown");
}

std::string UniqueIpcEndpoint() {
  return absl::StrCat("ipc://@", UniqueName());
}

std::string UniqueShmEndpoint() {
  return absl::StrCat("shm://@", UniqueName());
}

}  // namespace slackline
