// Where the key of this user's jobs is, by the environment: a program asks when
// it reads its flags, and hands the answer on.
#pragma once

#include <string>

namespace slackline {

// slackline/key in $XDG_CONFIG_HOME, or in .config at home. Empty: this user
// has no home.
std::string UserKeyFileHere();

}  // namespace slackline
