#include "common/keys/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/block/field_origins.h"
#include "common/config/parse_text.h"
#include "common/config/shell_line.h"
#include "common/io/descriptor.h"
#include "common/keys/private_file.h"
#include "common/status.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeyBytesMax = size_t{16} << 10;

absl::Status CallFailed(const std::string& path, const char* call, int error) {
  return PrivateFileError(absl::StrCat("key file ", path), call, error);
}

// `what` as in "secret".
absl::Status TakeHex(const std::string& name, const char* what,
                     const std::string& hex, Secret* secret) {
  if (Secret::FromHex(hex, secret)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", what, ": ", hex.empty() ? "is missing" : "is no",
                   hex.empty() ? "; " : " ", 2 * Secret::kBytes,
                   " hexadecimal digits", hex.empty() ? " are required" : ""));
}

Secret SecretOf(const std::string& hex) {
  Secret secret({});
  SL_CHECK(Secret::FromHex(hex, &secret), "a key that was checked");
  return secret;
}

keys::Key::Role ProtoRole(Role role) {
  switch (role) {
    case Role::kServer:
      return keys::Key::SERVER;
    case Role::kWorker:
      return keys::Key::WORKER;
    case Role::kOperator:
      return keys::Key::OPERATOR;
    case Role::kReader:
      break;
  }
  return keys::Key::READER;
}

// In the year 9999.
constexpr int64_t kNextFromMax = 253'370'764'800;

// When the successor begins.
std::string TimeText(const keys::Key& key) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                          absl::FromUnixSeconds(key.next_from()),
                          absl::UTCTimeZone());
}

}  // namespace

namespace {

// One that has no successor. `name` also says which of the two.
absl::Status CheckKey(const keys::Key& key, const std::string& name) {
  Secret secret({});
  SL_RETURN_IF_ERROR(TakeHex(name, "secret", key.secret(), &secret));
  if (key.role() == keys::Key::ALL) return absl::OkStatus();
  if (key.job().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": job: is missing; a role is one in a job"));
  }
  SL_RETURN_IF_ERROR(TakeHex(name, "server", key.server(), &secret));
  if (key.role() == keys::Key::WORKER)
    SL_RETURN_IF_ERROR(TakeHex(name, "ring", key.ring(), &secret));
  if (key.has_rank() && (key.role() != keys::Key::WORKER || key.rank() < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": rank: is ", key.rank(), " of a ",
                     keys::Key::Role_Name(key.role()),
                     "; workers alone have one, from 0 on"));
  }
  if (key.role() == keys::Key::SERVER) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": role: is SERVER; a server needs the key of the whole job"));
  }
  return absl::OkStatus();
}

// What a process makes of one key, without its successor.
using KeyMaker = absl::FunctionRef<absl::StatusOr<keys::Key>(const keys::Key&)>;
absl::StatusOr<keys::Key> MadeOfBoth(const keys::Key& key, KeyMaker make) {
  SL_ASSIGN_OR_RETURN(keys::Key made, make(key));
  if (key.has_next()) {
    SL_ASSIGN_OR_RETURN(*made.mutable_next(), make(key.next()));
    made.set_next_from(key.next_from());
  }
  return made;
}

}  // namespace

absl::StatusOr<keys::Key> ParseKey(const std::string& text,
                                   const std::string& name) {
  keys::Key key;
  FieldOrigins origins(name);
  SL_RETURN_IF_ERROR(ParseConfigText(text, name, &key, &origins));
  SL_RETURN_IF_ERROR(CheckKey(key, name));
  if (!key.has_next()) {
    if (key.next_from() == 0) return key;
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": next_from: is there, and next is not; both belong together"));
  }
  const keys::Key& next = key.next();
  SL_RETURN_IF_ERROR(CheckKey(next, absl::StrCat(name, ": next")));
  if (next.has_next() || next.job() != key.job() || next.role() != key.role() ||
      next.has_rank() != key.has_rank() || next.rank() != key.rank()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": next: ",
        next.has_next() ? "has a successor itself, which is one too many"
                        : "is of another job, role or rank than what it "
                          "follows"));
  }
  if (key.next_from() < 1 || key.next_from() > kNextFromMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": next_from: is ", key.next_from(),
        "; seconds since 1970 are required, from 1 to ", kNextFromMax));
  }
  return key;
}

absl::StatusOr<keys::Key> ReadKeyFile(const std::string& path) {
  SL_ASSIGN_OR_RETURN(
      const std::string text,
      ReadPrivateFile({.name = absl::StrCat("key file ", path),
                       .path = path,
                       .bytes_max = kKeyBytesMax,
                       .if_read = "make a new one if others may have read it "
                                  "(slackline keys init --force)"}));
  return ParseKey(text, absl::StrCat("key file ", path));
}

