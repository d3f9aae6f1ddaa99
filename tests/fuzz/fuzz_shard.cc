// What workers, other shard threads and strangers say to a shard thread, which
// has followers and follows a shard itself: in a job by clocks, and in one
// whose delays are given.
#include <array>
#include <memory>

#include "common/delays/delay_source.h"
#include "common/status.h"
#include "server/shard/shard_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"

namespace slackline {
namespace {

void Say(const uint8_t* data, size_t size,
         const std::shared_ptr<const View>& view) {
  const auto worker = [&](int rank) {
    return PeerId{PeerId::Kind::kWorker, rank,
                  view->FindWorker(Rank{rank})->incarnation()};
  };
  const std::array<PeerId, 4> peers = {worker(0), worker(1),
                                       PeerId{PeerId::Kind::kShardThread, 1, 0},
                                       PeerId{PeerId::Kind::kWorker, 0, 300}};
  static const auto delays =
      std::make_shared<const DelaySource>(*DelaySource::Load("uniform:2"));
  fuzz::Input input(data, size);
  ShardCore::Options options;
  options.self = {.server = 0, .thread = 0};
  options.delays = delays;
  options.workers = fuzz::kWorkers;
  ShardCore core(options, {});
  ShardCore::Effects effects;
  absl::Time now = absl::UnixEpoch();
  core.OnTick(now, &effects);
  core.OnView(view, &effects);
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    now += absl::Milliseconds(what >> 4);
    Message message;
    if (input.TakeMessage(&message)) {
      if ((what & 4) == 0) message.header.set_run(fuzz::kRun);
      core.OnMessage(peers[what & 3], message, &effects);
    }
    if ((what & 8) != 0) core.Flush(&effects);
    if (now >= core.NextWakeup()) core.OnTick(now, &effects);
    for (const Outgoing& outgoing : effects.sends)
      SL_CHECK(outgoing.message.header.ByteSizeLong() < size_t{1} << 20,
               "an answer out of proportion");
    effects = {};
  }
  core.Flush(&effects);
  (void)core.Stats();
}

}  // namespace
}  // namespace slackline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  static const std::shared_ptr<const View> by_clock = fuzz::FollowedView();
  static const std::shared_ptr<const View> given = [] {
    wire::View view = by_clock->ToProto();
    view.mutable_phase(0)->mutable_mode()->mutable_delays()->set_given(
        "uniform:2");
    return *View::Create(std::move(view));
  }();
  Say(data, size, by_clock);
  Say(data, size, given);
  return 0;
}
