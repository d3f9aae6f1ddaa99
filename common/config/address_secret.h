// Which addresses may not be kept where others read them: in a config, which is
// copied to all hosts, or on a command line.
#pragma once

#include "absl/strings/string_view.h"

namespace slackline {

// What to do about it, for the end of an error. Such an error does not have the
// address.
inline constexpr char kWithoutSecret[] =
    "leave that out, and set MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, or keep the whole address in "
    "MLFLOW_TRACKING_URI alone";

// Whether a user, a password or a token may be in it: there is an '@' anywhere
// behind "://", since a password may have a '/', or "password=" or "token=" in
// a query. A text without "://" is a path.
bool MayHaveSecret(absl::string_view address);

}  // namespace slackline
