// GroupStore: the rendezvous store of collectives. Workers of one group
// (View.group) leave their addresses here for each other, and wait for those of
// the others.
//
// It holds the keys of one group: when the next one begins, all that was stored
// goes, and whoever waits is told that its group is over. A request of another
// group than the present one is refused. A value never changes: a key that is
// stored again is a repeated request.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/payload.h"
#include "proto/control.pb.h"

namespace slackline {

class GroupStore {
 public:
  struct Options {
    size_t bytes_max = 64 << 20;  // Of keys and values.
    int waiting_max = 65536;      // Gets, over all keys.
  };
  struct Caller {
    PeerId peer;
    uint64_t call_id = 0;
    Incarnation incarnation = 0;
  };
  struct Answer {
    Caller to;
    wire::Code code = wire::OK;
    std::string error;
    Payload value;
    bool has_value = false;  // It answers a get that is OK.
  };
  static constexpr size_t kKeyBytesMax = 256;

  explicit GroupStore(const Options& options) : options_(options) {}

  // Each appends the answers that are due. A get without one waits for its key;
  // repeated, it waits once.
  void Put(const Caller& caller, uint64_t group, const std::string& key,
           const Payload& value, std::vector<Answer>* answers);
  void Get(const Caller& caller, uint64_t group, const std::string& key,
           std::vector<Answer>* answers);
  // Numbers of groups grow. The present one again is no news.
  void BeginGroup(uint64_t group, std::vector<Answer>* answers);
  // Who is gone waits for nothing.
  void Forget(Incarnation incarnation);

  size_t keys() const { return values_.size(); }
  size_t bytes() const { return bytes_; }
  int waiting() const { return waiting_; }

 private:
  // Empty, or why the request has no place here.
  std::string WhyRefused(uint64_t group, const std::string& key) const;

  const Options options_;
  uint64_t group_ = 0;
  std::map<std::string, Payload> values_;
  std::map<std::string, std::vector<Caller>> gets_;  // By key.
  size_t bytes_ = 0;
  int waiting_ = 0;
};

}  // namespace slackline
