// FileStateStore: the state of a coordinator in a file, which a coordinator
// that is started again on the same host, or with the same disk, goes on from.
//
// The file is a log: a header, then a batch for each Commit() with its length
// and checksums. So a Commit() costs one write and one sync, however much the
// state holds. A log that has become much longer than what it holds is written
// anew, as an AtomicFile. proto/state_batch.proto has the format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// What the file holds, without a lock and without a change to the file. A last
// batch that is not all there is left out: whoever wrote it died before
// Commit() returned. NotFound: there is no file. DataLoss names the file and
// the offset of anything else that is not as a FileStateStore writes it.
absl::StatusOr<CoordinatorState> ReadStateFile(const std::string& path);

class FileStateStore : public StateStore {
 public:
  // Create() begins with an empty state and replaces the file that is there,
  // of which it reads nothing; Open() goes on with the state that the file
  // holds, and its errors are also those of ReadStateFile(). The folder has to
  // be there.
  //
  // One store at a time, of all processes, has the file: by a lock on the file
  // `path`.lock, which stays when the store is gone. FailedPrecondition names
  // the process that has it. A file system without locks keeps nobody away:
  // then the store has no lock, and one whose file another one has replaced
  // finds it out before its next commit. Other errors name file, call and
  // reason.
  static absl::StatusOr<std::unique_ptr<FileStateStore>> Create(
      const std::string& path);
  static absl::StatusOr<std::unique_ptr<FileStateStore>> Open(
      const std::string& path);
  bool has_lock() const { return has_lock_; }
  // The state with all commits that have succeeded.
  const CoordinatorState& state() const { return state_; }

  // Errors name file, call and reason; ResourceExhausted: no space, or more
  // than kStateBytesMax. After one, every later call returns the same. The
  // file has all batches before the one that failed. One that somebody has
  // removed is written anew.
  absl::Status Commit(const std::vector<StateChange>& changes) override;
  // FailedPrecondition: another store has replaced the file.
  absl::Status AwaitLead() override;

 private:
  FileStateStore(std::string path, Descriptor lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  static absl::StatusOr<std::unique_ptr<FileStateStore>> Lock(
      const std::string& path);
  absl::Status Append(const std::vector<StateChange>& changes);
  absl::Status Rewrite();

  const std::string path_;
  const Descriptor lock_;
  bool has_lock_ = true;
  Descriptor file_;
  int64_t bytes_ = 0;          // Of the file.
  int64_t rewrite_above_ = 0;  // The file is rewritten if bytes_ is above.
  CoordinatorState state_;
  absl::Status failed_;
};

}  // namespace slackline
