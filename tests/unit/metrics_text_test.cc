// The page /metrics, and the tables of figures that it is made of.
#include "common/health/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "common/metrics/exposition.h"
#include "common/metrics/histogram.h"
#include "common/metrics/metric_table.h"
#include "common/metrics/server_stats.h"

namespace slackline::metrics_text_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricTableTest, HasEachFigureOnceAndNamesItAsPrometheusDoes) {
  const auto check = [](absl::Span<const Metric> metrics,
                        const google::protobuf::Message& stats) {
    std::set<int> fields;
    std::set<std::string> names;
    std::set<std::string> titles;
    for (const Metric& metric : metrics) {
      SCOPED_TRACE(metric.name);
      EXPECT_TRUE(fields.insert(metric.field).second);
      EXPECT_TRUE(names.insert(metric.name).second);
      const std::string name = metric.name;
      EXPECT_EQ(metric.kind == Metric::Kind::kCounter ||
                    metric.kind == Metric::Kind::kByPhase,
                name.size() > 6 && name.substr(name.size() - 6) == "_total");
      const auto* const field =
          stats.GetDescriptor()->FindFieldByNumber(metric.field);
      ASSERT_NE(field, nullptr);
      EXPECT_EQ(metric.kind == Metric::Kind::kHistogram ||
                    metric.kind == Metric::Kind::kByPhase,
                field->message_type() != nullptr);
      EXPECT_NE(std::string(metric.help).back(), '.');
      const std::string title = metric.column.title;
      if (title.empty()) continue;
      EXPECT_TRUE(titles.insert(title).second);
      EXPECT_NE(metric.kind, Metric::Kind::kByPhase);
      EXPECT_EQ(metric.kind == Metric::Kind::kHistogram,
                metric.column.form == StatusColumn::Form::kPercentiles);
    }
  };
  check(ServerMetrics(), run::ServerStats());
  check(WorkerMetrics(), run::WorkerStats());
}

// A counter that is added to the message has to be in the table: what is not is
// listed here, with what it is.
TEST(MetricTableTest, LeavesOutWhatIsNoFigure) {
  const auto left_out = [](absl::Span<const Metric> metrics,
                           const google::protobuf::Message& stats) {
    std::set<std::string> names;
    for (int i = 0; i < stats.GetDescriptor()->field_count(); ++i)
      names.insert(std::string(stats.GetDescriptor()->field(i)->name()));
    for (const Metric& metric : metrics) {
      names.erase(std::string(
          stats.GetDescriptor()->FindFieldByNumber(metric.field)->name()));
    }
    return names;
  };
  EXPECT_EQ(left_out(ServerMetrics(), run::ServerStats()),
            (std::set<std::string>{"index", "incarnation", "pid", "alive",
                                   "heard_ms_ago", "thread", "hand_over",
                                   "follower", "nonfinite", "reached_clock",
                                   "seen_view", "refused", "oversized"}));
  EXPECT_EQ(
      left_out(WorkerMetrics(), run::WorkerStats()),
      (std::set<std::string>{"rank", "incarnation", "pid", "alive", "done",
                             "heard_ms_ago", "progress", "recent", "answers"}));
}

TEST(MetricTableTest, FoldsEachFigureOfItsKind) {
  run::ServerStats a;
  run::ServerStats b;
  a.set_pushes(3);
  a.set_shards(2);
  a.set_pulls_parked(5);
  a.set_io_utilisation(0.5);
  AddToHistogram(2, a.mutable_lead());
  b.set_pushes(4);
  b.set_shards(1);
  b.set_io_utilisation(0.25);
  AddToHistogram(3, b.mutable_lead());
  a.mutable_phase_seconds()->set_apply(1.5);
  b.mutable_phase_seconds()->set_apply(2);
  b.mutable_phase_seconds()->set_answer(1);
  FoldServerStats(a, &b);
  EXPECT_EQ(b.phase_seconds().receive(), 0);
  EXPECT_EQ(b.phase_seconds().apply(), 3.5);
  EXPECT_EQ(b.phase_seconds().answer(), 1);
  EXPECT_EQ(b.pushes(), 7u);
  EXPECT_EQ(b.shards(), 3);
  EXPECT_EQ(b.pulls_parked(), 5);
  EXPECT_EQ(b.io_utilisation(), 0.25);
  EXPECT_EQ(b.lead().bin_size(), 4);
  EXPECT_EQ(b.lead().bin(2) + b.lead().bin(3), 2u);
  EXPECT_EQ(b.lead().max(), 3);
}

