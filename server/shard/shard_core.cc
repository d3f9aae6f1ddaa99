#include "server/shard/shard_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

const char* KindOf(const wire::Header& header) {
  switch (header.body_case()) {
    case wire::Header::kPushRequest:
      return "push";
    case wire::Header::kPullRequest:
      return "pull";
    case wire::Header::kHandOver:
    case wire::Header::kHandOverReply:
      return "hand-over";
    default:
      return "message";
  }
}

}  // namespace

ShardCore::ShardCore(const Options& options,
                     config::LearningRateSchedule schedule)
    : options_(options),
      maker_(std::move(schedule)),
      replies_(options.reply_bytes),
      counts_({.server = options.self.server,
               .nonfinite_stops = options.nonfinite == config::Train::STOP,
               .oversized_stops = options.gradient_bound.stops()}) {}

ShardParts ShardCore::Parts(Effects* effects) {
  return {.options = options_,
          .view = view_.get(),
          .now = now_,
          .maker = maker_,
          .places = places_,
          .desk = desk_,
          .replies = replies_,
          .feeds = feeds_,
          .hand_overs = hand_overs_,
          .cut = cut_,
          .counts = counts_,
          .done = done_,
          .effects = *effects,
          .failed = failed_};
}

// ---- Looks at shards --------------------------------------------------------

const ShardMachine* ShardCore::MachineOf(ShardId shard) const {
  const ServedShard* const served = places_.Served(shard);
  return served == nullptr ? nullptr : &served->machine();
}

const StalenessGate* ShardCore::GateOf(ShardId shard) const {
  const ServedShard* const served = places_.Served(shard);
  return served == nullptr ? nullptr : &served->gate();
}

const ShardCut* ShardCore::CutOf(ShardId shard) const {
  const ServedShard* const served = places_.Served(shard);
  return served == nullptr ? nullptr : served->cut();
}

// ---- Events -----------------------------------------------------------------

void ShardCore::OnTick(absl::Time now, Effects* effects) {
  now_ = now;
  if (!failed_) feeds_.OnTick(Parts(effects));
}

void ShardCore::OnView(std::shared_ptr<const View> view, Effects* effects) {
  if (failed_ || (view_ != nullptr && view->number() <= view_->number()))
    return;
  if (view_ != nullptr) Flush(effects);  // A client looks at an answer's view.
  const std::shared_ptr<const View> before = std::move(view_);
  view_ = std::move(view);
  const ShardParts at = Parts(effects);
  cut_.OnView(at);
  if (view_->proto().state() != wire::RUNNING) return;
  maker_.OnView(at);
  feeds_.OnView(at);
  changes_.Apply(before.get(), at);
  if (!failed_) hand_overs_.HandleEarly(at);
}

void ShardCore::Flush(Effects* effects) {
  if (!failed_) desk_.Flush(Parts(effects));
}

void ShardCore::OnMessage(const PeerId& from, const Message& message,
                          Effects* effects) {
  if (failed_) return;
  const wire::Header& header = message.header;
  const ShardParts at = Parts(effects);
  // A process of an earlier start of the job may still be there and know our
  // address.
  const uint64_t run = view_ == nullptr ? 0 : view_->proto().run();
  if (run != 0 && header.run() != run) {
    return desk_.Refuse(
        from,
        absl::StrCat("this ", KindOf(header), " belongs to ",
                     header.run() == 0
                         ? "no run"
                         : absl::StrCat("run ", absl::Hex(header.run()),
                                        " of another start of the job"),
                     "; this server serves run ", absl::Hex(run)),
        at);
  }
  switch (header.body_case()) {
    case wire::Header::kPushRequest:
      return desk_.OnPush(from, message, at);
    case wire::Header::kPullRequest:
      return desk_.OnPull(from, message, at);
    case wire::Header::kProbeRequest:
      return desk_.OnProbe(from, message, at);
    case wire::Header::kHandOver:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return hand_overs_.OnHandOver(from, message, at);
    case wire::Header::kHandOverReply:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return hand_overs_.OnHandOverReply(from, message, at);
    default:
      break;
  }
  desk_.Refuse(from,
               absl::StrCat("a shard thread takes pushes and pulls, not body ",
                            static_cast<int>(header.body_case())),
               at);
}

run::ServerStats ShardCore::Stats() const {
  run::ServerStats stats = counts_.stats();
  places_.Report(&stats);
  stats.set_answers_held(static_cast<int64_t>(desk_.held_count()));
  return stats;
}

int64_t ShardCore::participant_count() const {
  int64_t count = 0;
  for (const ServedShard* const served : places_.AllServed())
    count += static_cast<int64_t>(served->machine().participants().size());
  return count;
}

}  // namespace slackline
