// What shard threads feed each other (HandOver), as the network sees it: that
// nobody is sent an entry that it has, and that no more is under way from one
// thread to another than their budget. The feeds' own numbers are not taken for
// granted: what a thread has is what it says, and what is under way is what
// left and was not read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/message.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class FeedWatch {
 public:
  // Are told of violations: entries that came again, and too many bytes.
  using Report = std::function<void(const std::string& what)>;
  FeedWatch(const Scenario& scenario, Report again, Report unread);

  // A message leaves the thread `from`.
  void OnSent(const PeerId& from, const PeerId& to, const Message& message);
  // The thread `self` takes it in.
  void OnRead(const PeerId& self, const PeerId& from, const Message& message);
  // The process has ended: what was under way to it is not any more.
  void OnGone(const PeerId& thread);

 private:
  using Pair = std::pair<PeerId, PeerId>;  // From and to.
  using Feed = std::tuple<PeerId, PeerId, int32_t, std::string>;
  struct UnderWay {
    std::multimap<uint64_t, size_t> bytes;  // By HandOver.number.
    size_t sum = 0;
    size_t largest = 0;  // Of all messages so far.
  };

  const FeedLink::Options budget_;
  const bool keeps_order_;  // And repeats nothing: the network.
  const Report again_;
  const Report unread_;
  std::map<Pair, UnderWay> under_way_;
  std::map<Feed, uint64_t> has_;  // Up to this position.
  std::set<Feed> declined_;       // Once.
};

}  // namespace slackline::sim
