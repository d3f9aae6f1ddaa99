#include "common/http/http_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/http/http_request.h"
#include "common/net/resolve.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

// After an error of accept() that stays, such as too many open files.
constexpr absl::Duration kRest = absl::Milliseconds(100);

struct Listening {
  Descriptor socket;
  int port = 0;
};

absl::StatusOr<Listening> ListenAt(const std::string& host, int port) {
  SL_ASSIGN_OR_RETURN(const std::string address, ResolveHost(host));
  SL_ASSIGN_OR_RETURN(const SocketAddress at, SocketAddress::Of(address, port));
  Listening listening = {
      .socket = Descriptor(
          socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int fd = listening.socket.get();
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd < 0 || bind(fd, at.any(), at.size) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    const std::string what =
        absl::StrCat(HostPort(address, port), ": ", std::strerror(error));
    if (error == EADDRINUSE) return absl::AlreadyExistsError(what);
    return absl::UnavailableError(what);
  }
  SL_ASSIGN_OR_RETURN(const SocketAddress bound, SocketAddress::OfSocket(fd));
  listening.port = bound.port();
  return listening;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Options& options, Routes routes) {
  std::unique_ptr<HttpServer> server(
      new HttpServer(options, std::move(routes)));
  SL_ASSIGN_OR_RETURN(Listening listening,
                      ListenAt(options.host, options.port));
  server->listener_ = std::move(listening.socket);
  server->port_ = listening.port;
  server->url_ =
      absl::StrCat("http://", HostPort(options.host, listening.port));
  server->stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->stop_.valid())
    return absl::UnavailableError(std::strerror(errno));
  server->thread_ = std::thread(&HttpServer::Run, server.get());
  return server;
}

HttpServer::HttpServer(const Options& options, Routes routes)
    : options_(options), routes_(std::move(routes)) {}

HttpServer::~HttpServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void HttpServer::CloseInChild() {
  listener_ = Descriptor();
  stop_ = Descriptor();
  thread_.detach();  // It is not in this process.
}

void HttpServer::Run() {
  NameThisThread("health");
  // Signals are for the threads that wait for them.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::list<Connection> connections;
  absl::Time rest_until = absl::InfinitePast();
  while (true) {
    const absl::Time now = options_.time.Now();
    connections.remove_if(
        [&](const Connection& each) { return now >= each.until; });
    const bool accepts = now >= rest_until;
    std::vector<pollfd> waits = {{stop_.get(), POLLIN, 0},
                                 {accepts ? listener_.get() : -1, POLLIN, 0}};
    absl::Time wake = now < rest_until ? rest_until : absl::InfiniteFuture();
    for (const Connection& each : connections) {
      const short events = each.answered ? POLLOUT : POLLIN;
      waits.push_back({each.socket.get(), events, 0});
      wake = std::min(wake, each.until);
    }
    int wait_ms = -1;
    if (wake != absl::InfiniteFuture()) {
      wait_ms = static_cast<int>(absl::ToInt64Milliseconds(
          std::max(wake - now, absl::ZeroDuration()) + absl::Milliseconds(1)));
    }
    if (poll(waits.data(), waits.size(), wait_ms) < 0 && errno != EINTR) {
      rest_until = options_.time.Now() + kRest;
      continue;
    }
    if (waits[0].revents != 0) return;
    size_t i = 2;
    for (auto each = connections.begin(); each != connections.end(); ++i) {
      const bool lives = waits[i].revents == 0 ||
                         (each->answered ? Send(&*each) : Receive(&*each));
      each = lives ? std::next(each) : connections.erase(each);
    }
    if (waits[1].revents == 0) continue;
    if (!Accept(&connections)) rest_until = options_.time.Now() + kRest;
  }
}

bool HttpServer::Accept(std::list<Connection>* connections) {
  Descriptor socket(
      accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return WouldBlock(errno) || errno == ECONNABORTED;
  if (static_cast<int>(connections->size()) >= options_.connections_max)
    connections->pop_front();
  connections->push_back(
      {.socket = std::move(socket),
       .until = options_.time.Now() + options_.connection_max});
  return true;
}

bool HttpServer::Receive(Connection* connection) {
  std::array<char, 4096> part{};
  const ssize_t got =
      recv(connection->socket.get(), part.data(), part.size(), 0);
  if (got < 0) return WouldBlock(errno);
  if (got == 0) return false;
  connection->received.append(part.data(), static_cast<size_t>(got));
  const std::optional<HttpRequest> request = ReadRequest(connection->received);
  if (!request.has_value()) return true;
  connection->answer = AnswerTo(request->path, request->head, request->refused);
  connection->answered = true;
  return Send(connection);
}

bool HttpServer::Send(Connection* connection) {
  const int fd = connection->socket.get();
  if (!connection->answer.empty()) {
    const ssize_t sent = send(fd, connection->answer.data(),
                              connection->answer.size(), MSG_NOSIGNAL);
    if (sent < 0) return WouldBlock(errno);
    connection->answer.erase(0, static_cast<size_t>(sent));
    if (!connection->answer.empty()) return true;
  }
  // What has come and was not read would make the system cut the answer off.
  shutdown(fd, SHUT_WR);
  std::array<char, 4096> rest{};
  for (size_t read = 0; read < kRequestBytesMax;) {
    const ssize_t got = recv(fd, rest.data(), rest.size(), 0);
    if (got <= 0) break;
    read += static_cast<size_t>(got);
  }
  return false;
}

std::string HttpServer::AnswerTo(const std::string& path, bool head,
                                 int refused) {
  HttpPage page = {.status = refused, .type = "text/plain", .body = ""};
  if (refused == 0) {
    const auto route = routes_.find(path);
    if (route != routes_.end()) {
      page = route->second();
    } else {
      page.status = 404;
      page.body = "there are:";
      for (const auto& [known, make] : routes_)
        absl::StrAppend(&page.body, " ", known);
      page.body += "\n";
    }
  } else {
    page.body = absl::StrCat(StatusLine(refused), "\n");
  }
  return absl::StrCat(
      "HTTP/1.1 ", StatusLine(page.status), "\r\nContent-Type: ", page.type,
      "\r\nContent-Length: ", page.body.size(),
      refused == 405 ? "\r\nAllow: GET, HEAD" : "",
      "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
      head ? "" : page.body);
}

}  // namespace slackline
