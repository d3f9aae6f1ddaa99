#include "tools/cli/run/timeline_of_run.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/time/time_source.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/timeline_collection.h"

namespace slackline {
namespace {

constexpr absl::Duration kTimelineAnswerMax = absl::Milliseconds(500);
constexpr absl::Duration kTimelineLookEvery = absl::Milliseconds(50);

}  // namespace

std::string TimelineOfRun::Take() { return has_ended_.load() ? Finish() : ""; }

std::string TimelineOfRun::Finish() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
  return std::exchange(said_, "");
}

void TimelineOfRun::Run() {
  said_ = Collect();
  has_ended_.store(true);
}

std::string TimelineOfRun::Collect() {
  const auto none = [](const absl::Status& why) {
    return absl::StrCat("warning: no timeline: ", why.message());
  };
  const absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
      CoordinatorClient::Connect(options_.endpoints, options_.job,
                                 options_.keys);
  if (!client.ok()) return none(client.status());
  const std::string path =
      absl::StrCat(options_.folder, "/", TimelineName(TimeSource().WallNow()));
  std::unique_ptr<TimelineCollection> collection;
  absl::Status why = absl::UnavailableError("the job has not begun");
  while (collection == nullptr && !stopping_.load()) {
    // Nobody listens yet, or has joined.
    absl::StatusOr<std::unique_ptr<TimelineCollection>> begun =
        TimelineCollection::Begin(
            client->get(),
            {.time = options_.time, .path = path, .profiles = {}},
            kTimelineAnswerMax);
    if (begun.ok()) {
      collection = *std::move(begun);
    } else {
      why = begun.status();
      absl::SleepFor(kTimelineLookEvery);
    }
  }
  if (collection == nullptr) return none(why);
  while (!collection->over()) {
    const absl::StatusOr<bool> took =
        collection->ReceivePart(kTimelineAnswerMax);
    // The coordinator may be busy; or it is gone with the job, or another one,
    // which knows nothing of this.
    if (!took.ok() &&
        (stopping_.load() || absl::IsFailedPrecondition(took.status()))) {
      break;
    }
    if (!took.ok() || !*took) absl::SleepFor(kTimelineLookEvery);
  }
  const absl::StatusOr<std::string> text = collection->Finish();
  return text.ok() ? absl::StrCat("timeline: ", *text) : none(text.status());
}

}  // namespace slackline
