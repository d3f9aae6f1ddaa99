// What does the page of a job (`slackline open`) take as long as it is looked
// at: memory of the command, bytes to each browser, time for each look?
//
// Status replies of a job of 100 workers and 20 servers with 2,000 shards go
// into the state of the page, one for each second of a day; now and then the
// two documents are made that browsers ask for: once a second how the job
// stands, and at the first look, and when the history has become coarser, the
// history.
//
// With --serve the page is then there for browsers, and a second passes in each
// second: benchmarks/page_browser.py measures what one takes.
//
// The least that a look can cost: to read the reply once (it is `reply_bytes`).
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "benchmarks/report.h"
#include "common/metrics/histogram.h"
#include "common/status.h"
#include "tools/cli/page/page_server.h"
#include "tools/cli/page/page_state.h"

namespace slackline::bench {
namespace {

struct Options {
  int workers = 100;
  int servers = 20;
  int shards = 2000;
  int replies = 86400;
  bool serve = false;
};

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) / 1e9;
}

int64_t ResidentBytes() {
  int64_t all = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

wire::StatusReply FirstReply(const Options& options) {
  wire::StatusReply status;
  wire::View& view = *status.mutable_view();
  view.set_job("large");
  view.set_state(wire::RUNNING);
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("transformer.blocks.0.attention.weight");
  table.add_shape(int64_t{1024} * options.shards);
  table.set_shard_elements(1024);
  for (int i = 0; i < options.servers; ++i) {
    wire::ServerMember& member = *view.add_server();
    member.set_index(i);
    member.add_thread()->add_endpoint(
        absl::StrCat("tcp://10.0.0.", i, ":4711"));
    run::ServerStats& server = *status.add_server();
    server.set_index(i);
    server.set_alive(true);
    server.add_thread()->set_utilisation(0.5);
    for (int k = 0; k < 64; ++k)
      AddToHistogram(k, server.mutable_missed_clocks());
  }
  for (int i = 0; i < options.shards; ++i) {
    const int owner = i % options.servers;
    view.add_owner_server(owner);
    view.add_owner_thread(0);
    run::ShardLoad& load =
        *status.mutable_server(owner)->mutable_thread(0)->add_shard();
    load.set_shard(i);
    load.set_busy(0.001F * static_cast<float>(i % 17));
    load.set_pushes(12.5);
  }
  for (int i = 0; i < options.workers; ++i) {
    run::WorkerStats& worker = *status.add_worker();
    worker.set_rank(i);
    worker.set_alive(true);
    worker.mutable_progress()->set_what("computing step 1234567");
  }
  return status;
}

// A second later.
void Go(int second, wire::StatusReply* status) {
  status->set_run_seconds(second);
  for (run::WorkerStats& worker : *status->mutable_worker()) {
    worker.set_clock(int64_t{10} * second);
    worker.set_examples(int64_t{1280} * second);
    worker.set_train_loss(2.3 / (1 + 0.001 * second));
    worker.set_compute_seconds(0.7 * second);
    worker.set_wait_seconds(0.3 * second);
  }
}

// Until the process is ended.
void Serve(const Options& options, wire::StatusReply status, PageState page) {
  std::mutex mutex;
  const absl::StatusOr<std::unique_ptr<PageServer>> server = PageServer::Start(
      {}, {.now =
               [&] {
                 const std::lock_guard<std::mutex> lock(mutex);
                 return page.Now().dump();
               },
           .history =
               [&] {
                 const std::lock_guard<std::mutex> lock(mutex);
                 return page.History().dump();
               },
           .order = [](absl::string_view) -> absl::StatusOr<std::string> {
             return absl::UnimplementedError("there is no job");
           }});
  SL_CHECK(server.ok(), std::string(server.status().message()).c_str());
  std::printf("%s\n", (*server)->url().c_str());
  std::fflush(stdout);
  for (int second = options.replies;; ++second) {
    absl::SleepFor(absl::Seconds(1));
    Go(second, &status);
    const std::lock_guard<std::mutex> lock(mutex);
    page.Update(status);
  }
}

void Run(const Options& options) {
  wire::StatusReply status = FirstReply(options);
  const int64_t memory_before = ResidentBytes();
  PageState page(Configured{});
  double look_seconds = 0;
  double now_seconds = 0;
  size_t now_bytes = 0;
  int asked = 0;
  for (int second = 0; second < options.replies; ++second) {
    Go(second, &status);
    const double begin = CpuSeconds();
    page.Update(status);
    look_seconds += CpuSeconds() - begin;
    if (second % 100 != 0) continue;
    const double asks = CpuSeconds();
    const std::string now = page.Now().dump();
    now_seconds += CpuSeconds() - asks;
    now_bytes = std::max(now_bytes, now.size());
    ++asked;
  }
  const int64_t memory = ResidentBytes() - memory_before;
  const nlohmann::ordered_json history = page.History();
  SL_CHECK(history["points"].size() >=
               std::min<size_t>(static_cast<size_t>(options.replies), 360),
           "a day has points");
  SL_CHECK(history["points"].back()["clock"].size() ==
               static_cast<size_t>(options.workers),
           "a point has all workers");
  const size_t history_bytes = history.dump().size();
  PrintJsonLine("bench_page",
                {{"workers", options.workers},
                 {"servers", options.servers},
                 {"shards", options.shards},
                 {"replies", options.replies},
                 {"reply_bytes", status.ByteSizeLong()},
                 {"look_ms", 1e3 * look_seconds / options.replies},
                 {"now_ms", 1e3 * now_seconds / asked},
                 {"now_bytes", now_bytes},
                 {"history_points", history["points"].size()},
                 {"history_bytes", history_bytes},
                 {"memory_bytes", memory}});
  if (options.serve) Serve(options, std::move(status), std::move(page));
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) {
  slackline::bench::Options options;
  bool smoke = false;
  CLI::App app("What the page of a job takes");
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 10000));
  app.add_option("--servers", options.servers)->check(CLI::Range(1, 10000));
  app.add_option("--shards", options.shards)->check(CLI::Range(1, 1000000));
  app.add_option("--replies", options.replies, "One for each second")
      ->check(CLI::Range(1, 100000000));
  app.add_flag("--serve", options.serve,
               "Then the page is there, at the address that is printed");
  app.add_flag("--smoke", smoke, "A minute of a small job, for the tests");
  CLI11_PARSE(app, argc, argv);
  if (smoke) options = {.workers = 4, .servers = 2, .shards = 8, .replies = 60};
  slackline::bench::Run(options);
  return 0;
}
