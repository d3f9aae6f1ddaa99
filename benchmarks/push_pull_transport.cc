#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/report.h"
#include "common/net/host_id.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

constexpr int64_t kShardBytes = 256 << 10;  // Slackline's default.

// How the part of one server divides into shards and messages.
struct Layout {
  explicit Layout(const PushPullSetup& setup)
      : part_bytes(setup.bytes / setup.servers),
        shard_bytes(std::min(kShardBytes, setup.message_bytes)),
        shards((part_bytes + shard_bytes - 1) / shard_bytes),
        shards_per_message(setup.message_bytes / shard_bytes) {}

  int64_t BytesOf(int64_t shard) const {
    return std::min(shard_bytes, part_bytes - shard * shard_bytes);
  }
  Payload ShardOf(const Payload& part, int64_t shard) const {
    return part.Slice(shard * shard_bytes, BytesOf(shard));
  }

  int64_t part_bytes;
  int64_t shard_bytes;
  int64_t shards;
  int64_t shards_per_message;
};

Payload RandomBytes(int64_t bytes, uint64_t seed, int owner) {
  Rng rng = Rng(seed).Fork(absl::StrCat("owner ", owner));
  Payload payload = Payload::Allocate(bytes);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(payload.MutableData() + i, &word,
                std::min<int64_t>(8, bytes - i));
  }
  return payload;
}

Payload Gradient(const PushPullSetup& setup, int worker) {
  return RandomBytes(setup.bytes / setup.servers, setup.seed, worker);
}
Payload Parameters(const PushPullSetup& setup, int server) {
  return RandomBytes(setup.bytes / setup.servers, setup.seed, -1 - server);
}

