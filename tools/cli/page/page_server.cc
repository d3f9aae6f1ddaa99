#include "tools/cli/page/page_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/keys/secret.h"

namespace slackline {
namespace {

constexpr size_t kOrderBytesMax = 64 << 10;
constexpr int kThreads = 8;
constexpr char kJsonType[] = "application/json";

// The page is one file, and asks nobody but the server that it came from.
const httplib::Headers& HeadersOfAll() {
  static const auto& headers = *new httplib::Headers{
      {"Cache-Control", "no-store"},
      {"Content-Security-Policy",
       "default-src 'none'; style-src 'unsafe-inline'; script-src "
       "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors "
       "'none'"},
      {"Referrer-Policy", "no-referrer"},
      {"X-Content-Type-Options", "nosniff"}};
  return headers;
}

class HttplibPageServer : public PageServer {
 public:
  HttplibPageServer(const Options& options, Handlers handlers)
      : host_(options.host),
        handlers_(std::move(handlers)),
        word_(Secret::Random().ToHex().substr(0, 32)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_payload_max_length(kOrderBytesMax);
    server_.set_read_timeout(5);
    server_.set_write_timeout(5);
    server_.set_keep_alive_timeout(5);
    server_.set_default_headers(HeadersOfAll());
    // Not to share the port with another program of the user, as httplib would.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    const std::string root = absl::StrCat("/", word_, "/");
    // Before anything is read of a body: its bound holds if its length is said.
    server_.set_pre_routing_handler(
        [root](const httplib::Request& request, httplib::Response& response) {
          if (!absl::StartsWith(request.path, root)) {
            response.status = 404;
          } else if (request.method != "GET" && request.method != "HEAD" &&
                     !request.has_header("Content-Length")) {
            response.status = 411;
          } else {
            return httplib::Server::HandlerResponse::Unhandled;
          }
          response.set_header("Connection", "close");
          return httplib::Server::HandlerResponse::Handled;
        });
    server_.Get(root, [](const httplib::Request&, httplib::Response& response) {
      response.set_content(kPageHtml, "text/html; charset=utf-8");
    });
    server_.Get(root + "now",
                [this](const httplib::Request&, httplib::Response& response) {
                  response.set_content(handlers_.now(), kJsonType);
                });
    server_.Get(root + "history",
                [this](const httplib::Request&, httplib::Response& response) {
                  response.set_content(handlers_.history(), kJsonType);
                });
    server_.Post(root + "order", [this](const httplib::Request& request,
                                        httplib::Response& response) {
      Answer(request, &response);
    });
    server_.set_error_handler(
        [](const httplib::Request&, httplib::Response& response) {
          if (response.status != 404) return;
          response.set_content(
              "There is nothing at this address. That of the page has a long "
              "word in it, as `slackline open` has printed it.\n",
              "text/plain; charset=utf-8");
        });
  }
  ~HttplibPageServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(int port) {
    if (port == 0) {
      port_ = server_.bind_to_any_port(host_);
    } else if (server_.bind_to_port(host_, port)) {
      port_ = port;
    }
    if (port_ <= 0) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen at ", host_, ":", port,
          ": the port is taken, or the host is none of this machine "
          "(--port 0 takes any free one)"));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() would not end a server that has yet to start.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  std::string url() const override {
    const bool is_v6 = absl::StrContains(host_, ':');
    return absl::StrCat("http://", is_v6 ? "[" : "", host_, is_v6 ? "]" : "",
                        ":", port_, "/", word_, "/");
  }

 private:
  void Answer(const httplib::Request& request, httplib::Response* response) {
    const auto say = [response](int status, const char* field,
                                absl::string_view text) {
      response->status = status;
      response->set_content(
          nlohmann::json{{field, std::string(text)}}.dump(
              -1, ' ', false, nlohmann::json::error_handler_t::replace),
          kJsonType);
    };
    // No form of another page can send this type.
    if (request.get_header_value("Content-Type") != kJsonType)
      return say(415, "error", "an order is sent as application/json");
    const absl::StatusOr<std::string> said = handlers_.order(request.body);
    if (said.ok()) return say(200, "text", *said);
    say(absl::IsInvalidArgument(said.status()) ? 400 : 409, "error",
        said.status().message());
  }

  const std::string host_;
  const Handlers handlers_;
  const std::string word_;
  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(
    const Options& options, Handlers handlers) {
  auto server =
      std::make_unique<HttplibPageServer>(options, std::move(handlers));
  if (const absl::Status listens = server->Listen(options.port); !listens.ok())
    return listens;
  return server;
}

}  // namespace slackline
