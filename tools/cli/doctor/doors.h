// Connections between hosts as the processes of a job will have them, tried
// before there are any: each host listens where its processes will, and
// connects to the others.
//
// Whoever connects sends a line and gets the same line back, so both know that
// no other program answers. From then on the door answers whatever it receives
// with the count of bytes so far, as eight bytes, the most significant first.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/io/descriptor.h"
#include "proto/doctor.pb.h"

namespace slackline {

// Listens and answers, in a thread of its own, while it lives.
class Doors {
 public:
  explicit Doors(const doctor::Open& open);
  ~Doors();
  Doors(const Doors&) = delete;
  Doors& operator=(const Doors&) = delete;

  // In the order of the question.
  const doctor::Opened& opened() const { return opened_; }

 private:
  void Loop();

  doctor::Opened opened_;
  std::vector<Descriptor> listeners_;
  Descriptor end_;      // An eventfd.
  std::thread thread_;  // The last member: it uses all others.
};

// One target after the other; each takes a few milliseconds where all is well,
// and at most about four seconds. After half a minute those that are left have
// STATE_UNSPECIFIED.
doctor::Tried TryDoors(const doctor::Try& targets);

}  // namespace slackline
