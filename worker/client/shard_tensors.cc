#include "worker/client/shard_tensors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"

namespace slackline {
namespace {

// How the values of a shard are in an answer.
wire::Encoding::Kind EncodingIn(const View& view, int32_t shard,
                                const wire::Pull& asked) {
  if (asked.step().exact() || asked.has_state()) return wire::Encoding::FLOAT32;
  return view.table(view.shard(ShardId{shard}).table).pulled_as();
}

// The optimizer slots of a shard in an answer.
size_t SlotsIn(const View& view, int32_t shard, const wire::Pull& asked) {
  if (!asked.has_state()) return 0;
  const TableId table = view.shard(ShardId{shard}).table;
  return static_cast<size_t>(view.optimizer(table).slot_count());
}

size_t BytesOfValues(const View& view, int32_t shard, const wire::Pull& asked) {
  const GradientCode code = {.kind = EncodingIn(view, shard, asked)};
  return code.Bytes(
      static_cast<size_t>(view.shard(ShardId{shard}).region.size()));
}

CodedGradient PartOf(const CodedGradient& gradient, const Region& whole,
                     const Region& part) {
  return Slice(gradient, static_cast<size_t>(whole.size()),
               whole.DenseOffset(part) / sizeof(float),
               static_cast<size_t>(part.size()));
}

}  // namespace

std::string WhyNoGradient(const CodedGradient& gradient,
                          const wire::Table& table) {
  const size_t bytes =
      gradient.code.Bytes(static_cast<size_t>(RegionOf(table).size()));
  if (gradient.bytes.size() == bytes) return "";
  return absl::StrCat("gradient of ", gradient.bytes.size(),
                      " bytes, the table has ", bytes);
}

CodedGradient PartOf(const CodedGradient& gradient, const wire::Table& table,
                     const Region& part) {
  return PartOf(gradient, RegionOf(table), part);
}

std::pair<CodedGradient, CodedGradient> PartsOf(const CodedGradient& gradient,
                                                const ShardSplit& split) {
  const Region whole(split.of_kept.begin(), split.of_split_off.end());
  return {PartOf(gradient, whole, split.of_kept),
          PartOf(gradient, whole, split.of_split_off)};
}

Payload TakeRest(Payload* tensor, const ShardSplit& split) {
  const size_t kept_bytes = split.of_kept.DenseBytes();
  Payload rest = tensor->Slice(kept_bytes, tensor->size() - kept_bytes);
  *tensor = tensor->Slice(0, kept_bytes);
  return rest;
}

size_t AnswerBytes(const View& view, int32_t shard, const wire::Pull& asked) {
  return BytesOfValues(view, shard, asked) +
         SlotsIn(view, shard, asked) *
             view.shard(ShardId{shard}).region.DenseBytes();
}

absl::StatusOr<ShardValue> ValueOf(const wire::PullAnswer& answer,
                                   absl::Span<const Payload> frames,
                                   const wire::Pull& asked,
                                   const Routes& routes, Owner from) {
  const View& view = routes.view();
  const int32_t shard = answer.shard();
  // Begins every message about the answer.
  const auto answered = [&] {
    return absl::StrCat(routes.NameOf(from), " answered a pull of ",
                        view.ShardName(ShardId{shard}), " with");
  };
  if (answer.has_state() != asked.has_state()) {
    return absl::InternalError(absl::StrCat(answered(),
                                            answer.has_state() ? "" : "out",
                                            " the state of the optimizer"));
  }
  const size_t slots = SlotsIn(view, shard, asked);
  if (frames.size() != 1 + slots) {
    return absl::InternalError(absl::StrCat(answered(), " ", frames.size() - 1,
                                            " optimizer slots, the table has ",
                                            slots));
  }
  const wire::PullAnswer::Values& values = ValuesIn(answer);
  const wire::Encoding::Kind encoding = EncodingIn(view, shard, asked);
  size_t bytes = BytesOfValues(view, shard, asked);
  for (const Payload& frame : frames) {
    if (frame.size() != bytes || values.kind() != encoding) {
      return absl::InternalError(absl::StrCat(
          answered(), " ", frame.size(), " bytes as ",
          wire::Encoding::Kind_Name(values.kind()), "; ", bytes, " as ",
          wire::Encoding::Kind_Name(encoding), " are required"));
    }
    bytes = view.shard(ShardId{shard}).region.DenseBytes();  // Of each slot.
  }
  ShardValue value{.version = values.version(),
                   .shard_clock = values.shard_clock(),
                   .values = ExpandParameters(encoding, frames.front()),
                   .slots = {frames.begin() + 1, frames.end()},
                   .parked = {}};
  if (answer.has_state() && StateHash(value.version, value.values,
                                      value.slots) != answer.state().hash()) {
    return absl::DataLossError(absl::StrCat(
        routes.NameOf(from), " sent ", view.ShardName(ShardId{shard}),
        " of version ", value.version, ", and other bits arrived"));
  }
  return value;
}

}  // namespace slackline
