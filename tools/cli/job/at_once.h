// Work that waits for other hosts, done for many of them at once: those that do
// not answer make one wait once, and not one after the other.
#pragma once

#include <cstddef>
#include <functional>

namespace slackline {

// Calls work(0) to work(count - 1), up to 64 of them at a time, each on a
// thread that does nothing else meanwhile, and returns when all are done.
void ForEachAtOnce(size_t count, const std::function<void(size_t)>& work);

}  // namespace slackline
