// WithMemory: memory of the heap that is refused is an error, which says for
// what it was. The only place that knows that it is refused by an exception.
#pragma once

#include <cstddef>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slackline {

// Calls `fn`, which needs so many bytes for `what`. ResourceExhausted: it did
// not get them, and has done a part of what it does.
template <typename Fn>
absl::Status WithMemory(size_t bytes, absl::string_view what, Fn fn) {
  try {
    fn();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this machine has no memory for the ", bytes, " bytes of ", what,
        "; give the job more servers, or the machine more memory"));
  }
}

}  // namespace slackline
