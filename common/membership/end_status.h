// How a job that has failed shows in its processes: as a status, and by that as
// an exit code.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "proto/view.pb.h"

namespace slackline {

// The exit code of a job that ended after a checkpoint, from which it can go
// on: EX_TEMPFAIL of sysexits.h, so that whoever has started it starts it
// again.
inline constexpr int kExitSuspended = 75;

// The exit code of a server that the coordinator has given up, though it lives,
// while the job goes on: EX_UNAVAILABLE of sysexits.h. Whoever has started it
// starts it again.
inline constexpr int kExitGivenUp = 69;

// Whether the job is FINISHED by it; it is FAILED by other causes.
inline bool IsFinished(const wire::JobEnd& end) {
  return end.cause() == wire::JobEnd::COMPLETED ||
         end.cause() == wire::JobEnd::STOP_RULE ||
         end.cause() == wire::JobEnd::FINISHED_EARLY;
}

// A status with the reason of the end.
absl::Status EndStatus(absl::StatusCode code, const wire::JobEnd& end);

// Whether it is the EndStatus() of a job that was SUSPENDED. A copy still
// knows; a status that is made anew from code and message does not.
bool IsSuspended(const absl::Status& status);

// The sentence why a member was given up, or could not join, is shortened to
// this.
inline constexpr size_t kWhyBytesMax = 1024;

// A status of a server that was given up; and whether a status is one, which a
// copy still knows.
absl::Status GivenUpStatus(const std::string& why);
bool IsGivenUp(const absl::Status& status);

}  // namespace slackline
