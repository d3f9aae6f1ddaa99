// What workers and strangers ask a server to sum, and what is answered to a
// rank that asks.
#include <array>

#include "common/status.h"
#include "server/sums/sum_core.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"
#include "worker/collective/sum_client_core.h"

namespace slackline {
namespace {

// A rank with operations of three pieces, one after the other.
class Rank0 {
 public:
  explicit Rank0(uint64_t group)
      : options_({.rank = 0,
                  .ranks = 2,
                  .run = fuzz::kRun,
                  .group = group,
                  .threads = {"one", "two"},
                  .piece_bytes = 8,
                  .window_bytes = 8}),
        core_(options_) {
    Begin();
  }
  void Receive(size_t thread, const Message& message) {
    if (failed_) return;
    SumClientCore::Effects effects;
    core_.OnMessage(thread, message, now_, &effects);
    After(&effects);
    now_ += absl::Milliseconds(1);
    core_.OnTick(now_, &effects);
    After(&effects);
  }

 private:
  void Begin() {
    SumClientCore::Effects effects;
    core_.Begin(number_++, absl::MakeSpan(data_), now_, &effects);
    After(&effects);
  }
  void After(SumClientCore::Effects* effects) {
    for (const size_t thread : {0, 1}) {
      SL_CHECK(core_.bytes_in_flight(thread) <= options_.window_bytes,
               "more is under way than the window allows");
    }
    if (!effects->ended.has_value()) return;
    failed_ = !effects->ended->ok();
    effects->ended.reset();
    if (!failed_) Begin();
  }

  const SumClientCore::Options options_;
  SumClientCore core_;
  std::array<float, 5> data_ = {};
  absl::Time now_ = absl::UnixEpoch();
  int64_t number_ = 0;
  bool failed_ = false;
};

}  // namespace
}  // namespace slackline

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
  Rank0 asks(view->proto().group());
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
    asks.Receive((what & 2) / 2, message);
    SumCore::Effects effects;
    core.OnMessage(peers[what & 3], message, &effects);
    SL_CHECK(effects.sends.size() <= 2, "more answers than ranks");
    SL_CHECK(core.waiting_bytes() <= 2 * options.waiting_bytes_max,
             "more parts wait than the bounds allow");
  }
  return 0;
}
