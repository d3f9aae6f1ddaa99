// Macros around absl::Status: return early on error, and a check that stays on.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#define SL_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status sl_status_ = (expr); !sl_status_.ok()) return sl_status_; \
  } while (false)

#define SL_CONCAT_INNER_(a, b) a##b
#define SL_CONCAT_(a, b) SL_CONCAT_INNER_(a, b)

// SL_ASSIGN_OR_RETURN(const auto value, Call());
#define SL_ASSIGN_OR_RETURN(lhs, expr) \
  SL_ASSIGN_OR_RETURN_(SL_CONCAT_(sl_statusor_, __LINE__), lhs, expr)
#define SL_ASSIGN_OR_RETURN_(statusor, lhs, expr) \
  auto statusor = (expr);                         \
  if (!statusor.ok()) return statusor.status();   \
  lhs = std::move(statusor).value()

// For what only a bug can cause. Always on. `what` is a string expression.
#define SL_CHECK(condition, what)                                     \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, \
                   __LINE__, #condition, std::string(what).c_str());  \
      std::abort();                                                   \
    }                                                                 \
  } while (false)

namespace slackline {

// The same code with "`prefix`: " before the message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace slackline
