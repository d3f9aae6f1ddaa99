#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/push_pull_bytes.h"
#include "benchmarks/report.h"
#include "common/net/host_id.h"
#include "common/net/poller.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
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

Payload PayloadOf(const std::vector<uint64_t>& words, const Layout& layout) {
  return Payload::Copy(words.data(), static_cast<size_t>(layout.part_bytes));
}

bool SameBytes(const Payload& a, const Payload& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class TransportWorker : public PushPullWorker {
 public:
  static absl::StatusOr<std::unique_ptr<PushPullWorker>> Create(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) {
    auto created = std::make_unique<TransportWorker>(setup, worker);
    for (int server = 0; server < setup.servers; ++server) {
      Link link;
      SL_ASSIGN_OR_RETURN(link.channel, created->transport_.Connect(
                                            {PeerId::Kind::kWorker, worker, 1},
                                            endpoints[server], {}));
      link.parameters =
          PayloadOf(ParametersOf(setup, server), created->layout_);
      created->poller_.Add(*link.channel);
      created->links_.push_back(std::move(link));
    }
    return created;
  }

  TransportWorker(const PushPullSetup& setup, int worker)
      : setup_(setup),
        layout_(setup),
        gradient_(PayloadOf(GradientOf(setup, worker), layout_)),
        pulled_(setup.bytes),
        poller_({.spin_max = setup.spin_max}) {}

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
          SL_ASSIGN_OR_RETURN(const auto message, link.channel->Receive());
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
    std::unique_ptr<Channel> channel;
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
        Take(link.pushes, layout_.shards, [&](int64_t shard) {
          wire::Push& fact = *push.header.mutable_push_request()->add_push();
          fact.set_shard(shard);
          fact.set_clock(verify ? 1 : 0);
          fact.set_gradient(0);
          push.payloads.push_back(layout_.ShardOf(gradient_, shard));
        });
        SL_RETURN_IF_ERROR(link.channel->Send(push));
        sent = true;
      }
      if (Opens(link.pulls, link.pushes.sent)) {
        Message pull;
        wire::Pull& fact = *pull.header.mutable_pull_request()->add_pull();
        Take(link.pulls, link.pushes.sent,
             [&](int64_t shard) { fact.add_shard(shard); });
        SL_RETURN_IF_ERROR(link.channel->Send(pull));
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
    for (const wire::PushAnswer& answer : message.header.push_reply().answer())
      finish(link.pushes, answer.shard());
    const auto& pulled = message.header.pull_reply().answer();
    if (message.header.has_error_reply() ||
        pulled.size() != static_cast<int>(message.payloads.size())) {
      return absl::InternalError(
          absl::StrCat("transport: server ", server,
                       " answers: ", message.header.ShortDebugString()));
    }
    for (int i = 0; i < pulled.size(); ++i) {
      const int64_t shard = pulled[i].shard();
      finish(link.pulls, shard);
      if (!verify) continue;
      if (!SameBytes(message.payloads[i],
                     layout_.ShardOf(link.parameters, shard))) {
        return absl::InternalError(
            absl::StrCat("transport: wrong bytes pulled from server ", server));
      }
      std::memcpy(pulled_.data() + server * layout_.part_bytes +
                      shard * layout_.shard_bytes,
                  message.payloads[i].data(), message.payloads[i].size());
    }
    return absl::OkStatus();
  }

  const PushPullSetup setup_;
  const Layout layout_;
  const Payload gradient_;  // The same for every server.
  std::vector<std::byte> pulled_;
  ZmqTransport over_network_;
  ShmTransport transport_{over_network_};
  Poller poller_;
  std::vector<Link> links_;
};

class TransportPushPull : public PushPullSystem {
 public:
  std::string name() const override { return "transport"; }

  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    const Layout layout(setup);
    const Payload parameters = PayloadOf(ParametersOf(setup, server), layout);
    std::vector<Payload> gradients;
    for (int worker = 0; worker < setup.workers; ++worker) {
      gradients.push_back(PayloadOf(GradientOf(setup, worker), layout));
    }
    ZmqTransport over_network;
    ShmTransport transport(over_network);
    SL_ASSIGN_OR_RETURN(const auto listener, transport.Listen({}));
    SL_ASSIGN_OR_RETURN(const std::string endpoint,
                        listener->Bind(setup.via == PushPullSetup::Via::kTcp
                                           ? "tcp://127.0.0.1:0"
                                       : setup.via == PushPullSetup::Via::kIpc
                                           ? UniqueIpcEndpoint()
                                           : UniqueShmEndpoint()));
    ready(endpoint);
    Poller poller({.spin_max = setup.spin_max});
    poller.Add(*listener);
    for (;;) {
      SL_ASSIGN_OR_RETURN(const auto incoming, listener->Receive());
      if (!incoming.has_value()) {
        SL_RETURN_IF_ERROR(poller.Wait(absl::InfiniteDuration()));
        continue;
      }
      const Message& request = incoming->message;
      const wire::PushRequest& push = request.header.push_request();
      Message reply;
      if (request.header.has_push_request()) {
        bool wrong = false;
        for (int i = 0; i < push.push_size(); ++i) {
          const int64_t shard = push.push(i).shard();
          reply.header.mutable_push_reply()->add_answer()->set_shard(
              push.push(i).shard());
          wrong |= push.push(i).clock() == 1 &&
                   !SameBytes(
                       request.payloads[i],
                       layout.ShardOf(gradients[incoming->from.index], shard));
        }
        if (wrong)
          reply.header.mutable_error_reply()->set_error("wrong bytes pushed");
      } else {
        for (const int32_t shard :
             request.header.pull_request().pull(0).shard()) {
          wire::PullAnswer& answer =
              *reply.header.mutable_pull_reply()->add_answer();
          answer.set_shard(shard);
          answer.mutable_values();
          reply.payloads.push_back(layout.ShardOf(parameters, shard));
        }
      }
      SL_RETURN_IF_ERROR(listener->Send(incoming->from, reply));
    }
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) override {
    return TransportWorker::Create(setup, worker, endpoints);
  }
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeTransportPushPull() {
  return std::make_unique<TransportPushPull>();
}

}  // namespace slackline::bench
