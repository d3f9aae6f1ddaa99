// What workers and strangers ask a server to sum.
#include <array>

#include "common/status.h"
#include "server/sums/sum_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  static const std::shared_ptr<const View> view = fuzz::RunningView();
  static const std::shared_ptr<const View> next = [] {
    wire::View proto = view->ToProto();
    proto.set_number(proto.number() + 1);
    proto.set_group(proto.number());
    const auto made = View::Create(std::move(proto));
    SL_CHECK(made.ok(), made.status().ToString());
    return *made;
  }();
  const auto rank = [](int index) {
    return PeerId{PeerId::Kind::kSum, index,
                  view->FindWorker(Rank{index})->incarnation()};
  };
  static const std::array<PeerId, 4> peers = {
      rank(0), rank(1), PeerId{PeerId::Kind::kSum, 1, 300},
      PeerId{PeerId::Kind::kWorker, 0, rank(0).instance}};
  fuzz::Input input(data, size);
  SumCore::Options options;
  options.waiting_bytes_max = 4096;
  options.waiting_parts_max = 16;
  SumCore core(options);
  bool shown = false;
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    if (!shown && (what & 8) == 0) {
      core.OnView(view);
      shown = true;
    }
    if ((what & 0xf0) == 0xf0) core.OnView(next);
    Message message;
    if (!input.TakeMessage(&message)) continue;
    if ((what & 4) == 0) message.header.set_run(fuzz::kRun);
    SumCore::Effects effects;
    core.OnMessage(peers[what & 3], message, &effects);
    SL_CHECK(effects.sends.size() <= 2, "more answers than ranks");
    SL_CHECK(core.waiting_bytes() <= 2 * options.waiting_bytes_max,
             "more parts wait than the bounds allow");
  }
  return 0;
}
