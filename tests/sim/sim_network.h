// The network between the processes of a simulated cluster: keeps the order
// within a link but for injected faults, and loses, repeats, delays and cuts.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/link_state.h"
#include "common/message.h"
#include "common/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/sim_machine.h"

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
  int64_t refused = 0;      // The sender's queue was full.
  int64_t queued = 0;       // Waited for those before it to leave.
  int64_t told_up = 0;      // Watchers heard that a process listens,
  int64_t told_gone = 0;    // and that it has ended.
  int64_t while_still = 0;  // Came while the receiver stood still.
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

  SimNetwork(EventQueue* queue, SimMachines* machines, const Scenario& scenario,
             Rng rng)
      : queue_(queue),
        machines_(machines),
        faults_(scenario.network),
        bounds_(scenario.links),
        rng_(rng) {}

  // `self` receives from now on, and is on `node`.
  void Attach(const PeerId& self, Node node, Receive receive);
  // Its process has ended: nothing reaches it any more. With `drop_sent` what
  // it sent and has not arrived is lost as well.
  void Detach(const PeerId& self, bool drop_sent);

  // `reached` is called when a message has come as far as the machine, on which
  // the process may stand still and read it later.
  void OnReached(const PeerId& self,
                 std::function<void(const PeerId& from)> reached);
  // `tell` hears what the system knows of the connection to `peer`: true once
  // its process listens there, false once it has ended and the machine can be
  // reached, as a connection is reset or refused. A partition, a process that
  // is stopped and a machine that is suspended tell nothing. Replaces the watch
  // of another peer.
  void WatchPeer(const PeerId& self, const PeerId& peer,
                 std::function<void(bool is_up)> tell);

  void Send(const PeerId& from, const PeerId& to, Message message);

  // Nothing passes from one node to the other until `until`.
  void Cut(Node from, Node to, absl::Time until, bool held);
  // Likewise from one endpoint to the other, also on one machine.
  void CutPeers(const PeerId& from, const PeerId& to, absl::Time until,
                bool held);
  // The end of the latest cut; in the past if there is none.
  absl::Time CutUntil(Node from, Node to) const;
  // Its process is there.
  bool attached(const PeerId& who) const { return endpoints_.count(who) > 0; }
  // A connection of the one to the other would be made now.
  bool Connects(const PeerId& self, const PeerId& peer) const;
  SimMachine& machine(Node node) const { return (*machines_)[node]; }
  // From here on nothing is lost, repeated, overtaken, cut or refused.
  void Heal();

  Tamper tamper;
  // Sees every message as it leaves and as it arrives. False: it is lost.
  std::function<bool(const PeerId& from, const PeerId& to,
                     const Message& message, bool arrives)>
      watch;
  // Hears of every message that somebody means to send, before any fault.
  std::function<void(const PeerId& from, const Message& message)> on_send;
  // Hears of every message that is handed to its receiver.
  std::function<void(const PeerId& from, const PeerId& to,
                     const Message& message)>
      on_deliver;
  // One line for each message sent or lost; unset when nobody reads it.
  std::function<void(const std::string& line)> log;

  const NetworkStats& stats() const { return stats_; }

  // The longest time that a message waited to leave, because the link was busy.
  absl::Duration longest_queue() const { return longest_queue_; }

 private:
  struct Endpoint {
    Node node = 0;
    Receive receive;
    std::function<void(const PeerId& from)> reached;
  };
  struct Link {
    uint64_t id = 0;
    std::function<void(bool is_up)> tell;
    std::optional<bool> up;  // As it was told last.
  };
  // What leaves one machine for another.
  struct Queue {
    std::deque<absl::Time> leaves_at;  // Of those that have not left, in order.
  };
  struct CutLink {
    absl::Time until;
    bool held = false;
  };
  struct Frames {
    std::string header;
    std::vector<Payload> payloads;
    size_t bytes() const;
  };
  using FramesPtr = std::shared_ptr<const Frames>;

  void SendUntampered(const PeerId& from, const PeerId& to,
                      const Message& message);
  // When it has left; none if the queue is full.
  std::optional<absl::Time> Leaves(Node from, Node to, size_t bytes);
  // Its machine has it.
  void Reach(const PeerId& from, const PeerId& to, const FramesPtr& frames);
  void Deliver(const PeerId& from, const PeerId& to, const Message& message);
  // The system of `self` looks whether `peer` is there, if it can be reached.
  void LookAfter(const PeerId& self, const PeerId& peer, uint64_t link,
                 absl::Time at);
  void Look(const PeerId& self, const PeerId& peer, uint64_t link);
  absl::Duration Delay();

  EventQueue* const queue_;
  SimMachines* const machines_;
  NetworkFaults faults_;
  LinkBounds bounds_;
  Rng rng_;
  std::map<PeerId, Endpoint> endpoints_;
  std::map<PeerId, Node> nodes_;  // Of endpoints that are gone, too.
  std::set<PeerId> silenced_;     // Gone, and what they sent is lost.
  std::map<std::pair<PeerId, PeerId>, absl::Time> last_arrival_;
  std::map<std::pair<Node, Node>, CutLink> cuts_;
  std::map<std::pair<PeerId, PeerId>, CutLink> peer_cuts_;
  absl::Duration longest_queue_;
  std::map<std::pair<Node, Node>, Queue> queues_;
  std::map<std::pair<PeerId, PeerId>, Link> links_;  // Who watches whom.
  uint64_t links_made_ = 0;
  bool tampering_ = false;
  NetworkStats stats_;
};

// One line for people, for example "push clock 3 shards 0:5 1:5 seq".
std::string Describe(const Message& message);

}  // namespace slackline::sim
