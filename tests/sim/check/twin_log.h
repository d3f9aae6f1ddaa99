// With replicas: the log of a twin, and what the twin was at places of it.
#pragma once

#include <cstdint>
#include <memory>

#include "server/shard/shard_machine.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_twin.h"

namespace slackline::sim {

std::string Name(const LogPosition& at);

void LogState(ShardTwin& twin, uint64_t index, bool exact);
// Before and after the trace of an event after which the shard is there.
void BeginLogging(ShardTwin& twin, const View& view, const LogPosition& after,
                  Findings* findings);
void EndLogging(ShardTwin& twin, const LogPosition& after);
// As the twin was when its log had come to this place; nullptr: it never was.
std::shared_ptr<const ShardTwin> TwinAt(const ShardTwin& twin,
                                        const ShardRange& range,
                                        const LogPosition& at);
// As it was before a view that splits it more than once, of which the copy has
// done the first splits and no more; nullptr: it is not between two of them.
std::shared_ptr<const ShardTwin> CutOnTheWay(const ShardTwin& twin,
                                             const View& view,
                                             const ShardRange& range,
                                             const LogPosition& at);
// There an owner was that another one had replaced before.
bool HasFollowedTheReplaced(const ShardTwin& twin, const LogPosition& at);
// As it was before it was split in two or changed its owner.
std::shared_ptr<const ShardTwin> AtFirst(const ShardTwin& twin);
bool IsOnLine(const ShardTwin& twin, const LogPosition& at);
void Rewind(ShardTwin& twin, uint64_t index);

}  // namespace slackline::sim
