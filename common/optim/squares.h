// How large a gradient is, and whether it can be applied at all, in one pass.
#pragma once

#include <cstddef>

namespace slackline::optim {

// The sum of the squares of the floats, in double: not finite if and only if
// one of them is a NaN or an infinity, because the largest square is far from
// where a double ends. `data` has `elements` little-endian floats at any
// alignment.
//
// The same bits on every processor: squares of floats are exact in double, and
// the order of the additions is fixed. One pass that only reads.
double SumOfSquares(const std::byte* data, size_t elements);

}  // namespace slackline::optim
