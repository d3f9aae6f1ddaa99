// Which kinds of stores there are, each in a file of its name beside this one,
// and which one the shards of a table have.
#pragma once

#include <memory>

#include "proto/view.pb.h"
#include "server/shard/store/shard_store.h"

namespace slackline {

std::shared_ptr<const StoreKind> DenseKind();

// Every table is dense.
inline std::shared_ptr<const StoreKind> StoreKindOf(
    const wire::Table& /*table*/) {
  return DenseKind();
}

}  // namespace slackline
