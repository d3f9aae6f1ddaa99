// How many pushes a second does a worker get through, beside raw ZeroMQ?
//
// One worker pushes B bytes to one shard thread again and again and never
// pulls, with as many pushes unanswered as --in-flight and --window-bytes
// allow; each is acknowledged. `slackline` is the product's ClientCore and
// shard thread, ASP with SGD, in shards of at most 256 KiB; `raw` is DEALER and
// ROUTER, without any spin, which send as many bytes in payloads of that size,
// a message and an answer for each, and read none of them. Above a window the
// time is expected to go with the bytes: both copy them into the kernel and out
// of it, Slackline also reads them, and reads and writes the parameters. Small
// pushes of Slackline share messages, so there it may be faster than raw.
//
// Turns of the two alternate, each with new processes.
//
// stdout: one JSON line for each size. stderr: the same as a table.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "benchmarks/fixed_job.h"
#include "benchmarks/process_cost.h"
#include "benchmarks/report.h"
#include "common/net/host_id.h"
#include "common/net/poller.h"
#include "common/net/shard_endpoint.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/freed_memory.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"

namespace slackline::bench {
namespace {

constexpr int64_t kPartBytes = 256 << 10;  // Slackline's shards, by default.

struct Options {
  std::string transport = "tcp";
  std::vector<int64_t> bytes = {64, 4 << 10, 64 << 10, 1 << 20, 16 << 20};
  int in_flight = 256;
  int64_t window_bytes = 4 << 20;
  int repeats = 5;
  double seconds = 0.5;  // Of a turn, about.
  bool smoke = false;
};

// What of a push travels as one payload.
int64_t PartOf(int64_t bytes) { return std::min(bytes, kPartBytes); }

size_t MayBeUnanswered(const Options& options, int64_t bytes) {
  return static_cast<size_t>(std::max(
      bytes, std::min(options.window_bytes, options.in_flight * bytes)));
}

// One worker and its server. Run() does so many more pushes to the end.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual absl::Status Run(int64_t pushes) = 0;
  virtual pid_t server() const = 0;
};

class SlacklineStream : public Stream {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Start(const Options& options,
                                                       int64_t bytes) {
    FixedJob job;
    job.shard_bytes = PartOf(bytes);
    job.shards = static_cast<int>(bytes / job.shard_bytes);
    SL_ASSIGN_OR_RETURN(std::unique_ptr<FixedServer> server,
                        FixedServer::Start(job));
    SL_ASSIGN_OR_RETURN(std::shared_ptr<const View> view,
                        View::Create(ViewOf(job, server->endpoints())));
    wire::ServerMember member;
    member.set_host_id(HostId());
    *member.add_thread() = server->endpoints();
    SL_ASSIGN_OR_RETURN(
        const std::vector<std::string> endpoints,
        ShardEndpoints(member, 0, LocalProcess(),
                       options.transport == "tcp"   ? config::Limits::TCP
                       : options.transport == "ipc" ? config::Limits::IPC
                                                    : config::Limits::SHM));
    std::unique_ptr<SlacklineStream> stream(new SlacklineStream(
        options, bytes, std::move(server), std::move(view)));
    SL_ASSIGN_OR_RETURN(
        stream->channel_,
        stream->transport_.Connect({.kind = PeerId::Kind::kWorker,
                                    .index = 0,
                                    .instance = IncarnationOf(0)},
                                   endpoints.front(), ChannelOptions()));
    stream->poller_.Add(*stream->channel_);
    return stream;
  }
  ~SlacklineStream() override { poller_.Remove(*channel_); }

  absl::Status Run(int64_t pushes) override {
    const Clock last = clock_ + pushes;
    for (;;) {
      ClientCore::Effects effects;
      while (clock_ < last &&
             client_.unacknowledged_bytes() + gradient_.size() <=
                 unanswered_max_) {
        SL_RETURN_IF_ERROR(client_.Push(clock_++, TableId{0}, gradient_,
                                        StepOptions(), versions_, time_.Now(),
                                        &effects));
        SL_RETURN_IF_ERROR(Perform(&effects));
      }
      SL_ASSIGN_OR_RETURN(std::optional<Message> message, channel_->Receive());
      if (message.has_value()) {
        client_.OnMessage({0, 0}, *message, time_.Now(), &effects);
      } else if (clock_ == last && client_.unacknowledged_bytes() == 0) {
        return absl::OkStatus();
      } else {
        const absl::Time wake = client_.NextWakeup();
        SL_RETURN_IF_ERROR(
            poller_.Wait(std::max(wake - time_.Now(), absl::ZeroDuration())));
        if (wake <= time_.Now()) client_.OnTick(time_.Now(), &effects);
      }
      SL_RETURN_IF_ERROR(Perform(&effects));
    }
  }

  pid_t server() const override { return server_->pid(); }

