#include "worker/collective/shm_collective.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/net/host_id.h"
#include "common/net/shm/shared_memory.h"
#include "common/net/shm/shm_socket.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "worker/collective/peer_watch.h"
#include "worker/collective/rendezvous.h"
#include "worker/collective/stream.h"

namespace slackline {
namespace {

constexpr size_t kBlockFloats = size_t{128} << 10;
constexpr int kPlaces = 2;
// Up to so many floats, and with two ranks, each rank sums all of a block: it
// reads more, and waits once instead of twice.
constexpr size_t kWholeFloatsMax = size_t{8} << 10;
// Parts begin at cache lines.
constexpr size_t kPartUnit = 16;
// Who sleeps looks so often whether it is to go on.
constexpr absl::Duration kSleepMax = absl::Milliseconds(10);

// What a rank does with a block, one after the other.
enum Stage { kCopied, kSummed, kTaken, kStages };

// The memory of a rank. Zeros at first.
struct Desk {
  // Blocks so far, modulo 2^32, at which others sleep.
  struct alignas(64) Count {
    std::atomic<uint32_t> blocks;
  };
  Count counts[kStages];
  // For which count of which rank this one sleeps: SleepCode(); 0: it does not.
  alignas(64) std::atomic<uint32_t> sleeps;
  alignas(4096) float places[kPlaces][kBlockFloats];
};

uint32_t SleepCode(int rank, Stage stage) {
  return static_cast<uint32_t>(rank) * kStages + stage + 1;
}

// What both say first when they have connected.
struct Greeting {
  static constexpr int32_t kKind = 0x536c416c;
  int32_t kind = kKind;
  int32_t rank = 0;
};

// What each then says of all others' memory; anything else is why not.
constexpr char kAllMapped[] = "mapped";
constexpr size_t kReasonBytesMax = 512;

// What a rank stores for the others: where it can be reached.
std::string AddressText(const std::string& name) {
  return absl::StrCat(sizeof(Desk), " ", geteuid(), " ", name, " ", HostId());
}

struct Address {
  size_t desk_bytes = 0;
  uint32_t uid = 0;
  std::string name;  // Empty: it has no memory to share.
  std::string host_id;
};

absl::StatusOr<Address> ParseAddress(const std::string& text, int rank) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::MaxSplits(' ', 3));
  Address address;
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &address.desk_bytes) ||
      !absl::SimpleAtoi(words[1], &address.uid)) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " stored ", text.size(),
        " bytes that are no address of shared memory; run the same build "
        "everywhere"));
  }
  address.name = words[2];
  address.host_id = words[3];
  return address;
}

absl::Status CannotShare(int rank, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", rank, " cannot share memory with the others: ", why));
}

class ShmMesh final : public Mesh {
 public:
  explicit ShmMesh(const GroupOptions& options)
      : rank_(static_cast<int>(options.rank)),
        world_size_(options.world_size),
        timeout_(options.timeout),
        peers_(static_cast<size_t>(std::max(options.world_size, 1))) {}

  absl::Status Join(const GroupOptions& options) override;

  absl::Status BeginWatch() override { return absl::OkStatus(); }
  absl::Status Run(const Operation& operation, int64_t number) override;
  void SayGoodbye() override { watch_->SayGoodbye(); }
  void GiveUp() override { watch_->GiveUp(); }
  absl::Status AwaitLoss() override { return watch_->AwaitLoss(); }
  void EndWatch() override { watch_->EndWatch(); }
  void Interrupt() override { interrupted_.store(true); }

 private:
  struct Peer {
    Descriptor socket;  // Until all have connected.
    bool met = false;   // It has said who it is, and given its memory.
    SharedMemory memory;
  };
  // Why an operation cannot go on.
  struct Obstacle {
    bool late = false;
    int rank = 0;  // That is waited for.
  };

  absl::Status CreateDesk(std::string* name);
  absl::Status Connect(const std::vector<Address>& addresses,
                       const Rendezvous& rendezvous);
  // Tells the peer which rank this is, and gives it this rank's memory.
  bool Greet(const Descriptor& socket) const;
  // Of a socket that has a packet: whose it is. Nullopt: of nobody.
  std::optional<int> TakeGreeting(const Descriptor& socket,
                                  const std::vector<Address>& addresses);
  // Tells all whether this rank has mapped the memory of all, and hears it of
  // them, so that all ranks find the same. FailedPrecondition: one has not.
  absl::Status CompareMappings(const Rendezvous& rendezvous);

