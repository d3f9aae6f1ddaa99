#include "tools/cli/job/reach.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/io/descriptor.h"
#include "common/net/socket_address.h"

namespace slackline {
namespace {

Reach ReachOf(int error_number) {
  switch (error_number) {
    case 0:
      return Reach::kSilent;
    case ECONNREFUSED:
      return Reach::kRefused;
    case ETIMEDOUT:
      return Reach::kTimedOut;
    default:
      return Reach::kUnreachable;
  }
}

}  // namespace

Reach TryToReach(const std::string& endpoint, absl::Duration wait_max,
                 std::string* detail) {
  const auto [host, port] = SplitHostPort(endpoint);
  addrinfo hints = {};
  hints.ai_family = IsIpv6(host) ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    *detail = gai_strerror(error);
    return Reach::kUnresolved;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> first(found,
                                                             freeaddrinfo);
  const Descriptor socket(::socket(
      first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = socket.valid()
                        ? ConnectWithin(wait_max, socket.get(), first->ai_addr,
                                        first->ai_addrlen)
                        : errno;
  *detail = error == 0 ? "" : std::generic_category().message(error);
  return ReachOf(error);
}

std::string ReachText(Reach reach, const std::string& endpoint,
                      const std::string& detail) {
  switch (reach) {
    case Reach::kUnresolved:
      return absl::StrCat(
          endpoint, ": the name of the host is not known here (", detail,
          "), which says nothing of the job; look at the name, and at the "
          "resolver of this host");
    case Reach::kUnreachable:
      return absl::StrCat(endpoint, ": there is no way to that host (", detail,
                          "); the job may run and train on; look at the "
                          "network of this host");
    case Reach::kTimedOut:
      return absl::StrCat(
          endpoint,
          ": that host does not answer, not even to refuse; it is down, or "
          "something between drops what is sent to that port; the job may run "
          "and train on");
    case Reach::kRefused:
      return absl::StrCat(
          endpoint,
          ": that host answers, and nobody listens at the port: the process "
          "of the coordinator is not there; the job has not begun or has "
          "ended, or its other members train on and wait for server 0 to be "
          "started again");
    case Reach::kSilent:
      return absl::StrCat(
          endpoint,
          ": a process listens there and says nothing; it is stopped or very "
          "busy, or it is no coordinator; the job may train on");
  }
  return endpoint;
}

}  // namespace slackline
