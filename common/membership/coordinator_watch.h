// CoordinatorWatch: where a member looks for its coordinator, and when it gives
// up a silent one. What silence means is in member_core.h.
//
// Deterministic state machine. Thread-compatible. Its times are awake times of
// the member (common/time/awake_clock.h).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/link_state.h"

namespace slackline {

class CoordinatorWatch {
 public:
  struct Options {
    // The fields are as in MemberCore::Options.
    std::vector<std::string> coordinators;
    absl::Duration lease;
    absl::Duration coordinator_timeout;
  };
  // After this many leases of silence the coordinator counts as gone.
  static constexpr int kSilentLeases = 2;

  // How long a member may need to find a coordinator that is elsewhere by now,
  // beyond a lease: of so many addresses. Of one: it is looked at twice in that
  // time. Of several: the next coordinator begins only after the lease of the
  // last one in etcd, in which members have begun to look.
  static absl::Duration FoundWithin(size_t coordinators, absl::Duration lease);

  explicit CoordinatorWatch(Options options) : options_(std::move(options)) {}

  void Start(absl::Time now) { looks_since_ = now; }
  void OnLink(LinkState link, absl::Time now);
  // What the coordinator says of the job: its lease, and whether another one
  // may come in its place.
  void OnTerms(absl::Duration lease, bool may_return);
  // It has said something. Logs it if it had been silent or, to a member, at
  // another address.
  void OnHeard(bool joined, absl::Time now, std::vector<std::string>* log);
  // Fails, or says that it waits, if the coordinator has been silent for long.
  // `stopped` is what is to be said beside that of this process itself.
  absl::Status CheckSilence(absl::Time now, const std::string& stopped,
                            std::vector<std::string>* log);
  // For who has not joined. Fails when the only place where the coordinator may
  // be has refused this process for long enough that it is no process that ends
  // or begins; says that it ends all connections.
  absl::Status CheckRefused(absl::Time now, std::vector<std::string>* log);
  // Turns to the next address if there is one, and nobody was heard at this one
  // for long enough. The index of what is looked at anew, if anything is.
  std::optional<size_t> LookElsewhere(bool joined, absl::Time now);

  // The address that it is connected with.
  const std::string& address() const {
    return options_.coordinators[looks_at_];
  }
  // Somebody there ends its connections at once.
  bool dropped() const { return dropped_since_ != absl::InfiniteFuture(); }
  // Zero until the coordinator has said something.
  absl::Duration lease() const { return lease_; }
  // Once the coordinator has said something.
  absl::Duration Silence(absl::Time now) const { return now - heard_; }
  bool IsSilent(absl::Time now) const {
    return Silence(now) > lease_ * kSilentLeases;
  }

 private:
  bool has_one() const { return options_.coordinators.size() == 1; }
  // How long an address may say nothing before the next one is looked at.
  absl::Duration LookPatience() const;
  // "the coordinator in server 0 at ADDRESS", where it was last heard.
  std::string CoordinatorText() const;

  const Options options_;
  absl::Duration lease_;
  bool may_return_ = false;  // What it said last.
  // Which of options_.coordinators it is connected with.
  size_t looks_at_ = 0;
  // Since when it looks at that one.
  absl::Time looks_since_ = absl::InfiniteFuture();
  bool heard_here_ = false;  // Whether anything was heard since looks_since_.
  size_t heard_at_ = 0;      // Which of them was the last that said anything.
  absl::Time heard_;         // The coordinator's last sign of life.
  bool said_silent_ = false;
  // None: nothing is known yet of the connection that is made.
  std::optional<LinkState> link_;
  // Since when somebody refuses this process there.
  absl::Time refused_since_ = absl::InfiniteFuture();
  // Since when somebody there ends its connections at once.
  absl::Time dropped_since_ = absl::InfiniteFuture();
  bool said_dropped_ = false;
};

}  // namespace slackline
