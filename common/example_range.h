// Which examples a step has, where sampling is elastic: the places of each
// epoch's order are given out, one range after the other, to whoever is ready
// for them: by the coordinator (server/coordinator/grant_book.h), or to a
// worker without a job (worker/core/lone_steps.h).
#pragma once

#include <algorithm>
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

// Positions of a job are epoch * examples + place. Where the range ends that
// begins at this one, in [0, total): after a whole batch, or with its epoch, or
// with the job.
inline int64_t EndOfRange(const ElasticSampling& sampling, int64_t begin) {
  return begin + std::min({sampling.batch_size,
                           sampling.examples - begin % sampling.examples,
                           sampling.total - begin});
}

// The places of a range of positions, which are of one epoch.
inline ExampleRange PlacesOf(const ElasticSampling& sampling, int64_t begin,
                             int64_t end) {
  const int64_t epoch = begin / sampling.examples;
  const int64_t first = epoch * sampling.examples;
  return {.epoch = epoch, .begin = begin - first, .end = end - first};
}

}  // namespace slackline