TEST(MetricTableTest, KnowsWhatIsNoFigure) {
  const auto fits = [](auto change) {
    run::ServerStats server;
    change(&server);
    return AreFigures(ServerMetrics(), server);
  };
  EXPECT_TRUE(fits([](auto* stats) { stats->set_pulls_parked(7); }));
  EXPECT_FALSE(fits([](auto* stats) { stats->set_pulls_parked(-1); }));
  EXPECT_FALSE(fits([](auto* stats) { stats->set_shards(-1); }));
  EXPECT_FALSE(fits([](auto* stats) {
    stats->set_answers_held(std::numeric_limits<int64_t>::max());
  }));
  EXPECT_FALSE(fits([](auto* stats) {
    for (int i = 0; i <= kHistogramBinsMax; ++i)
      stats->mutable_lead()->add_bin(1);
  }));
  run::WorkerStats worker;
  worker.set_train_loss(std::nan(""));
  EXPECT_TRUE(AreFigures(WorkerMetrics(), worker)) << "it may diverge";
  worker.set_wait_seconds(std::nan(""));
  EXPECT_FALSE(AreFigures(WorkerMetrics(), worker));
  worker.set_wait_seconds(1);
  EXPECT_TRUE(AreFigures(WorkerMetrics(), worker));
  worker.mutable_phase_seconds()->set_pulling(-1);
  EXPECT_FALSE(AreFigures(WorkerMetrics(), worker));
}

TEST(ExpositionTest, IsAsPrometheusReadsIt) {
  Exposition page;
  page.Begin("a_total", "counter", "All a's\nand \\");
  page.Add(3, {{"x", "with \"quotes\", \\ and\nlines"}, {"y", ""}});
  page.Begin("b", "gauge", "B");
  page.Add(std::nan(""), {});
  page.Add(-std::numeric_limits<double>::infinity(), {{"z", "1"}});
  page.Add(0.1, {{"z", "2"}});
  page.Add(1125899906842624.0, {{"z", "3"}});
  EXPECT_EQ(page.Take(),
            "# HELP a_total All a's\\nand \\\\.\n"
            "# TYPE a_total counter\n"
            "a_total{x=\"with \\\"quotes\\\", \\\\ and\\nlines\",y=\"\"} 3\n"
            "# HELP b B.\n"
            "# TYPE b gauge\n"
            "b NaN\n"
            "b{z=\"1\"} -Inf\n"
            "b{z=\"2\"} 0.1\n"
            "b{z=\"3\"} 1125899906842624\n");
}