std::string KeyFileMark(const std::string& path) {
  // Network file systems say anew of a file that is opened how it is.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (file.get() < 0 || fstat(file.get(), &about) != 0) return "";
  return absl::StrCat(about.st_dev, " ", about.st_ino, " ", about.st_size, " ",
                      about.st_mode, " ", about.st_mtim.tv_sec, " ",
                      about.st_mtim.tv_nsec);
}

std::string KeyText(const keys::Key& key) {
  std::string text = absl::StrCat(
      "# A key of Slackline. Whoever has it can ",
      key.role() == keys::Key::READER
          ? "look at the job"
          : (key.role() == keys::Key::OPERATOR ? "look at the job and order it"
                                               : "take part in the job"),
      ": keep it to yourself.\n");
  const auto line = [&text](const char* field, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, field, ": \"", value, "\"\n");
  };
  const auto lines = [&](const keys::Key& of) {
    line("job", of.job());
    if (of.role() != keys::Key::ALL)
      absl::StrAppend(&text, "role: ", keys::Key::Role_Name(of.role()), "\n");
    line("secret", of.secret());
    line("server", of.server());
    line("ring", of.ring());
    if (of.has_rank()) absl::StrAppend(&text, "rank: ", of.rank(), "\n");
  };
  lines(key);
  if (key.has_next()) {
    absl::StrAppend(&text, "# From ", TimeText(key), " on:\nnext {\n");
    lines(key.next());
    absl::StrAppend(&text, "}\nnext_from: ", key.next_from(), "\n");
  }
  return text;
}

namespace {

// `lasts`: it is there after a power cut, too, which takes some milliseconds.
absl::Status WriteFile(const std::string& path, const keys::Key& key,
                       bool replace, bool lasts) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::exists(folder, error)) {
    fs::create_directories(folder, error);
    if (error) return CallFailed(path, "make its folder", error.value());
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  // A name that is not looked at until it is complete.
  std::string partial =
      (folder /
       absl::StrCat(".", fs::path(path).filename().string(), "-XXXXXX"))
          .string();
  const Descriptor file(mkostemp(partial.data(), O_CLOEXEC));  // Mode 600.
  if (file.get() < 0) return CallFailed(path, "create", errno);
  const std::string text = KeyText(key);
  const auto give_name = [&] {
    if (replace) return rename(partial.c_str(), path.c_str()) == 0;
    if (link(partial.c_str(), path.c_str()) == 0) return true;
    // File systems without hard links; some have this.
    return (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK) &&
           renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(),
                     RENAME_NOREPLACE) == 0;
  };
  const ssize_t bytes = write(file.get(), text.data(), text.size());
  const bool fits = bytes == static_cast<ssize_t>(text.size());
  const bool written =
      fits && (!lasts || fsync(file.get()) == 0) && give_name();
  // A write that ends early has no errno.
  const int failure = bytes >= 0 && !fits ? ENOSPC : errno;
  unlink(partial.c_str());
  return written ? absl::OkStatus() : CallFailed(path, "write", failure);
}

}  // namespace

absl::Status WriteKeyFile(const std::string& path, const keys::Key& key,
                          bool replace) {
  return WriteFile(path, key, replace, /*lasts=*/true);
}

absl::StatusOr<TemporaryKeyFile> TemporaryKeyFile::Write(
    const std::string& path, const keys::Key& key) {
  SL_RETURN_IF_ERROR(WriteFile(path, key, /*replace=*/true, /*lasts=*/false));
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) return CallFailed(path, "stat", errno);
  TemporaryKeyFile file(path, about.st_dev, about.st_ino);
  const absl::Status readable = ReadKeyFile(path).status();
  if (readable.ok()) return file;
  return absl::FailedPreconditionError(absl::StrCat(
      readable.message(),
      ". It was just written there: this file system does not keep files from "
      "others. Choose a folder on another one (--out)"));
}

TemporaryKeyFile::~TemporaryKeyFile() {
  struct stat about {};
  if (!path_.empty() && lstat(path_.c_str(), &about) == 0 &&
      about.st_dev == device_ && about.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

keys::Key NewUserKey() {
  keys::Key key;
  key.set_secret(Secret::Random().ToHex());
  return key;
}

absl::StatusOr<keys::Key> ReadOrMakeUserKey(const std::string& path) {
  absl::StatusOr<keys::Key> key = ReadKeyFile(path);
  if (!absl::IsNotFound(key.status())) return key;
  const absl::Status made = WriteKeyFile(path, NewUserKey());
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return ReadKeyFile(path);
}

namespace {

absl::StatusOr<keys::Key> OneJobKeyOf(const keys::Key& key,
                                      const std::string& job,
                                      const std::string& name) {
  if (key.role() != keys::Key::ALL) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": holds what one role (", keys::Key::Role_Name(key.role()),
        ") has of job '", key.job(),
        "'; the key of the job or of its user is "
        "needed here"));
  }
  if (!key.job().empty() && key.job() != job) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": is the key of job '", key.job(), "', not of '", job, "'"));
  }
  keys::Key of_job;
  of_job.set_job(job);
  of_job.set_secret(key.job().empty()
                        ? JobSecret(SecretOf(key.secret()), job).ToHex()
                        : key.secret());
  return of_job;
}