bool SameBytes(const Payload& a, const Payload& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class TransportWorker : public PushPullWorker {
 public:
  static absl::StatusOr<std::unique_ptr<PushPullWorker>> Create(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints, absl::Duration spin_max) {
    auto created = std::make_unique<TransportWorker>(setup, worker, spin_max);
    for (int server = 0; server < setup.servers; ++server) {
      Link link;
      SL_ASSIGN_OR_RETURN(link.socket, DealerSocket::Create(
                                           created->context_,
                                           {PeerId::Kind::kWorker, worker, 1}));
      SL_RETURN_IF_ERROR(link.socket->Connect(endpoints[server]));
      link.parameters = Parameters(setup, server);
      created->poller_.Add(*link.socket);
      created->links_.push_back(std::move(link));
    }
    return created;
  }

  TransportWorker(const PushPullSetup& setup, int worker,
                  absl::Duration spin_max)
      : setup_(setup),
        layout_(setup),
        gradient_(Gradient(setup, worker)),
        pulled_(setup.bytes),
        poller_({.spin_max = spin_max}) {}

  absl::Status Step(bool verify) override {
    size_t open = links_.size();
    for (Link& link : links_) {
      link.pushes = {};
      link.pulls = {};
      SL_RETURN_IF_ERROR(Pump(link, verify));
    }
    for (;;) {
      for (size_t server = 0; server < links_.size(); ++server) {
        Link& link = links_[server];
        for (;;) {
          SL_ASSIGN_OR_RETURN(const auto message, link.socket->Receive());
          if (!message.has_value()) break;
          SL_RETURN_IF_ERROR(Take(server, *message, verify));
          SL_RETURN_IF_ERROR(Pump(link, verify));
          if (link.pushes.done == layout_.shards &&
              link.pulls.done == layout_.shards) {
            --open;
          }
        }
      }
      if (open == 0) return absl::OkStatus();
      SL_RETURN_IF_ERROR(poller_.Wait(absl::InfiniteDuration()));
    }
  }

  std::string Checksum() const override {
    return bench::Checksum(pulled_.data(), pulled_.size());
  }

 private:
  struct Progress {  // In shards and bytes.
    int64_t sent = 0;
    int64_t done = 0;
    int64_t bytes_in_flight = 0;
  };
  struct Link {
    std::unique_ptr<DealerSocket> socket;
    Payload parameters;
    Progress pushes;
    Progress pulls;
  };

  // Sends what the windows allow. A shard is pulled once its push was sent.
  absl::Status Pump(Link& link, bool verify) {
    for (bool sent = true; sent;) {
      sent = false;
      if (Opens(link.pushes, layout_.shards)) {
        Message push;
        push.header.mutable_push_request()->set_clock(verify ? 1 : 0);
        Take(link.pushes, layout_.shards, [&](int64_t shard) {
          push.header.mutable_push_request()->add_shard(shard);
          push.payloads.push_back(layout_.ShardOf(gradient_, shard));
        });
        SL_RETURN_IF_ERROR(link.socket->Send(push));
        sent = true;
      }
      if (Opens(link.pulls, link.pushes.sent)) {
        Message pull;
        Take(link.pulls, link.pushes.sent, [&](int64_t shard) {
          pull.header.mutable_pull_request()->add_shard(shard);
        });
        SL_RETURN_IF_ERROR(link.socket->Send(pull));
        sent = true;
      }
    }
    return absl::OkStatus();
  }

  bool Opens(const Progress& progress, int64_t end) const {
    const int64_t message_bytes =
        std::min(setup_.message_bytes,
                 layout_.part_bytes - progress.sent * layout_.shard_bytes);
    return progress.sent < end &&
           progress.bytes_in_flight + message_bytes <= setup_.window_bytes;
  }

  template <typename Visit>
  void Take(Progress& progress, int64_t end, Visit visit) {
    const int64_t last =
        std::min(end, progress.sent + layout_.shards_per_message);
    for (; progress.sent < last; ++progress.sent) {
      visit(progress.sent);
      progress.bytes_in_flight += layout_.BytesOf(progress.sent);
    }
  }

  absl::Status Take(size_t server, const Message& message, bool verify) {
    Link& link = links_[server];
    const auto finish = [&](Progress& progress, int32_t shard) {
      ++progress.done;
      progress.bytes_in_flight -= layout_.BytesOf(shard);
    };
    for (const int32_t shard : message.header.push_reply().shard()) {
      finish(link.pushes, shard);
    }
    const auto& pulled = message.header.pull_reply().shard();
    if (message.header.has_error_reply() ||
        pulled.size() != message.payloads.size()) {
      return absl::InternalError(
          absl::StrCat("transport: server ", server,
                       " answers: ", message.header.ShortDebugString()));
    }
    for (int i = 0; i < pulled.size(); ++i) {
      finish(link.pulls, pulled[i]);
      if (!verify) continue;
      if (!SameBytes(message.payloads[i],
                     layout_.ShardOf(link.parameters, pulled[i]))) {
        return absl::InternalError(
            absl::StrCat("transport: wrong bytes pulled from server ", server));
      }
      std::memcpy(pulled_.data() + server * layout_.part_bytes +
                      pulled[i] * layout_.shard_bytes,
                  message.payloads[i].data(), message.payloads[i].size());
    }
    return absl::OkStatus();
  }

  const PushPullSetup setup_;
  const Layout layout_;
  const Payload gradient_;  // The same for every server.
  std::vector<std::byte> pulled_;
  NetContext context_;
  Poller poller_;
  std::vector<Link> links_;
};

class TransportPushPull : public PushPullSystem {
 public:
  explicit TransportPushPull(absl::Duration spin_max) : spin_max_(spin_max) {}

  std::string name() const override { return "transport"; }

  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    const Layout layout(setup);
    const Payload parameters = Parameters(setup, server);
    std::vector<Payload> gradients;
    for (int worker = 0; worker < setup.workers; ++worker) {
      gradients.push_back(Gradient(setup, worker));
    }
    NetContext context;
    SL_ASSIGN_OR_RETURN(const auto socket, RouterSocket::Create(context));
    SL_ASSIGN_OR_RETURN(
        const std::string endpoint,
        socket->Bind(setup.ipc ? UniqueIpcEndpoint() : "tcp://127.0.0.1:0"));
    ready(endpoint);
    Poller poller({.spin_max = spin_max_});
    poller.Add(*socket);
    for (;;) {
      SL_ASSIGN_OR_RETURN(const auto incoming, socket->Receive());
      if (!incoming.has_value()) {
        SL_RETURN_IF_ERROR(poller.Wait(absl::InfiniteDuration()));
        continue;
      }
      const Message& request = incoming->message;
      const wire::PushRequest& push = request.header.push_request();
      Message reply;
      if (request.header.has_push_request()) {
        *reply.header.mutable_push_reply()->mutable_shard() = push.shard();
        for (int i = 0; push.clock() == 1 && i < push.shard_size(); ++i) {
          if (!SameBytes(request.payloads[i],
                         layout.ShardOf(gradients[incoming->from.index],
                                        push.shard(i)))) {
            reply.header.mutable_error_reply()->set_error("wrong bytes pushed");
          }
        }
      } else {
        for (const int32_t shard : request.header.pull_request().shard()) {
          reply.header.mutable_pull_reply()->add_shard(shard);
          reply.payloads.push_back(layout.ShardOf(parameters, shard));
        }
      }
      SL_RETURN_IF_ERROR(socket->Send(incoming->from, reply));
    }
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) override {
    return TransportWorker::Create(setup, worker, endpoints, spin_max_);
  }

 private:
  const absl::Duration spin_max_;
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeTransportPushPull(absl::Duration spin_max) {
  return std::make_unique<TransportPushPull>(spin_max);
}

}  // namespace slackline::bench
