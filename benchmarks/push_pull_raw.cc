#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/push_pull_bytes.h"
#include "benchmarks/report.h"
#include "common/keys/credentials.h"
#include "common/net/host_id.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

enum class Operation : uint32_t { kPush, kAck, kPull, kReply, kWrongBytes };

struct Header {
  Operation operation;
  int32_t worker;
  uint32_t verify;
  uint32_t bytes;
  int64_t offset;  // In the server's part, in bytes.
};

// Refers to `words`, which outlive the message.
zmq::message_t Part(std::vector<uint64_t>& words, const Header& header) {
  return zmq::message_t(
      reinterpret_cast<std::byte*>(words.data()) + header.offset, header.bytes,
      [](void*, void*) {});
}

bool PartEquals(const std::vector<uint64_t>& words, const Header& header,
                const zmq::message_t& frame) {
  return frame.size() == header.bytes &&
         std::memcmp(
             reinterpret_cast<const std::byte*>(words.data()) + header.offset,
             frame.data(), header.bytes) == 0;
}

Header HeaderOf(const zmq::message_t& frame) {
  SL_CHECK(frame.size() == sizeof(Header), "not a header of this benchmark");
  Header header;
  std::memcpy(&header, frame.data(), sizeof(header));
  return header;
}

// These keys are the benchmark's alone.
Credentials RawCredentials(Role role) {
  return CredentialsOf(Secret(Secret::Bytes{1}), role);
}

