// Making a wire::JobEnd: why the job has ended, and whom that is about.
#pragma once

#include <string>
#include <utility>

#include "proto/view.pb.h"

namespace slackline {

inline wire::JobEnd JobEndOf(wire::JobEnd::Cause cause, std::string reason) {
  wire::JobEnd end;
  end.set_cause(cause);
  end.set_reason(std::move(reason));
  return end;
}

}  // namespace slackline
