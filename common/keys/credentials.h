// What a process of a job holds of the job's keys, and whom it lets in.
//
// A job has one secret. Of it are made: a key pair (Curve25519) for each role,
// and the secret of the workers' all-reduce. Servers know all of it, since any
// of them may become the coordinator and admits others. A worker, an operator
// or a reader can be given its own part alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/keys/role.h"
#include "common/keys/secret.h"

namespace slackline {

using PublicKey = Secret::Bytes;

// Of Curve25519 (RFC 7748).
PublicKey PublicKeyOf(const Secret& secret);

// The secret of a job, of that of its user.
Secret JobSecret(const Secret& user, const std::string& job);

struct Credentials {
  Role role = Role::kReader;
  Secret own;  // Of the role's key pair.
  PublicKey server{};
  PublicKey worker{};                         // Of workers, where they listen.
  std::optional<Secret> ring = std::nullopt;  // Not operators and readers.
  // Whom a listener of this process lets in.
  std::map<PublicKey, Role> admits = {};
};

Credentials CredentialsOf(const Secret& job, Role role);

// What a process holds, and what it holds in place of that from a time on.
struct KeyPlan {
  Credentials first;
  std::optional<Credentials> next = std::nullopt;
  absl::Time next_from = absl::InfiniteFuture();  // Of the world's clock.
};

}  // namespace slackline
