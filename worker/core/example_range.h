// Which examples a step has, where sampling is elastic: the coordinator gives
// the places of each epoch's order to whoever is ready for them
// (server/coordinator/grant_book.h).
#pragma once

#include <cstdint>

namespace slackline {

// Places [begin, end) in the order of an epoch.
struct ExampleRange {
  int64_t epoch = 0;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// Of a job; the same on all workers.
struct ElasticSampling {
  int64_t examples = 0;    // In an epoch, at least 1.
  int64_t batch_size = 0;  // At most so many in a step, at least 1.
  int64_t total = 0;       // Over the job, at least 1.
};

}  // namespace slackline
