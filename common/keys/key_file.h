// Files with keys: text of proto/keys.proto, which nobody but their owner reads.
//
// A user has one, of which the key of each of his jobs is made; so whoever
// starts a job, joins it or asks after it needs no other. A host that is not to
// know that one gets the key of the job, and a process that is not to know even
// that one gets what its role holds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/keys/credentials.h"
#include "common/keys/role.h"
#include "proto/keys.pb.h"

namespace slackline {

// Reads a key file. NotFound: there is none. FailedPrecondition: others can
// read it, or it belongs to somebody else; the error has the command that mends
// it. InvalidArgument: it is no key file; the error says where and why.
absl::StatusOr<keys::Key> ReadKeyFile(const std::string& path);

// As ReadKeyFile() of such text; `name` is what errors call it.
absl::StatusOr<keys::Key> ParseKey(const std::string& text,
                                   const std::string& name);

// Writes a new file that nobody else can read, with the folders that it needs.
// AlreadyExists: there is one, which is left as it is.
absl::Status WriteKeyFile(const std::string& path, const keys::Key& key);

std::string KeyText(const keys::Key& key);

// The user's own, made here if there is none: two who make it at the same time
// get the same. Errors as of ReadKeyFile(), or why it cannot be written.
absl::StatusOr<keys::Key> ReadOrMakeUserKey(const std::string& path);

keys::Key NewUserKey();

// Of a user's or the job's own key: the job's, or what the role in it holds.
// InvalidArgument: the key is another job's, or a role's alone; `name` is what
// errors call it.
absl::StatusOr<keys::Key> JobKeyOf(const keys::Key& key, const std::string& job,
                                   const std::string& name);
absl::StatusOr<keys::Key> RoleKeyOf(const keys::Key& key,
                                    const std::string& job, Role role,
                                    const std::string& name);

// What a process with this key holds in that role of the job. Errors as above.
absl::StatusOr<Credentials> CredentialsFrom(const keys::Key& key,
                                            const std::string& job, Role role,
                                            const std::string& name);

}  // namespace slackline
