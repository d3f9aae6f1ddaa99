#include "server/shard/request_faults.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/optim/optimizer.h"
#include "common/optim/step_options.h"
#include "common/sync/participants.h"

namespace slackline {
namespace {

constexpr int kEntriesMax = 4096;  // Of a push; shards of a pull or a probe.
// What a pull says beside its shards may have so many bytes. A shard keeps it
// until it has answered, so all that may wait for one have at most 16 MiB.
constexpr size_t kAskedBytesMax = 4 << 10;

// What the entry says beside its shards, as in a message.
size_t BytesBesideShards(const wire::Pull& pull) {
  wire::Pull shards;
  *shards.mutable_shard() = pull.shard();
  return pull.ByteSizeLong() - shards.ByteSizeLong();
}

}  // namespace

size_t FramesOf(const wire::Push& push) {
  if (push.has_gradient()) return 1;
  if (!push.has_installation()) return 0;
  return 1 + static_cast<size_t>(push.installation().slots());
}

std::string FaultOf(const wire::PushRequest& request, size_t payloads) {
  if (request.push_size() == 0 || request.push_size() > kEntriesMax) {
    return absl::StrCat("it has ", request.push_size(), " entries, from 1 to ",
                        kEntriesMax, " are allowed");
  }
  size_t frames = 0;
  for (const wire::Push& push : request.push()) {
    if (push.what_case() == wire::Push::WHAT_NOT_SET)
      return "an entry does not say what is pushed";
    if (push.clock() < 0 || push.clock() >= kClockMax) {
      return absl::StrCat("an entry is of clock ", push.clock(),
                          ", outside [0, 2^60)");
    }
    if (push.has_options() && !push.has_gradient())
      return "an entry that is no gradient has options of a step";
    if (std::string fault = FaultOf(FromWire(push.options())); !fault.empty())
      return absl::StrCat("an entry has ", fault);
    if (push.has_encoding() && !push.has_gradient())
      return "an entry that is no gradient has an encoding";
    if (std::string fault = FaultOf(push.encoding()); !fault.empty())
      return fault;
    if (push.installation().slots() < 0 ||
        push.installation().slots() > Optimizer::kSlotsMax) {
      return absl::StrCat("an entry has ", push.installation().slots(),
                          " slots, outside [0, ", Optimizer::kSlotsMax, "]");
    }
    frames += FramesOf(push);
  }
  if (frames == payloads) return "";
  return absl::StrCat("it has ", payloads, " payload frames, its entries need ",
                      frames);
}

std::string FaultOf(const wire::PullRequest& request, size_t payloads) {
  if (payloads > 0) return "it has payload";
  int64_t shards = 0;
  for (const wire::Pull& pull : request.pull()) {
    if (pull.what_case() == wire::Pull::WHAT_NOT_SET)
      return "an entry does not say what is pulled";
    const Clock clock =
        pull.has_state() ? pull.state().clock() : pull.step().clock();
    if (clock < 0 || clock >= kClockMax || pull.step().own_clock() < 0 ||
        pull.step().own_clock() > std::max<Clock>(clock, 0)) {
      return absl::StrCat("an entry is of clock ", clock, " and own clock ",
                          pull.step().own_clock(),
                          "; 0 <= own clock <= clock < 2^60 is required");
    }
    if (pull.shard_size() == 0) return "an entry has no shards";
    // An entry that is no longer in all needs no second look.
    if (pull.ByteSizeLong() > kAskedBytesMax &&
        BytesBesideShards(pull) > kAskedBytesMax) {
      return absl::StrCat("an entry has ", BytesBesideShards(pull),
                          " bytes beside its shards, at most ", kAskedBytesMax,
                          " are allowed");
    }
    shards += pull.shard_size();
  }
  if (shards > 0 && shards <= kEntriesMax) return "";
  return absl::StrCat("it asks for ", shards, " shards, from 1 to ",
                      kEntriesMax, " are allowed");
}

std::string FaultOf(const wire::ProbeRequest& probe, size_t payloads) {
  if (payloads > 0) return "it has payload";
  if (probe.shard_size() > 0 && probe.shard_size() <= kEntriesMax) return "";
  return absl::StrCat("it asks about ", probe.shard_size(),
                      " shards, from 1 to ", kEntriesMax, " are allowed");
}

}  // namespace slackline
