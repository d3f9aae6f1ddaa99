// A run that ended without a word: its processes are gone, and nobody was left
// to write how it ended, since `slackline run` itself was killed or its host
// went down. The next command that looks at its folder says so.
#pragma once

#include <string>

namespace slackline {

// That the run in this folder ended so, and how far it was; a sentence without
// its period. Empty: it has a summary, or no records of its steps. Nobody runs
// there any more: the caller has looked.
std::string LostRunText(const std::string& folder);
// How it goes on: from its last checkpoint, or anew.
std::string LostRunAdvice(const std::string& folder);

}  // namespace slackline
