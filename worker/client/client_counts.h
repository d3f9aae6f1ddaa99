// ClientCounts: what a worker has pushed and pulled, what of it is not
// acknowledged yet, and how long servers have taken to answer.
//
// Owns only numbers; nothing is decided by them. Each payload byte of a push
// counts once in unacknowledged_bytes() from Pushed() until Accepted(), and
// once in bytes_pushed() from its first transmission on.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "common/view/shard_map.h"

namespace slackline {

class ClientCounts {
 public:
  // What a server has taken to answer pushes.
  struct AnswerTimes {
    uint64_t messages = 0;
    absl::Duration time;
  };

  // Pushes of so many payload bytes begin to wait for their turn.
  void Pushed(size_t bytes) { unacknowledged_bytes_ += bytes; }
  // Pushes that wait take so many bytes more, because their shard was split in
  // two where their code cannot be split.
  void Grown(size_t bytes) { unacknowledged_bytes_ += bytes; }
  // Pushes that are in flight take so many bytes more, for that reason.
  void GrownInFlight(size_t bytes) {
    Grown(bytes);
    bytes_pushed_ += bytes;
  }
  // A message of so many bytes has its turn. An owner before was sent `again`
  // of them, and they go once more.
  void SentFirst(size_t bytes, size_t again) {
    bytes_pushed_ += bytes;
    bytes_resent_ += again;
  }
  void SentAgain(size_t bytes) {
    bytes_resent_ += bytes;
    ++retries_;
  }
  // Pushes in flight go to another shard thread, where SentFirst() counts them.
  void Rerouted(size_t bytes) { bytes_pushed_ -= bytes; }
  void Accepted(size_t bytes) { unacknowledged_bytes_ -= bytes; }
  // Some pushes in flight were accepted just now. If they were the last ones,
  // that is when all was acknowledged.
  void AcceptedInFlight(absl::Time now) {
    if (unacknowledged_bytes_ == 0) acknowledged_at_ = now;
  }
  // A server has answered a message of pushes.
  void Answered(int32_t server, absl::Duration took) {
    AnswerTimes& answers = answers_[server];
    ++answers.messages;
    answers.time += took;
  }
  // Forgets the times of servers that the view does not have.
  void ForgetServersGone(const View& view) {
    std::erase_if(answers_, [&](const auto& entry) {
      return view.FindServer(entry.first) == nullptr;
    });
  }

  // A pull was answered with so many bytes.
  void Pulled(size_t bytes) { bytes_pulled_ += bytes; }
  void AskedAgain() { ++retries_; }
  // What looked like so many retries was a question to a pull that is parked.
  void WereQuestions(int questions) {
    retries_ -= static_cast<uint64_t>(questions);
  }

  // Payload bytes pushed and not yet acknowledged, queued ones included.
  size_t unacknowledged_bytes() const { return unacknowledged_bytes_; }
  // When all that was pushed until then was acknowledged last.
  absl::Time acknowledged_at() const { return acknowledged_at_; }
  // Payload bytes of pushes: each counts once, when it is first sent.
  uint64_t bytes_pushed() const { return bytes_pushed_; }
  // Payload bytes of pushes that were sent again.
  uint64_t bytes_resent() const { return bytes_resent_; }
  uint64_t bytes_pulled() const { return bytes_pulled_; }
  // Pushes and pulls that were sent again.
  uint64_t retries() const { return retries_; }
  // The times that servers have taken, by their indices.
  const std::map<int32_t, AnswerTimes>& answers() const { return answers_; }

 private:
  size_t unacknowledged_bytes_ = 0;
  absl::Time acknowledged_at_ = absl::InfinitePast();
  uint64_t bytes_pushed_ = 0;
  uint64_t bytes_resent_ = 0;
  uint64_t bytes_pulled_ = 0;
  uint64_t retries_ = 0;
  std::map<int32_t, AnswerTimes> answers_;
};

}  // namespace slackline
