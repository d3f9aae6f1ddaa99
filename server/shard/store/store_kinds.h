// Which store the shards of a table have.
#pragma once

#include <memory>

#include "proto/view.pb.h"
#include "server/shard/store/shard_store.h"

namespace slackline {

// Every table is dense.
std::shared_ptr<const StoreKind> StoreKindOf(const wire::Table& table);

}  // namespace slackline
