// What members, observers and strangers say to a coordinator.
#include <array>

#include "server/coordinator/coordinator_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  static const std::array<PeerId, 4> peers = {
      fuzz::ServerPeer(), fuzz::WorkerPeer(0), fuzz::WorkerPeer(1),
      PeerId{PeerId::Kind::kObserver, 0, 300}};
  fuzz::Input input(data, size);
  CoordinatorCore core(fuzz::JobOptions());
  absl::Time now = absl::UnixEpoch();
  CoordinatorCore::Effects effects;
  core.Start(now);
  if (size > 0 && data[0] < 128)
    fuzz::JoinAll(&core, now, &effects, /*elastic=*/data[0] >= 64);
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    now += absl::Milliseconds(what >> 3) * (what >> 3);
    Message message;
    if (input.TakeMessage(&message)) {
      if ((what & 4) == 0) message.header.set_run(fuzz::kRun);
      core.OnMessage(peers[what & 3], message, now, &effects);
    }
    if (now >= core.NextWakeup()) core.OnTick(now, &effects);
    effects = {};
  }
  (void)core.Summary();
  return 0;
}
