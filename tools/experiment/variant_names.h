// Names for variants, made of what they change: "ssp-4", "adam-uniform-8".
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace slackline {

// Each character that may not be in a name becomes '-'; never two in a row.
std::string FileSafe(absl::string_view text);

// Of one assignment as for --set: the last part of its path and the value, so
// "train.epochs=3" is "epochs-3"; a staleness is its mode, so
// "sync.ssp.staleness=4" is "ssp-4"; a block of a choice is its branch,
// "sync.asp={}" is "asp".
std::string AssignmentName(absl::string_view assignment);

// Of each value of an axis, in order. Different values may still have equal
// names ("a b" and "a-b"). Blocks that differ by their first word have only it:
// "{adam{learning_rate:0.1}}" is "adam" beside "{sgd{learning_rate:1}}".
std::vector<std::string> AxisValueNames(absl::string_view field,
                                        const std::vector<std::string>& values);

}  // namespace slackline
