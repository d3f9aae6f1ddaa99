#include "common/process/fork_server.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/process/default_signals.h"

namespace slackline {
namespace {

struct Request {
  std::vector<std::string> words;
  int log = -1;
  int report = -1;
};

// False: the socket is closed, or cannot be read. A request that is no request
// has no words.
bool Receive(int socket, Request* request) {
  std::string body(kForkRequestBytesMax, '\0');
  iovec part = {.iov_base = body.data(), .iov_len = body.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) return false;
  const cmsghdr* const files = CMSG_FIRSTHDR(&message);
  if (files != nullptr && files->cmsg_type == SCM_RIGHTS &&
      files->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
    std::array<int, 2> descriptors;
    std::memcpy(descriptors.data(), CMSG_DATA(files), sizeof(descriptors));
    request->log = descriptors[0];
    request->report = descriptors[1];
  }
  body.resize(static_cast<size_t>(received));
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
      request->report >= 0 &&
      absl::EndsWith(body, absl::string_view("\0", 1))) {
    body.pop_back();
    request->words = absl::StrSplit(body, '\0');
  }
  return true;
}

// Becomes a child of `parent`, which takes orphans in (prctl(2),
// PR_SET_CHILD_SUBREAPER), and says so.
void BecomeProcess(const Request& request, pid_t maker, pid_t parent) {
  while (getppid() == maker) sched_yield();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // Another one has taken it in.
  setpgid(0, 0);
  UseDefaultSignals();
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, 0) < 0 || dup2(request.log, 1) < 0 ||
      dup2(request.log, 2) < 0) {
    _exit(1);
  }
  for (const int file : {null, request.log}) {
    if (file > 2) close(file);
  }
  const pid_t self = getpid();
  if (write(request.report, &self, sizeof(self)) != sizeof(self)) _exit(1);
  close(request.report);
}

// For /proc and ps: in place of the arguments of the fork server.
void WriteCommandLine(const std::vector<std::string>& words, int argc,
                      char** argv) {
  char* const begin = argv[0];
  char* const end = argv[argc - 1] + std::strlen(argv[argc - 1]);
  char* at = begin;
  for (const std::string& word : words) {
    const size_t room = static_cast<size_t>(end - at);
    const size_t bytes = std::min(word.size() + 1, room);
    std::memcpy(at, word.c_str(), bytes);
    at += bytes;
  }
  std::fill(at, end, '\0');
}

}  // namespace

ForkServerArguments::ForkServerArguments(int argc, char** argv)
    : argc_(argc), argv_(argv) {
  if (argc < 2 || std::strcmp(argv[1], kForkServerFlag) != 0) return;
  const pid_t parent = getppid();
  while (true) {
    Request request;
    if (!Receive(STDIN_FILENO, &request)) _exit(0);
    // The child of a child, whose parent ends at once, is an orphan.
    const pid_t maker = request.words.empty() ? -1 : fork();
    if (maker == 0) {
      const pid_t between = getpid();
      if (fork() != 0) _exit(0);
      BecomeProcess(request, between, parent);
      WriteCommandLine(request.words, argc, argv);
      words_ = std::move(request.words);
      break;
    }
    if (maker > 0) waitpid(maker, nullptr, 0);
    for (const int file : {request.log, request.report}) {
      if (file >= 0) close(file);
    }
  }
  for (std::string& word : words_) pointers_.push_back(word.data());
  pointers_.push_back(nullptr);
  argc_ = static_cast<int>(words_.size());
  argv_ = pointers_.data();
}

}  // namespace slackline
