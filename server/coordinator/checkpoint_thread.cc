#include "server/coordinator/checkpoint_thread.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/mutex.h"
#include "common/thread_name.h"

namespace slackline {

struct CheckpointThread::Shared {
  explicit Shared(const Options& options)
      : keeper(options.root, options.lineage, options.best),
        leads(options.leads) {}
  // Any thread.
  bool MayChange() const { return !gone.load() && leads(); }

  BestKeeper keeper;  // The thread's own.
  const std::function<bool()> leads;
  std::atomic<bool> gone{false};
  Mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  std::string doing ABSL_GUARDED_BY(mutex);
  News news ABSL_GUARDED_BY(mutex);
  std::function<void()> on_news ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
};

CheckpointThread::CheckpointThread(Options options)
    : options_(std::move(options)),
      shared_(std::make_shared<Shared>(options_)) {
  {
    const MutexLock lock(shared_->mutex);
    shared_->on_news = options_.on_news;
  }
  thread_ = std::thread([shared = shared_] { Run(shared); });
}

CheckpointThread::~CheckpointThread() {
  bool idle = false;
  {
    const MutexLock lock(shared_->mutex);
    shared_->gone.store(true);
    shared_->ending = true;
    shared_->on_news = nullptr;
    idle = shared_->tasks.empty() && shared_->doing.empty();
    shared_->tasks.clear();
  }
  shared_->changed.notify_one();
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void CheckpointThread::Complete(int32_t cut, checkpoint::Manifest manifest) {
  // The thread has what it shares for as long as it performs this.
  const auto complete = [root = options_.root, run = options_.run,
                         keep = options_.keep, cut, manifest,
                         shared = shared_.get()](BestKeeper* keeper,
                                                 News* news) {
    news->results.push_back({.cut = cut,
                             .folder = CompleteCheckpoint(
                                 root, run, cut, manifest, keep, keeper,
                                 [shared] { return shared->MayChange(); })});
  };
  Add({.what = absl::StrCat("completing the checkpoint of step ",
                            manifest.clock(), " in ", options_.root),
       .perform = complete,
       .completes = true});
}

void CheckpointThread::Remove(int32_t cut) {
  Add({.what = absl::StrCat("removing parts from ", options_.root),
       .perform = [root = options_.root, run = options_.run, cut](
                      BestKeeper*, News*) { RemovePartial(root, run, cut); }});
}

void CheckpointThread::KeepBest(run::BestCheckpoint evaluation) {
  Add({.what = absl::StrCat("writing ", options_.root, "/", kBestFile),
       .perform = [evaluation = std::move(evaluation)](BestKeeper* keeper,
                                                       News*) {
         keeper->Keep(evaluation);
       }});
}

void CheckpointThread::Add(Task task) {
  {
    const MutexLock lock(shared_->mutex);
    shared_->tasks.push_back(std::move(task));
  }
  shared_->changed.notify_one();
}

CheckpointThread::News CheckpointThread::TakeNews() {
  const MutexLock lock(shared_->mutex);
  return std::exchange(shared_->news, {});
}

std::string CheckpointThread::Doing() const {
  const MutexLock lock(shared_->mutex);
  if (!shared_->doing.empty()) return shared_->doing;
  return shared_->tasks.empty() ? "" : shared_->tasks.front().what;
}

void CheckpointThread::Run(const std::shared_ptr<Shared>& shared) {
  NameThisThread("checkpoints");
  BestKeeper& keeper = shared->keeper;
  MutexLock lock(shared->mutex);
  while (true) {
    while (!shared->ending && shared->tasks.empty()) lock.Wait(shared->changed);
    if (shared->tasks.empty()) return;
    const Task task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
    shared->doing = task.what;
    lock.Unlock();
    const std::string before =
        keeper.best().has_value() ? keeper.best()->SerializeAsString() : "";
    News news;
    // What is completed says why it is not.
    if (task.completes || shared->MayChange()) task.perform(&keeper, &news);
    if (keeper.best().has_value() &&
        keeper.best()->SerializeAsString() != before) {
      news.best = keeper.best();
      if (!keeper.error().ok())
        news.warnings.emplace_back(keeper.error().message());
    }
    lock.Lock();
    std::move(news.results.begin(), news.results.end(),
              std::back_inserter(shared->news.results));
    std::move(news.warnings.begin(), news.warnings.end(),
              std::back_inserter(shared->news.warnings));
    if (news.best.has_value()) shared->news.best = std::move(news.best);
    shared->doing.clear();
    if (shared->on_news) shared->on_news();
  }
}

}  // namespace slackline