 private:
  SlacklineStream(const Options& options, int64_t bytes,
                  std::unique_ptr<FixedServer> server,
                  std::shared_ptr<const View> view)
      : unanswered_max_(MayBeUnanswered(options, bytes)),
        server_(std::move(server)),
        gradient_(Payload::Allocate(bytes)),
        versions_(view->shard_count(), 0),
        client_({.rank = Rank{0},
                 .incarnation = IncarnationOf(0),
                 .run = kFixedRun,
                 .by_socket = [via = options.transport](
                                  const View&, Owner) { return via != "shm"; }},
                view) {
    std::memset(gradient_.MutableData(), 0, gradient_.size());
  }

  absl::Status Perform(ClientCore::Effects* effects) {
    SL_RETURN_IF_ERROR(effects->failure);
    for (const ClientSend& send : effects->sends)
      SL_RETURN_IF_ERROR(channel_->Send(send.message));
    *effects = {};
    return absl::OkStatus();
  }

  const size_t unanswered_max_;
  const std::unique_ptr<FixedServer> server_;
  const TimeSource time_;
  Payload gradient_;
  const std::vector<Version> versions_;
  ClientCore client_;
  Clock clock_ = 0;
  ZmqTransport over_network_;
  ShmTransport transport_{over_network_};
  Poller poller_;
  std::unique_ptr<Channel> channel_;
};

class RawStream : public Stream {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Start(const Options& options,
                                                       int64_t bytes) {
    // Raw ZeroMQ has no shared memory.
    const std::string endpoint =
        options.transport == "tcp" ? "tcp://127.0.0.1:0" : UniqueIpcEndpoint();
    int ends[2];
    SL_CHECK(pipe(ends) == 0, "pipe");
    std::fflush(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    SL_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      alarm(300);
      Serve(endpoint, ends[1]);
    }
    close(ends[1]);
    std::unique_ptr<RawStream> stream(new RawStream(options, bytes, pid));
    std::string bound;
    for (char byte; read(ends[0], &byte, 1) == 1 && byte != '\n';)
      bound.push_back(byte);
    close(ends[0]);
    if (bound.empty()) return absl::AbortedError("the server's process failed");
    stream->socket_.set(zmq::sockopt::linger, 0);
    stream->socket_.connect(bound);
    return stream;
  }
  ~RawStream() override {
    kill(server_, SIGKILL);
    waitpid(server_, nullptr, 0);
  }

  absl::Status Run(int64_t pushes) override {
    const int64_t parts = pushes * static_cast<int64_t>(gradient_.size()) /
                          static_cast<int64_t>(part_bytes_);
    int64_t sent = 0;
    for (int64_t answered = 0; answered < parts;) {
      for (; sent < parts && (sent - answered + 1) * part_bytes_ <=
                                 static_cast<int64_t>(unanswered_max_);
           ++sent) {
        const uint64_t header = sent;
        socket_.send(zmq::buffer(&header, sizeof(header)),
                     zmq::send_flags::sndmore);
        const size_t begin =
            static_cast<size_t>(sent * part_bytes_) % gradient_.size();
        socket_.send(zmq::message_t(gradient_.data() + begin,
                                    static_cast<size_t>(part_bytes_),
                                    [](void*, void*) {}),
                     zmq::send_flags::none);
      }
      zmq::message_t answer;
      static_cast<void>(socket_.recv(answer));
      ++answered;
      while (answered < sent && socket_.recv(answer, zmq::recv_flags::dontwait))
        ++answered;
    }
    return absl::OkStatus();
  }

  pid_t server() const override { return server_; }

 private:
  RawStream(const Options& options, int64_t bytes, pid_t server)
      : server_(server),
        part_bytes_(PartOf(bytes)),
        unanswered_max_(MayBeUnanswered(options, bytes)),
        gradient_(static_cast<size_t>(bytes)) {}

  [[noreturn]] static void Serve(const std::string& endpoint, int output) {
    zmq::context_t context;
    zmq::socket_t socket(context, ZMQ_ROUTER);
    socket.bind(endpoint);
    const std::string line = socket.get(zmq::sockopt::last_endpoint) + "\n";
    SL_CHECK(write(output, line.data(), line.size()) ==
                 static_cast<ssize_t>(line.size()),
             "write");
    close(output);
    for (;;) {
      zmq::message_t peer;
      zmq::message_t header;
      zmq::message_t payload;
      static_cast<void>(socket.recv(peer));
      static_cast<void>(socket.recv(header));
      static_cast<void>(socket.recv(payload));
      socket.send(peer, zmq::send_flags::sndmore);
      socket.send(header, zmq::send_flags::none);
    }
  }

