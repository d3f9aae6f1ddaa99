#include "common/checkpoint/part_writer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/checkpoint/part_file.h"
#include "common/thread_name.h"

namespace slackline {

PartWriter::PartWriter(absl::Duration end_wait_max)
    : end_wait_max_(end_wait_max) {
  thread_ = std::thread([shared = shared_] { Run(shared); });
}

PartWriter::~PartWriter() {
  const auto deadline = SteadyDeadline(end_wait_max_);
  std::string hangs;
  {
    MutexLock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->jobs.clear();
    shared_->changed.notify_all();
    bool in_time = true;
    while (!shared_->ended && (in_time || shared_->telling)) {
      if (shared_->telling) {
        lock.Wait(shared_->changed);
      } else {
        in_time = lock.WaitUntil(shared_->changed, deadline);
      }
    }
    if (!shared_->ended) hangs = shared_->writing;
  }
  if (hangs.empty()) {
    thread_.join();
    return;
  }
  spdlog::error(
      "checkpoint: the disk has not written a file in {} for {}; its write is "
      "left behind",
      hangs, absl::FormatDuration(end_wait_max_));
  thread_.detach();
}

void PartWriter::Write(Job job) {
  std::string folder = job.folder;
  Add({.folder = std::move(folder),
       .write = [job = std::move(job)]() mutable -> std::function<void()> {
         const absl::StatusOr<checkpoint::Part> part =
             WritePart(job.folder, job.file, job.shards);
         // Whoever trains may write to these tensors again.
         job.shards.clear();
         return [done = std::move(job.done), part] {
           if (done) done(part);
         };
       }});
}

void PartWriter::Write(KeptJob job) {
  std::string folder = job.folder;
  Add({.folder = std::move(folder),
       .write = [job = std::move(job)]() mutable -> std::function<void()> {
         const absl::StatusOr<checkpoint::Kept> kept =
             WriteKept(job.folder, job.rank, job.state);
         return [done = std::move(job.done), kept] {
           if (done) done(kept);
         };
       }});
}

void PartWriter::Add(Work work) {
  {
    const MutexLock lock(shared_->mutex);
    std::erase_if(shared_->jobs, [&](const Work& other) {
      return other.folder != work.folder;
    });
    shared_->jobs.push_back(std::move(work));
  }
  shared_->changed.notify_all();
}

void PartWriter::Run(const std::shared_ptr<Shared>& shared) {
  NameThisThread("part writer");
  MutexLock lock(shared->mutex);
  while (true) {
    while (!shared->stopping && shared->jobs.empty())
      lock.Wait(shared->changed);
    if (shared->stopping) break;
    std::function<void()> tell;
    {
      Work work = std::move(shared->jobs.front());
      shared->jobs.pop_front();
      shared->writing = work.folder;
      lock.Unlock();
      tell = work.write();
    }
    lock.Lock();
    shared->writing.clear();
    if (shared->stopping) break;
    shared->telling = true;
    lock.Unlock();
    tell();
    lock.Lock();
    shared->telling = false;
  }
  shared->ended = true;
  shared->changed.notify_all();
}

}  // namespace slackline
