// Which bytes are a shard's: what a table's gradient is, and the part of it
// that is pushed to the shard; what each half of a shard has that is split; and
// the answer to a pull of it: its size, how its values are encoded, and whether
// what a server has sent is that.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compress/gradient_code.h"
#include "common/ids.h"
#include "common/payload.h"
#include "common/region.h"
#include "common/view/shard_map.h"
#include "proto/data.pb.h"
#include "worker/client/pull_result.h"
#include "worker/client/routes.h"
#include "worker/client/shard_split.h"

namespace slackline {

// Empty, or what is wrong with a gradient of the table: "gradient of 8 bytes,
// the table has 16".
std::string WhyNoGradient(const CodedGradient& gradient,
                          const wire::Table& table);
// What a gradient of the table has of `part`, which is within it: in its code,
// or as floats where blocks of the code do not begin and end there.
CodedGradient PartOf(const CodedGradient& gradient, const wire::Table& table,
                     const Region& part);
// Splits a gradient of the shard that is split into those of both shards.
std::pair<CodedGradient, CodedGradient> PartsOf(const CodedGradient& gradient,
                                                const ShardSplit& split);
// Takes what is the other shard's off a tensor of the shard that is split.
Payload TakeRest(Payload* tensor, const ShardSplit& split);

// Payload bytes of the answer for this shard of the view.
size_t AnswerBytes(const View& view, int32_t shard, const wire::Pull& asked);

// The values of the shard in `answer`, whose payloads are `frames`, at least
// one. The answer came from `from`. InternalError: it is no answer to what was
// asked, or has another number of bytes, another encoding or another number
// of slots than the view says. DataLoss: the bits of a state are not those that
// were sent. How long the pull was parked is not filled in.
absl::StatusOr<ShardValue> ValueOf(const wire::PullAnswer& answer,
                                   absl::Span<const Payload> frames,
                                   const wire::Pull& asked,
                                   const Routes& routes, Owner from);

// The values in an answer that has values or a state.
inline const wire::PullAnswer::Values& ValuesIn(
    const wire::PullAnswer& answer) {
  return answer.has_state() ? answer.state().values() : answer.values();
}

}  // namespace slackline
