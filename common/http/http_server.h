// A few short pages over HTTP for probes and people, beside what a process
// does: one thread, bounds on everything, and no part in the process' end.
//
// cpp-httplib, which fetches data sets, is no server for this: its timeouts are
// for each read, so that one client that sends a byte now and then holds a
// thread for hours; connections that wait for a thread are held without a
// bound; and it would bring itself, TLS and Brotli into every server, worker
// and script.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"
#include "common/time/time_source.h"

namespace slackline {

struct HttpPage {
  int status = 200;
  std::string type;  // "application/json".
  std::string body;
};

class HttpServer {
 public:
  struct Options {
    std::string host;  // Where it listens: a name or an address of this host.
    int port = 0;      // 0: any free one.
    TimeSource time = {};
    // One more, and the oldest is cut off: whoever holds connections open keeps
    // nobody else out.
    int connections_max = 16;
    // Of a connection, from its acceptance to its end.
    absl::Duration connection_max = absl::Seconds(5);
  };
  // By path, "/healthz". Called by the server's thread: each returns at once.
  using Routes = std::map<std::string, std::function<HttpPage()>>;

  // It answers from then on. Errors name the address and what to do: NotFound
  // of a name, AlreadyExists of a port that is taken, Unavailable of the rest.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Options& options, Routes routes);
  // Returns at once: what is under way is cut off.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  // "http://127.0.0.1:9100".
  const std::string& url() const { return url_; }

  // In a child that was forked and goes on as another process: lets go of the
  // port, which the parent keeps.
  void CloseInChild();

 private:
  struct Connection {
    Descriptor socket;
    absl::Time until;
    std::string received = {};
    std::string answer = {};  // Not sent yet.
    bool answered = false;
  };

  HttpServer(const Options& options, Routes routes);
  void Run();
  // False: the system has no descriptor to give.
  bool Accept(std::list<Connection>* connections);
  // False: the connection is over.
  bool Receive(Connection* connection);
  bool Send(Connection* connection);
  std::string AnswerTo(const std::string& path, bool head, int refused);

  const Options options_;
  const Routes routes_;
  Descriptor listener_;
  Descriptor stop_;  // An eventfd.
  int port_ = 0;
  std::string url_;
  std::thread thread_;
};

}  // namespace slackline