  const pid_t server_;
  const int64_t part_bytes_;
  const size_t unanswered_max_;
  std::vector<std::byte> gradient_;
  zmq::context_t context_;
  zmq::socket_t socket_{context_, ZMQ_DEALER};
};

struct Total {
  std::vector<double> per_second;
  double cpu_us = 0;  // Of worker and server, in turns that are timed.
  int64_t pushes = 0;
};

// One turn of one system.
absl::Status Turn(Stream& stream, const Options& options, int64_t bytes,
                  Total* total) {
  using SteadyClock = std::chrono::steady_clock;
  const auto seconds_of = [&](int64_t pushes) -> absl::StatusOr<double> {
    const auto begin = SteadyClock::now();
    SL_RETURN_IF_ERROR(stream.Run(pushes));
    return std::chrono::duration<double>(SteadyClock::now() - begin).count();
  };
  const int64_t few =
      std::clamp<int64_t>((int64_t{16} << 20) / bytes, 4, 20000);
  SL_RETURN_IF_ERROR(stream.Run(few));  // Connects, and touches all memory.
  SL_ASSIGN_OR_RETURN(const double trial, seconds_of(few));
  const auto pushes = std::max<int64_t>(
      few,
      static_cast<int64_t>(static_cast<double>(few) * options.seconds / trial));
  const Cost before = CostOf(getpid()) + CostOf(stream.server());
  SL_ASSIGN_OR_RETURN(const double seconds, seconds_of(pushes));
  const Cost after = CostOf(getpid()) + CostOf(stream.server());
  total->per_second.push_back(static_cast<double>(pushes) / seconds);
  total->cpu_us += (after - before).cpu_us;
  total->pushes += pushes;
  return absl::OkStatus();
}

absl::Status Measure(const Options& options, int64_t bytes) {
  Total raw;
  Total slackline;
  std::vector<double> ratios;  // Of neighbouring turns.
  for (int i = 0; i < options.repeats; ++i) {
    {
      SL_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                          RawStream::Start(options, bytes));
      SL_RETURN_IF_ERROR(Turn(*stream, options, bytes, &raw));
    }
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                        SlacklineStream::Start(options, bytes));
    SL_RETURN_IF_ERROR(Turn(*stream, options, bytes, &slackline));
    ratios.push_back(slackline.per_second.back() / raw.per_second.back());
  }
  const auto cpu_us = [](const Total& total) {
    return total.cpu_us / static_cast<double>(total.pushes);
  };
  const Spread ours = SpreadOf(slackline.per_second);
  const Spread limit = SpreadOf(raw.per_second);
  const Spread ratio = SpreadOf(ratios);
  const double gigabytes = ours.median * static_cast<double>(bytes) / 1e9;
  PrintJsonLine("bench_stream", {{"transport", options.transport},
                                 {"bytes", bytes},
                                 {"in_flight", options.in_flight},
                                 {"window_bytes", options.window_bytes},
                                 {"repeats", options.repeats},
                                 {"per_second", ToJson(ours)},
                                 {"raw_per_second", ToJson(limit)},
                                 {"gigabytes_per_second", gigabytes},
                                 {"ratio", ToJson(ratio)},
                                 {"cpu_us", cpu_us(slackline)},
                                 {"raw_cpu_us", cpu_us(raw)}});
  std::fprintf(stderr,
               "%-4s %9lld %12.0f %12.0f %8.2f  %5.2f (%4.2f to %4.2f) %10.2f "
               "%10.2f\n",
               options.transport.c_str(), static_cast<long long>(bytes),
               limit.median, ours.median, gigabytes, ratio.median, ratio.min,
               ratio.max, cpu_us(raw), cpu_us(slackline));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Pushes a second through Slackline and through raw ZeroMQ.");
  app.add_option("--transport", options.transport,
                 "tcp, ipc or shm, which raw ZeroMQ does not have: it takes "
                 "ipc then")
      ->check(CLI::IsMember({"tcp", "ipc", "shm"}))
      ->capture_default_str();
  app.add_option("--bytes", options.bytes,
                 "of a push; several sizes with commas, units as in 64KiB; "
                 "above 256 KiB a multiple of that")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check([](const std::string& text) {
        const int64_t bytes = std::atoll(text.c_str());
        const bool good = bytes >= 4 && bytes % 4 == 0 &&
                          bytes <= int64_t{1} << 30 &&
                          bytes % PartOf(bytes) == 0;
        return good ? std::string()
                    : "must be a multiple of 4, above 256 KiB of that, and at "
                      "most 1 GiB";
      });
  app.add_option("--in-flight", options.in_flight, "pushes unanswered, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--window-bytes", options.window_bytes,
                 "bytes unanswered, at most, or one push")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "turns of each system")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "of a turn, about")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke, "short, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.bytes = {64, 1 << 20};
    options.repeats = 1;
    options.seconds = 0.01;
  }
  KeepFreedMemory();
  std::fprintf(stderr, "%-4s %9s %12s %12s %8s  %5s %14s %10s %10s\n", "",
               "bytes", "raw /s", "slackline /s", "GB/s", "ratio", "",
               "raw cpu us", "cpu us");
  for (const int64_t bytes : options.bytes) {
    if (const absl::Status status = Measure(options, bytes); !status.ok()) {
      std::fprintf(stderr, "bench_stream: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
