#include "common/process/cannot_join.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/process/join_request.h"
#include "common/shortened.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// How long a process that ends waits for the coordinator: to be connected with
// it, and for its answer.
constexpr absl::Duration kConnectWaitMax = absl::Seconds(1);
constexpr absl::Duration kAnswerWaitMax = absl::Seconds(2);
// As the coordinator keeps it.
constexpr size_t kReasonBytesMax = 1024;

// The call goes to each place where the coordinator may be, once somebody
// listens there.
class LastWord {
 public:
  LastWord(Transport& network, const PeerId& self, wire::Call call)
      : network_(network),
        self_(self),
        poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {
    call.set_call_id(1);
    *message_.header.mutable_call() = std::move(call);
  }

  void Say(const std::vector<std::string>& endpoints) {
    for (const std::string& endpoint : endpoints) {
      absl::StatusOr<std::unique_ptr<Channel>> channel = network_.Connect(
          self_, endpoint,
          {.linger = absl::ZeroDuration(), .watch_link = true});
      if (!channel.ok()) continue;
      poller_.Add(**channel);
      channels_.push_back(*std::move(channel));
    }
    const TimeSource time;
    const absl::Time begin = time.Now();
    while (!answered_) {
      const absl::Time give_up_at =
          begin + (sent_ ? kAnswerWaitMax : kConnectWaitMax);
      const absl::Time now = time.Now();
      if (now >= give_up_at || !poller_.Wait(give_up_at - now).ok()) break;
      for (const auto& channel : channels_) Look(*channel);
    }
    for (const auto& channel : channels_) poller_.Remove(*channel);
  }

 private:
  void Look(Channel& channel) {
    const auto link = channel.ReceiveLinkState();
    if (link.ok() && *link == LinkState::kUp)
      sent_ |= channel.Send(message_).ok();
    while (true) {
      const auto received = channel.Receive();
      if (!received.ok() || !received->has_value()) return;
      answered_ |= (*received)->header.has_call_reply();
    }
  }

  Transport& network_;
  const PeerId self_;
  Message message_;
  std::vector<std::unique_ptr<Channel>> channels_;
  Poller poller_;
  bool sent_ = false;
  bool answered_ = false;
};

}  // namespace

void TellCannotJoin(Transport& network, wire::JoinRequest::Role role, int index,
                    const std::string& host,
                    const config::ClusterConfig& config,
                    const absl::Status& why) {
  wire::Call call;
  wire::CannotJoin& cannot = *call.mutable_cannot_join();
  cannot.set_job(config.job());
  cannot.set_role(role);
  cannot.set_index(index);
  cannot.set_host(host);
  cannot.set_pid(getpid());
  cannot.set_reason(Shortened(why.message(), kReasonBytesMax));
  const PeerId self{.kind = PeerId::Kind::kObserver,
                    .index = index,
                    .instance = RandomToken()};
  LastWord(network, self, std::move(call)).Say(CoordinatorEndpoints(config));
}

}  // namespace slackline
