// What a process of a job holds of the job's keys, and whom it lets in.
//
// A job has one secret. Of it are made: a key pair (Curve25519) for each role,
// one for each worker, and the secret that workers share among themselves.
// Servers know all of it, since any of them may become the coordinator and
// admits others. A worker, an operator or a reader can be given its own part
// alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/keys/key_holder.h"
#include "common/keys/secret.h"

namespace slackline {

using PublicKey = Secret::Bytes;

// Of Curve25519 (RFC 7748).
PublicKey PublicKeyOf(const Secret& secret);

// The secret of a job, of that of its user.
Secret JobSecret(const Secret& user, const std::string& job);

struct Credentials {
  KeyHolder holder = Role::kReader;
  Secret own;  // Of the pair that servers see of this process.
  PublicKey server{};
  // The secret of the workers' all-reduce. Operators and readers have neither
  // this nor `door`.
  std::optional<Secret> ring = std::nullopt;
  // The secret of the pair that all workers show where they listen, and to
  // workers that do. Made of `ring`; opens nothing at servers.
  std::optional<Secret> door = std::nullopt;
  // Servers: what the keys of single workers are made of, and how many workers
  // the job may have.
  std::optional<Secret> job = std::nullopt;
  int workers = 0;

  // The pair of a listener of this process, and that for a connection to a
  // listener of the role, whose public key follows. A listener of workers: this
  // process is a worker or a server.
  const Secret& ToListen() const;
  const Secret& ToConnect(Role listener) const;
  PublicKey ListenerKey(Role listener) const;
};

// `workers`: as in Credentials, of a server.
Credentials CredentialsOf(const Secret& job, const KeyHolder& holder,
                          int workers = 0);
// Of a worker that has been given its part: its own secret and that of all
// workers.
Credentials WorkerCredentials(const KeyHolder& holder, const Secret& own,
                              const PublicKey& server, const Secret& ring);

// Whom the listeners of a process let in, by the key that a peer shows.
// Thread-compatible.
class Admission {
 public:
  explicit Admission(const Credentials& credentials);

  // Whose the key is; nullopt: nobody's who is let in. The keys of single
  // workers are made here when a key is none of those made so far, one scalar
  // product for each, so a stranger has all of them made, once.
  std::optional<KeyHolder> HolderOf(const PublicKey& key);

 private:
  const std::optional<Secret> job_;
  const int workers_;
  int made_ = 0;  // Of workers_.
  std::map<PublicKey, KeyHolder> admits_;
};

// What a process holds, and what it holds in place of that from a time on.
struct KeyPlan {
  Credentials first;
  std::optional<Credentials> next = std::nullopt;
  absl::Time next_from = absl::InfiniteFuture();  // Of the world's clock.
};

}  // namespace slackline
