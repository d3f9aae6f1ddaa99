// What a coordinator says to a server's control thread. (What shard threads say
// to it comes from its own process.)
#include "server/control/server_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  fuzz::Input input(data, size);
  ServerCore::Options options;
  options.member.join = fuzz::ServerJoin();
  options.member.coordinators = {"head:7700"};
  options.threads = fuzz::kThreads;
  ServerCore core(options);
  ServerCore::Effects effects;
  absl::Time now = absl::UnixEpoch();
  core.Start(now, &effects);
  {
    CoordinatorCore coordinator(fuzz::JobOptions());
    CoordinatorCore::Effects answers;
    coordinator.Start(now);
    fuzz::JoinAll(&coordinator, now, &answers);
    for (const Outgoing& answer : answers.sends) {
      if (answer.to == fuzz::ServerPeer() && !effects.end.has_value())
        core.OnMessage(answer.message, now, &effects);
    }
  }
  while (!input.empty() && !effects.end.has_value()) {
    effects = {};
    const uint8_t what = input.Byte();
    now += absl::Milliseconds(what >> 3) * (what >> 3);
    Message message;
    if (input.TakeMessage(&message)) {
      if ((what & 1) == 0) message.header.set_run(fuzz::kRun);
      core.OnMessage(message, now, &effects);
    }
    if (!effects.end.has_value() && now >= core.NextWakeup())
      core.OnTick(now, &effects);
  }
  return 0;
}
