// ProgramPlace: when the coordinator is told that a worker's program goes on
// elsewhere than at its next step, in the terms of common/program_place.h.
//
// While a gather of the program has no answer, the program stands at that
// gather; so what there is to be told waits until it is answered or given up.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/ids.h"
#include "common/program_place.h"
#include "proto/control.pb.h"

namespace slackline {

class ProgramPlace {
 public:
  // The program's next step is this one, and it does not come there from the
  // step before, or has not begun. ToTell() has the call.
  void GoOnAt(Clock step) {
    has_begun_ = true;
    goes_on_at_ = step;
  }
  // What to tell the coordinator now, once.
  std::optional<wire::Call> ToTell() {
    if (gather_call_ != 0 || !goes_on_at_.has_value()) return std::nullopt;
    wire::Call call;
    call.mutable_goes_on()->set_place(
        PlaceInStep(*std::exchange(goes_on_at_, std::nullopt)));
    return call;
  }
  // It was said once where this worker begins.
  bool has_begun() const { return has_begun_; }

  // The program has called a gather.
  void OnGather(uint64_t call) { gather_call_ = call; }
  // The call is answered, or nobody waits for its answer any more. Whether it
  // was the gather; another call is not an error.
  bool OnCallOver(uint64_t call) {
    if (gather_call_ == 0 || call != gather_call_) return false;
    gather_call_ = 0;
    return true;
  }

 private:
  uint64_t gather_call_ = 0;  // It has no answer so far; 0: there is none.
  // The step at which the worker goes on, while the coordinator has not been
  // told it yet.
  std::optional<Clock> goes_on_at_;
  bool has_begun_ = false;
};

}  // namespace slackline