  const Desk& DeskOf(int rank) const {
    return rank == rank_ ? *desk_
                         : *reinterpret_cast<const Desk*>(
                               peers_[static_cast<size_t>(rank)].memory.data());
  }
  // This rank has come to the end of a stage of the block.
  void Done(Stage stage);
  // Until `rank` has done `blocks` of them. False: see obstacle_.
  bool Await(int rank, Stage stage, uint32_t blocks);
  bool AwaitAll(Stage stage, uint32_t blocks);
  bool AllReduce(absl::Span<float> data);
  bool Broadcast(absl::Span<float> data, int root);
  // The sum of floats [begin, end) of a place over all ranks; may be in place.
  void Sum(int place, size_t begin, size_t end, float* sum) const;

  const int rank_;
  const int32_t world_size_;
  const absl::Duration timeout_;
  SharedMemory memory_;
  Desk* desk_ = nullptr;
  Descriptor listener_;
  std::string unmapped_;  // Why a peer's memory could not be mapped; or empty.
  std::vector<Peer> peers_;  // By rank; this one's has nothing.
  uint32_t block_ = 0;       // The next one.
  Obstacle obstacle_;
  std::atomic<bool> interrupted_ = false;
  std::unique_ptr<PeerWatch> watch_;
};

// ---- Forming the group

absl::Status ShmMesh::CreateDesk(std::string* name) {
  SL_ASSIGN_OR_RETURN(
      memory_, SharedMemory::Create(sizeof(Desk), SharedMemory::Peers::kRead));
  desk_ = reinterpret_cast<Desk*>(memory_.data());
  *name = std::string(absl::StripPrefix(UniqueShmEndpoint(), "shm://@"));
  SL_ASSIGN_OR_RETURN(listener_, ListenShm(*name));
  return absl::OkStatus();
}

absl::Status ShmMesh::Join(const GroupOptions& options) {
  const Rendezvous rendezvous({.rank = options.rank,
                               .world_size = options.world_size,
                               .group = options.group,
                               .time_max = options.connect_timeout,
                               .keep_trying = options.keep_trying,
                               .store = options.store});
  std::string name;
  const absl::Status created = CreateDesk(&name);
  if (!created.ok()) name.clear();
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                      rendezvous.Exchange(AddressText(name)));
  SL_RETURN_IF_ERROR(created.ok()
                         ? absl::OkStatus()
                         : CannotShare(rank_, std::string(created.message())));
  std::vector<Address> addresses(found.size());
  const std::string host_id = HostId();
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    const auto index = static_cast<size_t>(i);
    SL_ASSIGN_OR_RETURN(addresses[index], ParseAddress(found[index], i));
    const Address& address = addresses[index];
    if (address.host_id != host_id) return CannotShare(i, "another host");
    if (address.uid != geteuid()) {
      return CannotShare(i, absl::StrCat("it is of user ", address.uid,
                                         ", rank ", rank_, " of ", geteuid()));
    }
    if (address.name.empty()) return CannotShare(i, "its log says why");
    if (address.desk_bytes != sizeof(Desk)) {
      return absl::UnavailableError(
          absl::StrCat("rank ", i, " shares ", address.desk_bytes, " bytes, ",
                       rendezvous.Self(), " ", sizeof(Desk),
                       "; run the same build everywhere"));
    }
  }
  SL_RETURN_IF_ERROR(Connect(addresses, rendezvous));
  listener_ = Descriptor();
  SL_RETURN_IF_ERROR(CompareMappings(rendezvous));
  std::vector<std::unique_ptr<Stream>> streams;
  for (Peer& peer : peers_) {
    streams.push_back(peer.socket.valid() ? std::make_unique<PlainStream>(
                                                std::move(peer.socket))
                                          : nullptr);
  }
  SL_ASSIGN_OR_RETURN(watch_, PeerWatch::Create(rank_, std::move(streams)));
  return absl::OkStatus();
}

bool ShmMesh::Greet(const Descriptor& socket) const {
  const Greeting greeting{.rank = rank_};
  const int file = memory_.descriptor();
  return SendPacket(
      socket, {reinterpret_cast<const std::byte*>(&greeting), sizeof(greeting)},
      {&file, 1});
}

