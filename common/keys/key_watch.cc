#include "common/keys/key_watch.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/keys/key_file.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

}  // namespace

KeyWatch::KeyWatch(const KeySource& source, Say say)
    : process_(getpid()),
      source_(source),
      say_(std::move(say)),
      keys_(std::make_shared<LiveKeys>(source.plan, absl::Now())),
      said_from_(keys_->NextFrom()) {
  // Signals are for other threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  waiting_->thread = std::thread(&KeyWatch::Run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

KeyWatch::~KeyWatch() {
  if (getpid() != process_) {
    (void)waiting_.release();
    return;
  }
  {
    const MutexLock lock(waiting_->mutex);
    waiting_->ends = true;
  }
  waiting_->wake.notify_all();
  waiting_->thread.join();
}

void KeyWatch::Run() {
  NameThisThread("key follower");
  while (true) {
    Look();
    const absl::Time now = absl::Now();
    if (keys_->Advance(now)) {
      // What the file says may build on the keys that count from now on.
      seen_.clear();
      if (say_) say_(false, "the keys of the job have been exchanged");
      continue;
    }
    const absl::Duration wait =
        std::clamp(keys_->NextFrom() - now, absl::ZeroDuration(), kLookEvery);
    MutexLock lock(waiting_->mutex);
    if (!waiting_->ends) lock.WaitUntil(waiting_->wake, SteadyDeadline(wait));
    if (waiting_->ends) return;
  }
}

void KeyWatch::Look() {
  const std::string mark = KeyFileMark(source_.file);
  if (mark.empty() || mark == seen_) return;
  std::string wrong;
  const auto plan = [&]() -> absl::StatusOr<KeyPlan> {
    const absl::StatusOr<keys::Key> key = ReadKeyFile(source_.file);
    if (!key.ok()) return key.status();
    return KeyPlanFrom(*key, source_.job, source_.holder,
                       absl::StrCat("key file ", source_.file),
                       source_.workers);
  }();
  if (!plan.ok()) {
    wrong = std::string(plan.status().message());
  } else if (!keys_->Adopt(*plan)) {
    wrong = absl::StrCat(
        "key file ", source_.file,
        " has another key, which does not say from when on it counts");
  } else {
    const absl::Time from = keys_->NextFrom();
    if (from != said_from_ && from != absl::InfiniteFuture() && say_) {
      say_(false, absl::StrCat("the keys of the job will be exchanged at ",
                               absl::FormatTime("%H:%M:%S UTC", from,
                                                absl::UTCTimeZone())));
    }
    said_from_ = from;
  }
  // A file in the midst of being written is looked at again.
  if (wrong.empty()) seen_ = mark;
  if (!wrong.empty() && wrong != said_ && say_) {
    say_(true, absl::StrCat(wrong,
                            "; this process goes on with the key that it has "
                            "(`slackline keys rotate` exchanges the key of "
                            "jobs that run)"));
  }
  said_ = wrong;
}

}  // namespace slackline
