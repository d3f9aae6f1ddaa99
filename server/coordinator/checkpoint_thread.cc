#include "server/coordinator/checkpoint_thread.h"

#include <utility>

#include "common/checkpoint/checkpoint_folder.h"

namespace slackline {

CheckpointThread::CheckpointThread(Options options)
    : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

CheckpointThread::~CheckpointThread() { Finish(); }

void CheckpointThread::Complete(int32_t cut, checkpoint::Manifest manifest) {
  Add({.cut = cut, .manifest = std::move(manifest)});
}

void CheckpointThread::Remove(int32_t cut) {
  Add({.cut = cut, .manifest = std::nullopt});
}

void CheckpointThread::Add(Task task) {
  {
    const MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

std::vector<CheckpointThread::Result> CheckpointThread::TakeResults() {
  const MutexLock lock(mutex_);
  return std::exchange(results_, {});
}

void CheckpointThread::Finish() {
  {
    const MutexLock lock(mutex_);
    finishing_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CheckpointThread::Run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!finishing_ && tasks_.empty()) lock.Wait(changed_);
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    if (task.manifest.has_value()) {
      absl::StatusOr<std::string> folder = CompleteCheckpoint(
          options_.root, options_.run, task.cut, *task.manifest, options_.keep);
      {
        const MutexLock again(mutex_);
        results_.push_back({.cut = task.cut, .folder = std::move(folder)});
      }
      if (options_.on_result) options_.on_result();
    } else {
      RemovePartial(options_.root, options_.run, task.cut);
    }
    lock.Lock();
  }
}

}  // namespace slackline
