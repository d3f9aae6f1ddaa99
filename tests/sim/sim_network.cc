#include "tests/sim/sim_network.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline::sim {

void SimNetwork::Attach(const PeerId& self, Node node, Receive receive) {
  endpoints_[self] = {.node = node, .receive = std::move(receive)};
  nodes_[self] = node;
}

void SimNetwork::Detach(const PeerId& self, bool drop_sent) {
  endpoints_.erase(self);
  if (drop_sent) silenced_.insert(self);
}

void SimNetwork::Cut(Node from, Node to, absl::Time until, bool held) {
  CutLink& cut = cuts_[{from, to}];
  if (until <= cut.until) return;
  cut = {.until = until, .held = held};
}

absl::Time SimNetwork::CutUntil(Node from, Node to) const {
  const auto cut = cuts_.find({from, to});
  return cut == cuts_.end() ? absl::InfinitePast() : cut->second.until;
}

void SimNetwork::Heal() {
  cuts_.clear();
  faults_.loss = faults_.duplicate = faults_.reorder = faults_.slow = 0;
}

absl::Duration SimNetwork::Delay() {
  return faults_.delay_min +
         (faults_.delay_max - faults_.delay_min) * rng_.Uniform();
}

void SimNetwork::Send(const PeerId& from, const PeerId& to, Message message) {
  if (tamper && !tampering_) {
    tampering_ = true;
    const bool passes = tamper(from, to, &message);
    tampering_ = false;
    if (!passes) return;
  }
  SendUntampered(from, to, message);
}

void SimNetwork::SendUntampered(const PeerId& from, const PeerId& to,
                                const Message& message) {
  const auto note = [&](const char* what) {
    if (log)
      log(absl::StrCat(from.ToString(), " -> ", to.ToString(), what,
                       Describe(message)));
  };
  const auto receiver = nodes_.find(to);
  if (receiver == nodes_.end()) {
    ++stats_.to_nobody;
    return note(" (nobody there): ");
  }
  const auto sender = nodes_.find(from);
  SL_CHECK(sender != nodes_.end(), "a sender that was never attached");
  if (endpoints_.count(from) == 0) return;  // Who has ended sends nothing.
  if (watch && !watch(from, to, message, /*arrives=*/false)) {
    ++stats_.lost;
    return note(" (lost by a fault): ");
  }
  auto frames = std::make_shared<Frames>();
  message.header.SerializeToString(&frames->header);
  frames->payloads = message.payloads;
  const auto arrive = [this, from, to, frames] { Deliver(from, to, *frames); };

  if (sender->second == receiver->second) {  // Within a process: no network.
    note(": ");
    queue_->After(absl::ZeroDuration(), arrive);
    return;
  }
  absl::Time& last = last_arrival_[{from, to}];
  absl::Time at = queue_->now() + Delay();
  if (const auto cut = cuts_.find({sender->second, receiver->second});
      cut != cuts_.end() && queue_->now() < cut->second.until) {
    if (!cut->second.held) {
      ++stats_.cut;
      return note(" (cut): ");
    }
    ++stats_.held;
    at += cut->second.until - queue_->now();
  }
  if (faults_.loss > 0 && rng_.Chance(faults_.loss)) {
    ++stats_.lost;
    return note(" (lost): ");
  }
  if (faults_.slow > 0 && rng_.Chance(faults_.slow)) {
    ++stats_.slow;
    at += Delay() * 19;
  }
  if (faults_.reorder > 0 && rng_.Chance(faults_.reorder)) {
    ++stats_.reordered;
    at += Delay() * 5;  // Those behind it do not wait.
  } else {
    at = last = std::max(last, at);
  }
  note(": ");
  queue_->At(at, arrive);
  if (faults_.duplicate > 0 && rng_.Chance(faults_.duplicate)) {
    ++stats_.repeated;
    const double lateness = rng_.Uniform();
    queue_->At(at + absl::Seconds(2) * lateness * lateness * lateness, arrive);
  }
}

void SimNetwork::Deliver(const PeerId& from, const PeerId& to,
                         const Frames& frames) {
  const auto receiver = endpoints_.find(to);
  if (receiver == endpoints_.end()) {
    ++stats_.to_nobody;
    return;
  }
  if (endpoints_.count(from) == 0) {
    if (silenced_.count(from) > 0) {
      ++stats_.dropped_of_the_dead;
      return;
    }
    ++stats_.of_the_dead;
  }
  Message message;
  SL_CHECK(message.header.ParseFromString(frames.header),
           "a header does not parse");
  for (const Payload& payload : frames.payloads) {
    message.payloads.push_back(Payload::Copy(payload.data(), payload.size()));
  }
  if (watch && !watch(from, to, message, /*arrives=*/true)) {
    ++stats_.lost;
    return;
  }
  ++stats_.delivered;
  if (on_deliver) on_deliver(from, to, message);
  // The receiver may detach itself while it runs.
  const Receive receive = receiver->second.receive;
  receive(from, message);
}