std::optional<int> ShmMesh::TakeGreeting(
    const Descriptor& socket, const std::vector<Address>& addresses) {
  Greeting greeting;
  Packet packet = ReceivePacket(
      socket, {reinterpret_cast<std::byte*>(&greeting), sizeof(greeting)});
  if (packet.kind != PacketKind::kPacket || packet.bytes != sizeof(greeting) ||
      greeting.kind != Greeting::kKind || packet.descriptors.size() != 1 ||
      greeting.rank < 0 || greeting.rank >= world_size_ ||
      greeting.rank == rank_) {
    return std::nullopt;
  }
  Peer& peer = peers_[static_cast<size_t>(greeting.rank)];
  if (peer.met) return std::nullopt;
  absl::StatusOr<SharedMemory> memory = SharedMemory::Map(
      std::move(packet.descriptors.front()),
      addresses[static_cast<size_t>(greeting.rank)].desk_bytes,
      SharedMemory::Peers::kRead);
  if (memory.ok()) {
    peer.memory = *std::move(memory);
  } else if (absl::IsUnavailable(memory.status())) {
    unmapped_ = std::string(memory.status().message());  // As with ulimit -v.
  } else {
    return std::nullopt;  // Of a stranger.
  }
  peer.met = true;
  return greeting.rank;
}

// Rank i connects to all before it. Whoever greets an accepted connection is
// greeted there.
absl::Status ShmMesh::Connect(const std::vector<Address>& addresses,
                              const Rendezvous& rendezvous) {
  std::vector<Descriptor> accepted;  // That have not said who they are.
  int ready = 0;
  while (ready < world_size_ - 1) {
    std::vector<int> missing;
    for (int i = 0; i < world_size_; ++i) {
      Peer& peer = peers_[static_cast<size_t>(i)];
      if (i == rank_ || peer.met) continue;
      missing.push_back(i);
      if (i > rank_ || peer.socket.valid()) continue;
      absl::StatusOr<Descriptor> socket =
          ConnectShm(addresses[static_cast<size_t>(i)].name);
      if (socket.ok() && Greet(*socket)) peer.socket = *std::move(socket);
    }
    if (rendezvous.Over()) {
      return absl::UnavailableError(
          absl::StrCat(rendezvous.Self(), " has no connection to ",
                       RanksText(missing), "; check that all ranks still run"));
    }
    SL_RETURN_IF_ERROR(rendezvous.Ask());
    std::vector<pollfd> files = {
        {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const int i : missing) {
      files.push_back({.fd = peers_[static_cast<size_t>(i)].socket.get(),
                       .events = POLLIN,
                       .revents = 0});
    }
    for (const Descriptor& socket : accepted)
      files.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    // One whose listener was full, or who is not there yet, is tried again.
    poll(files.data(), files.size(),
         static_cast<int>(absl::ToInt64Milliseconds(rendezvous.Slice())) + 1);

    for (size_t n = 0; n < missing.size(); ++n) {
      if (files[n + 1].revents == 0) continue;
      Peer& peer = peers_[static_cast<size_t>(missing[n])];
      if (TakeGreeting(peer.socket, addresses) == missing[n]) {
        ++ready;
      } else {
        peer.socket = Descriptor();
      }
    }
    const size_t first_accepted = missing.size() + 1;
    for (size_t n = 0; n < accepted.size(); ++n) {
      if (files[first_accepted + n].revents == 0) continue;
      const std::optional<int> rank = TakeGreeting(accepted[n], addresses);
      if (rank.has_value() && Greet(accepted[n])) {
        peers_[static_cast<size_t>(*rank)].socket = std::move(accepted[n]);
        ++ready;
      }
      accepted[n] = Descriptor();
    }
    std::erase_if(accepted, [](const Descriptor& d) { return !d.valid(); });
    if (files[0].revents != 0) {
      TurnedAway others;  // The group forms without them.
      absl::StatusOr<Descriptor> socket = AcceptShm(listener_, &others);
      if (socket.ok() && socket->valid())
        accepted.push_back(*std::move(socket));
    }
  }
  return absl::OkStatus();
}

absl::Status ShmMesh::CompareMappings(const Rendezvous& rendezvous) {
  const std::string said =
      unmapped_.empty() ? kAllMapped : unmapped_.substr(0, kReasonBytesMax);
  std::vector<int> open;  // That have said nothing yet.
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    open.push_back(i);
    // What a rank that is gone does not take is found out below.
    (void)SendPacket(
        peers_[static_cast<size_t>(i)].socket,
        {reinterpret_cast<const std::byte*>(said.data()), said.size()}, {});
  }
  absl::Status shared =
      unmapped_.empty() ? absl::OkStatus() : CannotShare(rank_, unmapped_);
  // All are heard before this rank goes: closing a socket that has something
  // to be read takes what was sent there with it.
  while (!open.empty()) {
    if (rendezvous.Over()) {
      return absl::UnavailableError(absl::StrCat(
          rendezvous.Self(), " was not told by ", RanksText(open),
          " whether memory is shared; check that all ranks still run"));
    }
    SL_RETURN_IF_ERROR(rendezvous.Ask());
    std::vector<pollfd> files;
    for (const int i : open) {
      files.push_back({.fd = peers_[static_cast<size_t>(i)].socket.get(),
                       .events = POLLIN,
                       .revents = 0});
    }
    poll(files.data(), files.size(),
         static_cast<int>(absl::ToInt64Milliseconds(rendezvous.Slice())) + 1);
    std::vector<int> still_open;
    for (size_t n = 0; n < files.size(); ++n) {
      const int rank = open[n];
      std::string heard(kReasonBytesMax, '\0');
      Packet packet;
      if (files[n].revents != 0) {
        packet = ReceivePacket(
            peers_[static_cast<size_t>(rank)].socket,
            {reinterpret_cast<std::byte*>(heard.data()), heard.size()});
      }
      if (packet.kind == PacketKind::kNone) {
        still_open.push_back(rank);
        continue;
      }
      if (packet.kind == PacketKind::kGone) {
        return absl::UnavailableError(
            absl::StrCat(rendezvous.Self(), " has lost the connection to rank ",
                         rank, " before all had mapped each other's memory"));
      }
      heard.resize(packet.bytes);
      if (heard != kAllMapped && shared.ok()) shared = CannotShare(rank, heard);
    }
    open = std::move(still_open);
  }
  return shared;
}

