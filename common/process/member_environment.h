// What a worker with a program of its own is told by whoever starts it, in
// place of the flags --cluster, --index, --out, --data-dir and --key.
// `slackline run` sets all of them; a flag that is given counts more. The index
// may be "auto" (engine_index.h).
#pragma once

namespace slackline {

inline constexpr char kClusterVariable[] = "SLACKLINE_CLUSTER";
inline constexpr char kIndexVariable[] = "SLACKLINE_INDEX";
inline constexpr char kOutVariable[] = "SLACKLINE_OUT";
inline constexpr char kDataDirVariable[] = "SLACKLINE_DATA_DIR";  // May be "".
inline constexpr char kKeyVariable[] = "SLACKLINE_KEY";           // May be "".

}  // namespace slackline
