#include "tools/cli/fork_server_client.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/process/fork_server.h"
#include "common/status.h"

namespace slackline {
namespace {

bool Send(int socket, std::string body, const std::array<int, 2>& files) {
  iovec part = {.iov_base = body.data(), .iov_len = body.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(files))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(files));
  std::memcpy(CMSG_DATA(header), files.data(), sizeof(files));
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(body.size());
}

// Orphans of what this process has started become its children.
class TakingOrphans {
 public:
  TakingOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  TakingOrphans(const TakingOrphans&) = delete;
  TakingOrphans& operator=(const TakingOrphans&) = delete;
  ~TakingOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 0); }
};

}  // namespace

ForkServerClient::ForkServerClient(const std::string& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  absl::StatusOr<ChildProcess> server =
      ChildProcess::Start({.command = {program, kForkServerFlag,
                                       std::string(kForkServerPadding, ' ')},
                           .log_path = "/dev/null",
                           .standard_input = theirs.get()});
  if (!server.ok()) return;
  socket_ = std::move(ours);
  server_ = *std::move(server);
}

std::optional<pid_t> ForkServerClient::Fork(
    const std::vector<std::string>& command, int log) {
  if (!server_.has_value()) return std::nullopt;
  std::string body;
  for (const std::string& word : command) body.append(word).push_back('\0');
  if (body.size() > kForkRequestBytesMax) return std::nullopt;
  absl::StatusOr<Pipe> report = OpenPipe();
  if (!report.ok()) return std::nullopt;
  const TakingOrphans until_it_is_ours;
  if (!Send(socket_.get(), std::move(body), {log, report->write.get()}))
    return std::nullopt;
  report->write = Descriptor();
  pid_t pid = 0;
  ssize_t received;
  do {
    received = read(report->read.get(), &pid, sizeof(pid));
  } while (received < 0 && errno == EINTR);
  if (received != sizeof(pid)) return std::nullopt;
  return pid;
}

absl::StatusOr<ChildProcess> ForkServerClient::Start(
    const std::vector<std::string>& command, const std::string& log_path) {
  SL_ASSIGN_OR_RETURN(const Descriptor log, OpenLog(log_path));
  const int64_t kills_before = OutOfMemoryKills();
  const std::optional<pid_t> pid = Fork(command, log.get());
  if (pid.has_value()) return ChildProcess::Adopt(*pid, kills_before);
  server_.reset();
  return ChildProcess::Start({.command = command, .log_path = log_path});
}

}  // namespace slackline
