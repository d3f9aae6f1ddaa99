// ServerPace: how much the shard threads of each server do per second of
// working (run::ThreadLoad.bytes_per_busy_second), beside what they did before,
// and beside the others'. A server may be slow because its host has other work,
// is throttled, or swaps.
//
// Machines differ, and so does what shards cost; so it only answers when it is
// asked, and tells no alarm of its own (slow_server_watch.h does).
//
// Deterministic state machine without I/O and without a time of its own.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/ids.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"

namespace slackline {

class ServerPace {
 public:
  struct Options {
    double slow_above = 1.5;  // Times what it is measured by.
    int reports_min = 5;      // A server of which fewer are known has no past.
    int past_reports = 60;    // What is so long ago counts 1/e.
    // A server that is busy for a smaller share of the time is no bottleneck.
    double busy_min = 0.4;
  };
  struct Slow {
    int32_t server = 0;
    double times = 0;
    std::string threads;   // A clause about what its shard threads do.
    std::string sentence;  // A whole one, with that clause.
  };

  explicit ServerPace(const Options& options) : options_(options) {}

  // `stats` can be (stats_check.h).
  void OnReport(Incarnation server, const run::ServerStats& stats);
  // What is measured from here on may be the fault of a server: it does not
  // count as how servers are.
  void SetSuspects(bool suspects) { suspects_ = suspects; }
  // The view says which servers there are: others are forgotten.
  void Prune(const wire::View& view);
  // The one that is slowest beside its past; one that has just come is measured
  // by the others.
  std::optional<Slow> Slowest() const;
  // This server, if it is slower than it was, measured as by Slowest().
  std::optional<Slow> SlowOf(int32_t server) const;
  // The one that is slower than the others and is busy for longer than they
  // are: they have time left when it has none.
  std::optional<Slow> Bottleneck() const;
  void Clear() { servers_.clear(); }

 private:
  struct Server {
    int32_t index = 0;
    double now = 0;  // Bytes per second of working; 0: too little work.
    double past = 0;
    int reports = 0;  // How many are in `past`.
    double busy = 0;  // Share of the time, of the busiest thread.
  };

  // The median of the other servers' figures; 0: there is none.
  double MedianOfOthers(const Server& server, double Server::*figure) const;
  std::optional<Slow> SlowBeside(const Server& server, double measure,
                                 bool before) const;
  std::optional<Slow> SlowOf(const Server& server) const;

  const Options options_;
  std::map<Incarnation, Server> servers_;
  bool suspects_ = false;
};

}  // namespace slackline
