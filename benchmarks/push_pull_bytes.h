// What the systems of bench_push_pull send that do not train: the same random
// bytes in all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/push_pull.h"

namespace slackline::bench {

// What a worker pushes to each server, and what a server holds: setup.bytes /
// setup.servers bytes, up to a multiple of 8.
std::vector<uint64_t> GradientOf(const PushPullSetup& setup, int worker);
std::vector<uint64_t> ParametersOf(const PushPullSetup& setup, int server);

}  // namespace slackline::bench