TEST(ExpositionTest, BucketsOfAHistogramAreCumulative) {
  run::Histogram counts;
  for (const int64_t value : {0, 0, 1, 2, 3, 5, 100, 5000})
    AddToHistogram(value, &counts);
  Exposition page;
  page.Begin("late", "histogram", "H");
  page.Add(counts, {{"server", "0"}});
  const std::string text = page.Take();
  EXPECT_THAT(text, AllOf(HasSubstr("late_bucket{server=\"0\",le=\"0\"} 2\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"1\"} 3\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"2\"} 4\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"4\"} 5\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"8\"} 6\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"512\"} 7\n"),
                          HasSubstr("late_bucket{server=\"0\",le=\"+Inf\"} 8"),
                          HasSubstr("late_count{server=\"0\"} 8\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("late_sum{server=\"0\"} 1134\n"),
                          Not(HasSubstr("le=\"1024\""))));
}

TEST(MetricsTextTest, HasWhatTheProcessHasCounted) {
  HealthBoard board("server", 2, absl::UnixEpoch());
  EXPECT_THAT(
      MetricsText(board.Read(), board.ReadFigures(), std::nullopt),
      AllOf(HasSubstr("slackline_build_info{version="),
            HasSubstr("slackline_stage{server=\"2\",state=\"starting\"} 1"),
            Not(HasSubstr("slackline_server_"))));
  auto stats = std::make_shared<run::ServerStats>();
  stats->set_pushes(12);
  run::ThreadLoad& thread = *stats->add_thread();
  thread.set_thread(1);
  thread.set_queue_ms(2);
  run::NonfiniteGradients& bad = *stats->add_nonfinite();
  bad.set_rank(3);
  bad.set_gradients(4);
  stats->mutable_refused()->set_no_key(9);
  board.Counted(std::shared_ptr<const run::ServerStats>(stats));
  auto status = std::make_shared<wire::StatusReply>();
  status->mutable_view()->set_state(wire::RUNNING);
  status->mutable_view()->add_worker();
  status->mutable_view()->add_phase()->mutable_mode()->mutable_ssp();
  run::MetricRecord& tested = *status->add_latest();
  tested.set_kind(run::MetricRecord::EVAL);
  tested.set_accuracy(0.5);
  board.Counted(std::shared_ptr<const wire::StatusReply>(status));
  EXPECT_THAT(
      MetricsText(board.Read(), board.ReadFigures(),
                  ProcessFigures{.cpu_seconds = 1.5}),
      AllOf(HasSubstr("slackline_server_pushes_total{server=\"2\"} 12\n"),
            HasSubstr("slackline_server_thread_queue_seconds{server=\"2\","
                      "thread=\"1\"} 0.002"),
            HasSubstr("slackline_server_nonfinite_total{server=\"2\","
                      "worker=\"3\"} 4\n"),
            HasSubstr("slackline_server_refused_total{server=\"2\","
                      "reason=\"no_key\"} 9\n"),
            HasSubstr("slackline_job_state{state=\"running\"} 1\n"),
            HasSubstr("slackline_job_state{state=\"failed\"} 0\n"),
            HasSubstr("slackline_job_workers 1\n"),
            HasSubstr("slackline_job_mode_info{mode=\"ssp:3\"} 1\n"),
            HasSubstr("slackline_job_test_accuracy_ratio 0.5\n"),
            HasSubstr("process_cpu_seconds_total 1.5\n")));
  // Another server leads now.
  board.Counted(std::shared_ptr<const wire::StatusReply>());
  EXPECT_THAT(MetricsText(board.Read(), board.ReadFigures(), std::nullopt),
              Not(HasSubstr("slackline_job_")));
}

TEST(MetricsTextTest, HasWhoIsSlow) {
  HealthBoard board("server", 0, absl::UnixEpoch());
  auto status = std::make_shared<wire::StatusReply>();
  const auto add = [&](auto set) {
    run::Straggler& alarm = *status->add_straggler();
    alarm.set_phase("pushing");
    alarm.set_times(2.5);
    set(&alarm);
  };
  add([](run::Straggler*) {});
  add([](run::Straggler* alarm) { alarm->set_rank(3); });
  add([](run::Straggler* alarm) { alarm->set_server(1); });
  board.Counted(std::shared_ptr<const wire::StatusReply>(status));
  EXPECT_THAT(
      MetricsText(board.Read(), board.ReadFigures(), std::nullopt),
      AllOf(HasSubstr("slackline_job_stragglers 3\n"),
            HasSubstr("slackline_job_straggler_ratio{worker=\"all\","
                      "phase=\"pushing\"} 2.5\n"
                      "slackline_job_straggler_ratio{worker=\"3\","
                      "phase=\"pushing\"} 2.5\n"),
            HasSubstr("slackline_job_slow_server_ratio{server=\"1\"} 2.5\n")));
}

TEST(ProcessFiguresTest, AreThoseOfThisProcess) {
  const std::optional<ProcessFigures> figures = ReadProcessFigures();
  ASSERT_TRUE(figures.has_value());
  EXPECT_GT(figures->resident_bytes, 1e6);
  EXPECT_GT(figures->virtual_bytes, figures->resident_bytes);
  EXPECT_GE(figures->threads, 1);
  EXPECT_GE(figures->open_files, 3);
  EXPECT_GE(figures->open_files_max, figures->open_files);
}

}  // namespace slackline::metrics_text_test
