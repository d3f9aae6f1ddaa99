// Whether a gradient can be applied at all.
#pragma once

#include <cstddef>

namespace slackline::optim {

// False if one of the floats is a NaN or an infinity. `data` has `elements`
// little-endian floats at any alignment. One pass that only reads; about as
// fast as memory is.
bool AllFinite(const std::byte* data, size_t elements);

}  // namespace slackline::optim