// ---- Waiting for each other

void FutexWait(const std::atomic<uint32_t>& word, uint32_t value,
               absl::Duration wait_max) {
  const timespec time = absl::ToTimespec(wait_max);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(),
          nullptr, nullptr, 0);
}

// Counts wrap around.
bool Reached(uint32_t count, uint32_t blocks) {
  return static_cast<int32_t>(count - blocks) >= 0;
}

void ShmMesh::Done(Stage stage) {
  std::atomic<uint32_t>& blocks = desk_->counts[stage].blocks;
  // Either this rank sees who sleeps, or that one sees the count.
  blocks.store(block_ + 1, std::memory_order_seq_cst);
  const uint32_t code = SleepCode(rank_, stage);
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    if (DeskOf(i).sleeps.load(std::memory_order_seq_cst) == code)
      return FutexWake(blocks);
  }
}

bool ShmMesh::Await(int rank, Stage stage, uint32_t blocks) {
  const std::atomic<uint32_t>& count = DeskOf(rank).counts[stage].blocks;
  const auto reached = [&](std::memory_order order) {
    return Reached(count.load(order), blocks);
  };
  if (reached(std::memory_order_acquire)) return true;
  const TimeSource time;
  const absl::Time deadline = time.Now() + timeout_;
  desk_->sleeps.store(SleepCode(rank, stage), std::memory_order_seq_cst);
  bool done = false;
  while (true) {
    // Before the count: whoever is gone has counted before it went.
    const bool gone = watch_->Gone(rank);
    const uint32_t seen = count.load(std::memory_order_seq_cst);
    done = Reached(seen, blocks);
    if (done) break;
    const absl::Duration left = deadline - time.Now();
    if (gone || interrupted_.load() || left <= absl::ZeroDuration()) {
      obstacle_ = {.late = !gone && !interrupted_.load(), .rank = rank};
      break;
    }
    FutexWait(count, seen, std::min(left, kSleepMax));
  }
  desk_->sleeps.store(0, std::memory_order_relaxed);
  return done;
}

bool ShmMesh::AwaitAll(Stage stage, uint32_t blocks) {
  for (int i = 0; i < world_size_; ++i) {
    if (i != rank_ && !Await(i, stage, blocks)) return false;
  }
  return true;
}

// ---- Operations

