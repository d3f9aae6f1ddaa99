// Tables of the simulation that servers keep by rows, in a store that no
// product file knows.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/ids.h"
#include "common/payload.h"
#include "common/region.h"
#include "proto/data.pb.h"
#include "proto/view.pb.h"
#include "server/shard/store/shard_store.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

// Some pulls of a step name rows, each about half of them, and the same ones
// whenever it is sent.
void NameSomeRows(const Scenario& scenario, wire::PullRequest* request);

// What the shards of the table keep; and of each table, as servers are told.
std::shared_ptr<const StoreKind> StoreOf(const Scenario& scenario,
                                         TableId table);
std::function<std::shared_ptr<const StoreKind>(const wire::Table&)> StoresOf(
    const Scenario& scenario);

// A float for each element of what such a store has: the values, a slot or a
// gradient. Empty: the tensor is none of that region.
std::vector<float> FloatsOf(const Scenario& scenario, TableId table,
                            const Region& region, const Payload& tensor);

}  // namespace slackline::sim
