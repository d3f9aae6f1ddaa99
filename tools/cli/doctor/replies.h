// What agents answer `slackline doctor`: bounded before anything is made of it.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "proto/doctor.pb.h"

namespace slackline {

// Lists in a reply, and texts in it, have at most so many elements and bytes.
inline constexpr int kDoctorListMax = 4096;
inline constexpr size_t kDoctorTextMax = 64 << 10;

// InvalidArgument: no agent says so much, or such numbers.
absl::Status CheckReply(const doctor::Reply& reply);

// Keeps what the host says of itself. What it has tried is of pairs of hosts,
// and left out.
void AddReply(doctor::Reply reply, doctor::Host* host);

}  // namespace slackline