// Of blocks that have been copied. Sums are of so few floats at a time that
// they stay in the cache.
void ShmMesh::Sum(int place, size_t begin, size_t end, float* sum) const {
  constexpr size_t kChunk = 1024;
  for (size_t i = begin; i < end; i += kChunk) {
    const size_t size = std::min(kChunk, end - i);
    const float* const first = DeskOf(0).places[place] + i;
    const float* const second = DeskOf(1).places[place] + i;
    float chunk[kChunk];
    for (size_t j = 0; j < size; ++j) chunk[j] = first[j] + second[j];
    for (int rank = 2; rank < world_size_; ++rank) {
      const float* const next = DeskOf(rank).places[place] + i;
      for (size_t j = 0; j < size; ++j) chunk[j] += next[j];
    }
    std::memcpy(sum + (i - begin), chunk, size * sizeof(float));
  }
}

bool ShmMesh::AllReduce(absl::Span<float> data) {
  for (size_t begin = 0; begin < data.size(); begin += kBlockFloats) {
    float* const block = data.data() + begin;
    const size_t size = std::min(kBlockFloats, data.size() - begin);
    const auto place = static_cast<int>(block_ % kPlaces);
    float* const own = desk_->places[place];
    // Who has taken the block before has let go of this place.
    if (!AwaitAll(kTaken, block_ + 1 - kPlaces)) return false;
    std::memcpy(own, block, size * sizeof(float));
    Done(kCopied);
    if (!AwaitAll(kCopied, block_ + 1)) return false;
    if (world_size_ == 2 || size <= kWholeFloatsMax) {
      Done(kSummed);
      Sum(place, 0, size, block);
    } else {
      const size_t ranks = static_cast<size_t>(world_size_);
      const size_t units = (size + kPartUnit * ranks - 1) / (kPartUnit * ranks);
      const size_t part = units * kPartUnit;
      const auto begin_of = [&](int rank) {
        return std::min(size, part * static_cast<size_t>(rank));
      };
      Sum(place, begin_of(rank_), begin_of(rank_ + 1), own + begin_of(rank_));
      Done(kSummed);
      for (int n = 0; n < world_size_; ++n) {
        const int rank = (rank_ + n) % world_size_;
        if (rank != rank_ && !Await(rank, kSummed, block_ + 1)) return false;
        const size_t from = begin_of(rank);
        std::memcpy(block + from, DeskOf(rank).places[place] + from,
                    (begin_of(rank + 1) - from) * sizeof(float));
      }
    }
    Done(kTaken);
    ++block_;
  }
  return true;
}

bool ShmMesh::Broadcast(absl::Span<float> data, int root) {
  for (size_t begin = 0; begin < data.size(); begin += kBlockFloats) {
    float* const block = data.data() + begin;
    const size_t bytes =
        std::min(kBlockFloats, data.size() - begin) * sizeof(float);
    const auto place = static_cast<int>(block_ % kPlaces);
    if (rank_ == root) {
      if (!AwaitAll(kTaken, block_ + 1 - kPlaces)) return false;
      std::memcpy(desk_->places[place], block, bytes);
      Done(kCopied);
    } else {
      Done(kCopied);
      if (!Await(root, kCopied, block_ + 1)) return false;
      std::memcpy(block, DeskOf(root).places[place], bytes);
    }
    Done(kSummed);
    Done(kTaken);
    ++block_;
  }
  return true;
}

absl::Status ShmMesh::Run(const Operation& operation, int64_t number) {
  const bool done =
      operation.root.has_value()
          ? Broadcast(operation.data, static_cast<int>(*operation.root))
          : AllReduce(operation.data);
  const std::string prefix =
      OperationText(operation, number, rank_, world_size_);
  if (!done && obstacle_.late) {
    return absl::DeadlineExceededError(absl::StrCat(
        prefix, "rank ", obstacle_.rank, " sent nothing for ",
        absl::ToInt64Milliseconds(timeout_),
        " ms; it or a rank for which it waits is stuck, or slower than the "
        "timeout allows; the group must be rebuilt"));
  }
  // What it has is complete, but the next operation cannot be.
  if (done && !interrupted_.load()) return absl::OkStatus();
  return ConnectionsLost(prefix, watch_->Gone(), "it has left the group");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateShmCollective(
    const GroupOptions& options) {
  return FormGroup(options, std::make_unique<ShmMesh>(options));
}

}  // namespace slackline
