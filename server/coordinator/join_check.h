// What a request to join may contain, whoever sends it and whatever the job:
// lengths, counts and forms. Checked before anything of it is kept, compared or
// told to others.
#pragma once

#include <string>

#include "proto/optimizer.pb.h"
#include "proto/wire.pb.h"

namespace slackline {

// Empty, or a sentence that names the first thing that does not fit, with its
// bound. It repeats no text of the request.
std::string WhyNoJoin(const wire::JoinRequest& join);

// Empty if the coordinator can place these tables, in shards of shard_elements
// where a table does not say; else completes "worker 2".
std::string WhyTablesUnfit(const wire::JoinRequest& join,
                           int64_t shard_elements);

// Gives each table that comes without an optimizer that of the config, if there
// is one, and writes out the defaults of each.
void CompleteOptimizers(const config::Optimizer& of_config,
                        wire::JoinRequest* join);
// Empty if each table has an optimizer that can be computed with; else
// completes "worker 2".
std::string WhyOptimizersUnfit(const wire::JoinRequest& join);

// "weight[128, 10]".
std::string TableText(const wire::Table& table);
// "sgd { learning_rate: 0.1 weight_decay: 0 }".
std::string OptimizerText(const wire::Table& table);

}  // namespace slackline