absl::StatusOr<keys::Key> OneRoleKeyOf(const keys::Key& key,
                                       const std::string& job,
                                       const KeyHolder& holder,
                                       const std::string& name) {
  SL_ASSIGN_OR_RETURN(const keys::Key of_job, OneJobKeyOf(key, job, name));
  const Credentials held = CredentialsOf(SecretOf(of_job.secret()), holder);
  keys::Key of_role;
  of_role.set_job(job);
  of_role.set_role(ProtoRole(holder.role));
  if (holder.rank.has_value())
    of_role.set_rank(static_cast<int32_t>(*holder.rank));
  of_role.set_secret(held.own.ToHex());
  of_role.set_server(Secret(held.server).ToHex());
  if (held.ring.has_value()) of_role.set_ring(held.ring->ToHex());
  return of_role;
}

// Whose a role's key is.
KeyHolder HolderOf(const keys::Key& key) {
  KeyHolder holder = Role::kReader;
  for (const Role role : {Role::kServer, Role::kWorker, Role::kOperator})
    if (key.role() == ProtoRole(role)) holder.role = role;
  if (key.has_rank()) holder.rank = Rank{key.rank()};
  return holder;
}

absl::StatusOr<Credentials> CredentialsFrom(const keys::Key& key,
                                            const std::string& job,
                                            const KeyHolder& wanted,
                                            const std::string& name,
                                            int workers) {
  if (key.role() == keys::Key::ALL) {
    SL_ASSIGN_OR_RETURN(const keys::Key of_job, OneJobKeyOf(key, job, name));
    return CredentialsOf(SecretOf(of_job.secret()), wanted, workers);
  }
  if (key.job() != job) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": is of job '", key.job(), "', not of '", job, "'"));
  }
  const KeyHolder holder = HolderOf(key);
  // A command that may order is given a reader's key: then it looks.
  const bool looks =
      wanted.role == Role::kOperator && holder.role == Role::kReader;
  const bool of_another = holder.rank.has_value() && holder != wanted;
  if ((holder.role != wanted.role && !looks) || of_another) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": holds what ", holder.ToString(),
        " has of the job, and this process is to be ", wanted.ToString()));
  }
  const Secret own = SecretOf(key.secret());
  const PublicKey server = SecretOf(key.server()).bytes();
  if (holder.role == Role::kWorker)
    return WorkerCredentials(holder, own, server, SecretOf(key.ring()));
  return Credentials{.holder = holder, .own = own, .server = server};
}

}  // namespace

absl::StatusOr<keys::Key> JobKeyOf(const keys::Key& key, const std::string& job,
                                   const std::string& name) {
  return MadeOfBoth(
      key, [&](const keys::Key& one) { return OneJobKeyOf(one, job, name); });
}

absl::StatusOr<keys::Key> RoleKeyOf(const keys::Key& key,
                                    const std::string& job,
                                    const KeyHolder& holder,
                                    const std::string& name) {
  return MadeOfBoth(key, [&](const keys::Key& one) {
    return OneRoleKeyOf(one, job, holder, name);
  });
}

absl::StatusOr<KeyPlan> KeyPlanFrom(const keys::Key& key,
                                    const std::string& job,
                                    const KeyHolder& holder,
                                    const std::string& name, int workers) {
  SL_ASSIGN_OR_RETURN(Credentials first,
                      CredentialsFrom(key, job, holder, name, workers));
  KeyPlan plan = {.first = std::move(first)};
  if (!key.has_next()) return plan;
  SL_ASSIGN_OR_RETURN(plan.next,
                      CredentialsFrom(key.next(), job, holder, name, workers));
  plan.next_from = absl::FromUnixSeconds(key.next_from());
  return plan;
}

absl::StatusOr<keys::Key> WithNewKey(const keys::Key& key, absl::Time now,
                                     absl::Time from) {
  if (key.role() != keys::Key::ALL) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is what one role (", keys::Key::Role_Name(key.role()),
        ") has of the key of job '", key.job(),
        "'; exchange that key, or its user's, and export it again"));
  }
  if (key.has_next() && absl::FromUnixSeconds(key.next_from()) > now) {
    return absl::FailedPreconditionError(
        absl::StrCat("this key is exchanged already, at ", TimeText(key),
                     "; another exchange can follow then"));
  }
  keys::Key with_new = key.has_next() ? key.next() : key;
  keys::Key& next = *with_new.mutable_next();
  next.set_job(with_new.job());
  next.set_secret(Secret::Random().ToHex());
  with_new.set_next_from(absl::ToUnixSeconds(from));
  return with_new;
}

}  // namespace slackline