zmq::const_buffer KeyBytes(const Secret::Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

class RawWorker : public PushPullWorker {
 public:
  RawWorker(const PushPullSetup& setup, int worker,
            const std::vector<std::string>& endpoints)
      : setup_(setup), worker_(worker), gradient_(GradientOf(setup, worker)) {
    for (int server = 0; server < setup.servers; ++server) {
      Link link;
      link.socket = zmq::socket_t(context_, ZMQ_DEALER);
      link.parameters = ParametersOf(setup, server);
      link.socket.set(zmq::sockopt::linger, 0);
      if (setup.keys) {
        const Credentials own = RawCredentials(Role::kWorker);
        link.socket.set(zmq::sockopt::curve_serverkey, KeyBytes(own.server));
        link.socket.set(zmq::sockopt::curve_publickey,
                        KeyBytes(PublicKeyOf(own.own)));
        link.socket.set(zmq::sockopt::curve_secretkey,
                        KeyBytes(own.own.bytes()));
      }
      link.socket.connect(endpoints[server]);
      polls_.push_back({link.socket.handle(), 0, ZMQ_POLLIN, 0});
      links_.push_back(std::move(link));
    }
    pulled_.resize(gradient_.size() * links_.size());
  }

  absl::Status Step(bool verify) override {
    const int64_t part = setup_.bytes / setup_.servers;
    for (Link& link : links_) {
      link.pushes = {};
      link.pulls = {};
      Pump(link, verify);
    }
    const auto complete = [&](const Link& link) {
      return link.pushes.done == part && link.pulls.done == part;
    };
    for (size_t open = links_.size(); open > 0;) {
      if (links_.size() > 1) zmq::poll(polls_);
      for (size_t server = 0; server < links_.size(); ++server) {
        Link& link = links_[server];
        if (complete(link)) continue;
        const auto flags = links_.size() > 1 ? zmq::recv_flags::dontwait
                                             : zmq::recv_flags::none;
        zmq::message_t frame;
        while (!complete(link) && link.socket.recv(frame, flags)) {
          SL_RETURN_IF_ERROR(Take(server, HeaderOf(frame)));
          Pump(link, verify);
        }
        if (complete(link)) --open;
      }
    }
    return absl::OkStatus();
  }

  std::string Checksum() const override {
    return bench::Checksum(pulled_.data(), setup_.bytes);
  }

 private:
  struct Progress {
    int64_t sent = 0;
    int64_t done = 0;
  };
  struct Link {
    zmq::socket_t socket;
    std::vector<uint64_t> parameters;
    Progress pushes;
    Progress pulls;
  };

  // Sends what the windows allow. A part is pulled once its push was sent.
  void Pump(Link& link, bool verify) {
    const int64_t part = setup_.bytes / setup_.servers;
    const auto next = [&](const Progress& progress, int64_t end) {
      const int64_t bytes = std::min(setup_.message_bytes, end - progress.sent);
      const bool open =
          progress.sent + bytes - progress.done <= setup_.window_bytes;
      return open ? bytes : 0;
    };
    for (bool sent = true; sent;) {
      sent = false;
      if (const int64_t bytes = next(link.pushes, part); bytes > 0) {
        Send(link, Operation::kPush, bytes, link.pushes, verify);
        sent = true;
      }
      if (const int64_t bytes = next(link.pulls, link.pushes.sent); bytes > 0) {
        Send(link, Operation::kPull, bytes, link.pulls, verify);
        sent = true;
      }
    }
  }

  void Send(Link& link, Operation operation, int64_t bytes, Progress& progress,
            bool verify) {
    const Header header = {.operation = operation,
                           .worker = worker_,
                           .verify = verify,
                           .bytes = static_cast<uint32_t>(bytes),
                           .offset = progress.sent};
    progress.sent += bytes;
    if (operation == Operation::kPull) {
      link.socket.send(zmq::buffer(&header, sizeof(header)));
      return;
    }
    link.socket.send(zmq::buffer(&header, sizeof(header)),
                     zmq::send_flags::sndmore);
    link.socket.send(Part(gradient_, header), zmq::send_flags::none);
  }

  absl::Status Take(size_t server, const Header& header) {
    Link& link = links_[server];
    if (header.operation == Operation::kAck) {
      link.pushes.done += header.bytes;
      return absl::OkStatus();
    }
    if (header.operation != Operation::kReply) {
      return absl::InternalError(absl::StrCat("raw: server ", server,
                                              " did not receive what worker ",
                                              worker_, " pushed"));
    }
    zmq::message_t frame;
    static_cast<void>(link.socket.recv(frame));
    link.pulls.done += header.bytes;
    if (!header.verify) return absl::OkStatus();
    if (!PartEquals(link.parameters, header, frame)) {
      return absl::InternalError(absl::StrCat(
          "raw: worker ", worker_, " pulled wrong bytes from server ", server));
    }
    std::memcpy(reinterpret_cast<std::byte*>(pulled_.data()) +
                    server * (setup_.bytes / setup_.servers) + header.offset,
                frame.data(), frame.size());
    return absl::OkStatus();
  }

  const PushPullSetup setup_;
  const int worker_;
  std::vector<uint64_t> gradient_;  // The same for every server.
  std::vector<uint64_t> pulled_;
  zmq::context_t context_;
  std::vector<Link> links_;
  std::vector<zmq::pollitem_t> polls_;
};

class RawPushPull : public PushPullSystem {
 public:
  std::string name() const override { return "raw"; }

  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    std::vector<uint64_t> parameters = ParametersOf(setup, server);
    std::vector<std::vector<uint64_t>> gradients;
    for (int worker = 0; worker < setup.workers; ++worker) {
      gradients.push_back(GradientOf(setup, worker));
    }
    zmq::context_t context;
    zmq::socket_t socket(context, ZMQ_ROUTER);
    if (setup.keys) {
      const Credentials own = RawCredentials(Role::kServer);
      socket.set(zmq::sockopt::curve_server, true);
      socket.set(zmq::sockopt::curve_secretkey, KeyBytes(own.own.bytes()));
    }
    socket.bind(setup.via == PushPullSetup::Via::kTcp ? "tcp://127.0.0.1:0"
                                                      : UniqueIpcEndpoint());
    ready(socket.get(zmq::sockopt::last_endpoint));
    for (;;) {
      zmq::message_t peer;
      zmq::message_t frame;
      static_cast<void>(socket.recv(peer));
      static_cast<void>(socket.recv(frame));
      Header header = HeaderOf(frame);
      const bool push = header.operation == Operation::kPush;
      header.operation = push ? Operation::kAck : Operation::kReply;
      if (push) {
        static_cast<void>(socket.recv(frame));
        if (header.verify &&
            !PartEquals(gradients[header.worker], header, frame)) {
          header.operation = Operation::kWrongBytes;
        }
      }
      socket.send(peer, zmq::send_flags::sndmore);
      socket.send(zmq::buffer(&header, sizeof(header)),
                  push ? zmq::send_flags::none : zmq::send_flags::sndmore);
      if (!push) socket.send(Part(parameters, header), zmq::send_flags::none);
    }
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) override {
    return std::make_unique<RawWorker>(setup, worker, endpoints);
  }
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeRawPushPull() {
  return std::make_unique<RawPushPull>();
}

}  // namespace slackline::bench
