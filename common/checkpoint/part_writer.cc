#include "common/checkpoint/part_writer.h"

#include <utility>

#include "common/checkpoint/part_file.h"

namespace slackline {

PartWriter::PartWriter() {
  thread_ = std::thread([this] { Run(); });
}

PartWriter::~PartWriter() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PartWriter::Write(Job job) {
  {
    const MutexLock lock(mutex_);
    std::erase_if(jobs_,
                  [&](const Job& other) { return other.folder != job.folder; });
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void PartWriter::Run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && jobs_.empty()) lock.Wait(changed_);
    if (stopping_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.Unlock();
    const absl::StatusOr<checkpoint::Part> part =
        WritePart(job.folder, job.file, job.shards);
    // Whoever trains may write to these tensors again.
    job.shards.clear();
    lock.Lock();
    if (stopping_) return;
    lock.Unlock();
    if (job.done) job.done(part);
    lock.Lock();
  }
}

}  // namespace slackline
