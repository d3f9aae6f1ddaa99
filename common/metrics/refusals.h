// Whom listeners have refused (run::Refusals), counted together and said to
// people.
#pragma once

#include <cstdint>
#include <string>

#include "proto/run.pb.h"

namespace slackline {

void FoldRefusals(const run::Refusals& from, run::Refusals* to);

// All that were refused. Connections that ended in silence were not: they may
// be of somebody who only looked whether anybody listens.
uint64_t RefusedCount(const run::Refusals& refusals);

// "3 connections without a key, 1 message that its sender's key does not
// allow". Empty: nothing is counted.
std::string RefusalsText(const run::Refusals& refusals);

}  // namespace slackline
