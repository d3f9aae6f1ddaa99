// The network between the processes of a simulated cluster: keeps the order
// within a link but for injected faults, and loses, repeats, delays and cuts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/message.h"
#include "common/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/scenario.h"

namespace slackline::sim {

struct NetworkStats {
  int64_t delivered = 0;
  int64_t lost = 0;
  int64_t repeated = 0;
  int64_t reordered = 0;
  int64_t slow = 0;
  int64_t cut = 0;          // Lost at a partition.
  int64_t held = 0;         // Delayed by a partition.
  int64_t to_nobody = 0;    // The receiver was gone.
  int64_t of_the_dead = 0;  // Delivered though the sender was gone.
  int64_t dropped_of_the_dead = 0;
};

// Headers cross it as bytes, so that sender and receiver share nothing. Payload
// frames are held by reference until they arrive, as ZeroMQ does it, and copied
// only then: a sender that writes to memory it has sent is found out.
class SimNetwork {
 public:
  using Receive =
      std::function<void(const PeerId& from, const Message& message)>;
  // For planted faults: may change the message that is about to leave. False:
  // it is lost. May send more through Send(); those are not shown to it.
  using Tamper = std::function<bool(const PeerId& from, const PeerId& to,
                                    Message* message)>;

  SimNetwork(EventQueue* queue, const NetworkFaults& faults, Rng rng)
      : queue_(queue), faults_(faults), rng_(rng) {}

  // `self` receives from now on, and is on `node`.
  void Attach(const PeerId& self, Node node, Receive receive);
  // Its process has ended: nothing reaches it any more. With `drop_sent` what
  // it sent and has not arrived is lost as well.
  void Detach(const PeerId& self, bool drop_sent);

  void Send(const PeerId& from, const PeerId& to, Message message);

  // Nothing passes from one node to the other until `until`.
  void Cut(Node from, Node to, absl::Time until, bool held);
  // The end of the latest cut; in the past if there is none.
  absl::Time CutUntil(Node from, Node to) const;
  // From here on nothing is lost, repeated, overtaken or cut.
  void Heal();

  Tamper tamper;
  // Sees every message as it leaves and as it arrives. False: it is lost.
  std::function<bool(const PeerId& from, const PeerId& to,
                     const Message& message, bool arrives)>
      watch;
  // Hears of every message that is handed to its receiver.
  std::function<void(const PeerId& from, const PeerId& to,
                     const Message& message)>
      on_deliver;
  // One line for each message sent or lost; unset when nobody reads it.
  std::function<void(const std::string& line)> log;

  const NetworkStats& stats() const { return stats_; }

 private:
  struct Endpoint {
    Node node = 0;
    Receive receive;
  };
  struct CutLink {
    absl::Time until;
    bool held = false;
  };
  struct Frames {
    std::string header;
    std::vector<Payload> payloads;
  };

  void SendUntampered(const PeerId& from, const PeerId& to,
                      const Message& message);
  void Deliver(const PeerId& from, const PeerId& to, const Frames& frames);
  absl::Duration Delay();

  EventQueue* const queue_;
  NetworkFaults faults_;
  Rng rng_;
  std::map<PeerId, Endpoint> endpoints_;
  std::map<PeerId, Node> nodes_;  // Of endpoints that are gone, too.
  std::set<PeerId> silenced_;     // Gone, and what they sent is lost.
  std::map<std::pair<PeerId, PeerId>, absl::Time> last_arrival_;
  std::map<std::pair<Node, Node>, CutLink> cuts_;
  bool tampering_ = false;
  NetworkStats stats_;
};

// One line for people, for example "push clock 3 shards 0:5 1:5 seq".
std::string Describe(const Message& message);

}  // namespace slackline::sim