std::string Describe(const Message& message) {
  std::string text = absl::StrCat("[view ", message.header.view_number(), "] ");
  switch (message.header.body_case()) {
    case wire::Header::kPushRequest: {
      const wire::PushRequest& push = message.header.push_request();
      absl::StrAppend(&text,
                      push.advance()   ? "advance to "
                      : push.install() ? "installation at "
                                       : "push of ",
                      push.clock(), ":");
      for (int i = 0; i < push.shard_size(); ++i) {
        absl::StrAppend(&text, " shard ", push.shard(i), " seq ", push.seq(i));
      }
      break;
    }
    case wire::Header::kPushReply: {
      const wire::PushReply& reply = message.header.push_reply();
      absl::StrAppend(&text, "push reply:");
      for (int i = 0; i < reply.shard_size(); ++i) {
        absl::StrAppend(&text, " shard ", reply.shard(i), " ",
                        wire::Code_Name(reply.code(i)), " acked ",
                        reply.acked_seq(i));
      }
      absl::StrAppend(&text, " ", reply.error());
      break;
    }
    case wire::Header::kPullRequest: {
      const wire::PullRequest& pull = message.header.pull_request();
      absl::StrAppend(&text,
                      pull.join()    ? "join pull "
                      : pull.state() ? "state pull "
                                     : "pull ",
                      pull.request_id(), " at clock ", pull.clock(), " own ",
                      pull.own_clock(), ": shards");
      for (const int32_t shard : pull.shard())
        absl::StrAppend(&text, " ", shard);
      break;
    }
    case wire::Header::kPullReply: {
      const wire::PullReply& reply = message.header.pull_reply();
      absl::StrAppend(&text, "pull reply ", reply.request_id(), ":");
      for (int i = 0; i < reply.shard_size(); ++i) {
        absl::StrAppend(&text, " shard ", reply.shard(i), " ",
                        wire::Code_Name(reply.code(i)), " v", reply.version(i),
                        " clock ", reply.shard_clock(i));
      }
      absl::StrAppend(&text, " ", reply.error());
      break;
    }
    case wire::Header::kView: {
      const wire::View& view = message.header.view();
      absl::StrAppend(&text, "view ", view.number(), " ",
                      wire::JobState_Name(view.state()), " workers");
      for (const wire::WorkerMember& worker : view.worker()) {
        absl::StrAppend(&text, " ", worker.rank(), "/", worker.incarnation(),
                        worker.founder() ? "f" : "", worker.done() ? "d" : "");
      }
      absl::StrAppend(&text, " servers");
      for (const wire::ServerMember& server : view.server()) {
        absl::StrAppend(&text, " ", server.index(),
                        server.draining() ? "-" : "");
      }
      absl::StrAppend(&text, " owners");
      for (int i = 0; i < view.owner_server_size(); ++i) {
        absl::StrAppend(&text, " ", view.owner_server(i), ".",
                        view.owner_thread(i));
      }
      for (const wire::Move& move : view.move()) {
        absl::StrAppend(&text, " move ", move.id(), ": ", move.shard(), " to ",
                        move.server(), ".", move.thread());
      }
      for (const wire::Split& split : view.split()) {
        absl::StrAppend(&text, " split ", split.shard(), " at ", split.at());
      }
      for (const wire::Phase& phase : view.phase()) {
        absl::StrAppend(&text, " ", ModeText(phase), " from ", phase.from());
      }
      if (view.has_change()) {
        absl::StrAppend(&text, " change ", view.change().id(), " to ",
                        ModeText(view.change()));
      }
      absl::StrAppend(&text, " group ", view.group(), " arrived ",
                      view.arrived(), " entered ", view.entered(), " ",
                      view.reason());
      break;
    }
    case wire::Header::kHandOver: {
      const wire::HandOver& hand_over = message.header.hand_over();
      absl::StrAppend(&text, "hand over shard ", hand_over.shard(), " move ",
                      hand_over.move(), " from ", hand_over.position(), ":");
      for (const wire::HandOverRecord& record : hand_over.record())
        absl::StrAppend(&text, " {", record.ShortDebugString(), "}");
      break;
    }
    default:
      absl::StrAppend(&text, message.header.ShortDebugString());
  }
  return text;
}

}  // namespace slackline::sim
