// Files with keys: text of proto/keys.proto, which nobody but their owner
// reads.
//
// A user has one, of which the key of each of his jobs is made; so whoever
// starts a job, joins it or asks after it needs no other. A host that is not to
// know that one gets the key of the job, and a process that is not to know even
// that one gets what its role holds.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/credentials.h"
#include "common/keys/key_holder.h"
#include "proto/keys.pb.h"

namespace slackline {

// Reads a key file. NotFound: there is none. FailedPrecondition: others can
// read it, or it belongs to somebody else; the error has the command that mends
// it. InvalidArgument: it is no key file; the error says where and why.
absl::StatusOr<keys::Key> ReadKeyFile(const std::string& path);

// Changes when the file does; empty: there is none.
std::string KeyFileMark(const std::string& path);

// As ReadKeyFile() of such text; `name` is what errors call it.
absl::StatusOr<keys::Key> ParseKey(const std::string& text,
                                   const std::string& name);

// Writes a file that nobody else can read, with the folders that it needs. It
// is there completely or not at all. AlreadyExists, if it is not to `replace`
// one: there is one, which is left as it is.
absl::Status WriteKeyFile(const std::string& path, const keys::Key& key,
                          bool replace = false);

// A key file that goes with this object, unless it is another one by then.
class TemporaryKeyFile {
 public:
  // In place of one that is there. FailedPrecondition: the file system cannot
  // keep it from others.
  static absl::StatusOr<TemporaryKeyFile> Write(const std::string& path,
                                                const keys::Key& key);
  TemporaryKeyFile(TemporaryKeyFile&& other) noexcept
      : path_(std::exchange(other.path_, "")),
        device_(other.device_),
        inode_(other.inode_) {}
  TemporaryKeyFile& operator=(TemporaryKeyFile&&) = delete;
  ~TemporaryKeyFile();

 private:
  TemporaryKeyFile(std::string path, dev_t device, ino_t inode)
      : path_(std::move(path)), device_(device), inode_(inode) {}

  std::string path_;  // Empty: it has been moved from.
  dev_t device_;
  ino_t inode_;
};

std::string KeyText(const keys::Key& key);

// The user's own, made here if there is none: two who make it at the same time
// get the same. Errors as of ReadKeyFile(), or why it cannot be written.
absl::StatusOr<keys::Key> ReadOrMakeUserKey(const std::string& path);

keys::Key NewUserKey();

// Of a user's or the job's own key: the job's, or what the holder has of it.
// InvalidArgument: the key is another job's, or a role's alone; `name` is what
// errors call it.
absl::StatusOr<keys::Key> JobKeyOf(const keys::Key& key, const std::string& job,
                                   const std::string& name);
absl::StatusOr<keys::Key> RoleKeyOf(const keys::Key& key,
                                    const std::string& job,
                                    const KeyHolder& holder,
                                    const std::string& name);

// What a process with this key holds that is to be `holder` in the job. A
// worker says its rank: the key may be of one worker, and is its own where all
// keys can be made of it. Of a server: the job has so many workers. Errors as
// of RoleKeyOf().
absl::StatusOr<KeyPlan> KeyPlanFrom(const keys::Key& key,
                                    const std::string& job,
                                    const KeyHolder& holder,
                                    const std::string& name, int workers = 0);

// The key that counts at `now`, with a new one from `from` on.
// InvalidArgument: it is not a user's or a job's. FailedPrecondition: the last
// exchange is still to come.
absl::StatusOr<keys::Key> WithNewKey(const keys::Key& key, absl::Time now,
                                     absl::Time from);

}  // namespace slackline
