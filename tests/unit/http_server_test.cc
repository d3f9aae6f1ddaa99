// Goal: the pages answer probes, and nobody who sends garbage, sends slowly,
// sends much or holds connections open takes more from the process than its
// bounds. Method: raw sockets; the request's head also as a table of cases.
#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/http/http_request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::http_server_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HttpRequestTest, ReadsAHeadAndRefusesTheRest) {
  const std::string end = "\r\n\r\n";
  const struct {
    const char* name;
    std::string bytes;
    int refused;  // -1: more bytes are needed.
    const char* path;
  } cases[] = {
      {"a probe", "GET /healthz HTTP/1.1\r\nHost: x\r\nUser-Agent: k" + end, 0,
       "/healthz"},
      {"of 1.0", "GET / HTTP/1.0" + end, 0, "/"},
      {"a query", "GET /readyz?verbose=1 HTTP/1.1" + end, 0, "/readyz"},
      {"HEAD", "HEAD /readyz HTTP/1.1" + end, 0, "/readyz"},
      {"nothing yet", "", -1, ""},
      {"half a head", "GET /healthz HTTP/1.1\r\nHost", -1, ""},
      {"POST", "POST /healthz HTTP/1.1\r\nContent-Length: 0" + end, 405,
       "/healthz"},
      {"a body", "GET / HTTP/1.1\r\ncontent-length: 5" + end + "hello", 413,
       ""},
      {"a body of chunks", "GET / HTTP/1.1\r\nTransfer-Encoding: chunked" + end,
       413, ""},
      {"no HTTP", "hello" + end, 400, ""},
      {"TLS", std::string("\x16\x03\x01\x00\x00", 5) + end, 400, ""},
      {"another version", "GET / HTTP/2.0" + end, 400, ""},
      {"no path", "GET http://x/ HTTP/1.1" + end, 400, ""},
      {"a byte that is none", std::string("GET /\0 HTTP/1.1", 15) + end, 400,
       ""},
      {"too much", std::string(kRequestBytesMax + 1, 'a'), 431, ""},
      {"too much at once",
       "GET / HTTP/1.1\r\nA: " + std::string(kRequestBytesMax, 'a') + end, 431,
       ""},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const auto request = ReadRequest(each.bytes);
    ASSERT_EQ(request.has_value(), each.refused >= 0);
    if (!request.has_value()) continue;
    EXPECT_EQ(request->refused, each.refused);
    EXPECT_EQ(request->path, each.path);
  }
}

class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&at),
                         sizeof(at)) == 0;
  }
  bool connected() const { return connected_; }
  bool Send(const std::string& bytes) const {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Until the server ends the connection.
  std::string ReadAll() const {
    std::string all;
    char part[4096];
    for (ssize_t got = 0;
         (got = recv(socket_.get(), part, sizeof(part), 0)) > 0;)
      all.append(part, static_cast<size_t>(got));
    return all;
  }

 private:
  const Descriptor socket_;
  bool connected_ = false;
};

int OpenDescriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

std::unique_ptr<HttpServer> Serve(
    absl::Duration connection_max = absl::Hours(1), std::string body = "hi\n") {
  auto server = HttpServer::Start(
      {.host = "127.0.0.1",
       .connections_max = 8,
       .connection_max = connection_max},
      {{"/page",
        [body] {
          return HttpPage{.status = 200, .type = "text/plain", .body = body};
        }},
       {"/ill", [] {
          return HttpPage{.status = 503, .type = "text/plain", .body = "why\n"};
        }}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string Get(int port, const std::string& path) {
  const Client client(port);
  EXPECT_TRUE(client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\n\r\n")));
  return client.ReadAll();
}

TEST(HttpServerTest, AnswersAndEndsTheConnection) {
  const auto server = Serve();
  EXPECT_THAT(
      Get(server->port(), "/page"),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
            HasSubstr("Content-Length: 3\r\n"),
            HasSubstr("Connection: close\r\n"), EndsWith("\r\n\r\nhi\n")));
  EXPECT_THAT(Get(server->port(), "/ill"),
              AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("\r\n\r\nwhy\n")));
  EXPECT_THAT(
      Get(server->port(), "/metrics"),
      AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("there are: /ill /page\n")));
  const Client head(server->port());
  ASSERT_TRUE(head.Send("HEAD /page HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(head.ReadAll(),
              AllOf(HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
  const Client post(server->port());
  ASSERT_TRUE(post.Send("POST /page HTTP/1.1\r\nContent-Length: 9\r\n\r\n"));
  EXPECT_THAT(post.ReadAll(), StartsWith("HTTP/1.1 413 "));
}

TEST(HttpServerTest, ALongPageArrivesWhole) {
  const std::string body(8 << 20, 'x');
  const auto server = Serve(absl::Hours(1), body);
  EXPECT_THAT(Get(server->port(), "/page"), EndsWith(body));
}

TEST(HttpServerTest, WhoSendsABytePerRequestIsCutOffAtTheEndOfItsTime) {
  const auto server = Serve(absl::Milliseconds(50));
  const Client slow(server->port());
  ASSERT_TRUE(slow.Send("G"));
  EXPECT_EQ(slow.ReadAll(), "");
}

TEST(HttpServerTest, OpenConnectionsTakeNoMoreThanTheirBoundAndKeepNobodyOut) {
  const auto server = Serve();
  const int before = OpenDescriptors();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(idle.back()->connected());
    ASSERT_TRUE(idle.back()->Send("GET "));
  }
  // This one is accepted last: all before it have been.
  EXPECT_THAT(Get(server->port(), "/page"), StartsWith("HTTP/1.1 200 "));
  EXPECT_LE(OpenDescriptors(), before + 100 + 8);
  EXPECT_EQ(idle.front()->ReadAll(), "") << "the oldest is cut off";
}

TEST(HttpServerTest, ItsEndWaitsForNobody) {
  auto server = Serve();
  const Client idle(server->port());
  ASSERT_TRUE(idle.Send("GET /pa"));
  server.reset();
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST(HttpServerTest, ATakenPortAndAnUnknownNameAreNamed) {
  const auto server = Serve();
  const auto second =
      HttpServer::Start({.host = "127.0.0.1", .port = server->port()}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(),
              HasSubstr(absl::StrCat("127.0.0.1:", server->port())));
  EXPECT_FALSE(HttpServer::Start({.host = "no-such-host.invalid"}, {}).ok());
}

TEST(HttpServerTest, AChildLetsGoOfThePort) {
  auto server = Serve();
  const int port = server->port();
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    server->CloseInChild();
    char byte = 'c';
    (void)!write(told[1], &byte, 1);
    close(go[1]);
    (void)!read(go[0], &byte, 1);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  server.reset();
  EXPECT_TRUE(HttpServer::Start({.host = "127.0.0.1", .port = port}, {}).ok());
  close(go[1]);
  waitpid(child, nullptr, 0);
}

}  // namespace slackline::http_server_test
