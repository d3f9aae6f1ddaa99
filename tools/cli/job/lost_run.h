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
// A sentence without its period about a run in this folder of which nobody
// knows here whether its processes are gone: what was `seen` of their hosts
// (ReachText()), how far the run was, and what to look at. Empty: it has a
// summary, or it is no run.
std::string UnknownRunText(const std::string& folder, const std::string& seen);
// How it goes on: from its last checkpoint, or anew.
std::string LostRunAdvice(const std::string& folder);

}  // namespace slackline
