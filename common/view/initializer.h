// Initial values of a table. Each element depends only on the seed, the table's
// name and the element's index, so any process can make any part of a table and
// all get the same bits; or it is what a worker, or a checkpoint, has.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "proto/view.pb.h"

namespace slackline {

// Fills `values` with elements [begin, begin + values.size()) of `table`; zeros
// if it begins with what a worker or a checkpoint has.
void InitializeElements(const wire::Table& table, uint64_t seed, int64_t begin,
                        absl::Span<float> values);

// Whether some table begins with the values that a worker has. Then nobody
// steps over servers before a step by all-reduce has brought them there.
bool BeginsWithWorker(const wire::View& view);
// Whether the tables begin with what a checkpoint has: the job goes on, and the
// servers alone have its state when it starts.
bool BeginsWithCheckpoint(const wire::View& view);

}  // namespace slackline
