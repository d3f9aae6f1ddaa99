// Session: a worker's place in a job, for a program that has a model of its
// own. Joins the job with the tables of the model, brings the parameters of
// each step, takes the gradients as they are ready and the loss at the end,
// over servers or by all-reduce as the job's mode says at that moment, and
// tells what else is to be done:
//
//   while (const std::optional<Session::Task> task = session->Next()) {
//     if (const auto* step = std::get_if<Session::Step>(&*task)) {
//       ... for each table, as it is ready: session->Gradient(table, gradient)
//       session->FinishStep(loss);
//     } else ...
//   }
//   return session->ending();
//
// What a worker does is decided by a WorkerCore; the session performs it with
// the parameters, a group of workers and the files of the run. It knows no
// library for models. It joins again by itself when the job has given this
// worker up though it lives.
//
// A job that ends, or cannot go on, shows in the next Next(); the errors of the
// other calls in a step then say the same and may be ignored.
//
// Threads: one thread calls everything but what says "any thread".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/example_range.h"
#include "common/health/health_board.h"
#include "common/ids.h"
#include "common/inspection/inspector.h"
#include "common/keys/secret.h"
#include "common/mutex.h"
#include "common/net/transport.h"
#include "common/optim/schedule.h"
#include "common/optim/step_options.h"
#include "common/payload.h"
#include "common/sync/modes/step_kind.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/removals.h"
#include "worker/session/snapshot.h"
#include "worker/session/table_state.h"

namespace slackline {

class WorkerLoop;

class Session {
 public:
  struct Options {
    config::ClusterConfig config;  // From LoadJobConfig().
    Rank rank{};                   // A worker of the config.
    TimeSource time;
    std::string out;  // Folder for the final model; empty: not written.
    // All workers have the same length, as they have the same tables.
    LearningRateSchedule::JobLength length;
    int64_t batch_size = 1;  // Examples in a step of this worker, for reports.
    std::string data;        // What is trained on, for people.
    // The hash of the examples, which all workers of a job have in common
    // (DataHash). Empty: it is not known, and not compared.
    std::string data_hash = {};
    // Each step is given its examples, of these; `length` is then that of
    // workers that keep pace (job_length.h).
    std::optional<ElasticSampling> elastic = {};
    // Steps over servers begin when the first table's parameters are there, and
    // the program calls WaitFor() before it reads another's.
    bool step_by_table = false;
    // The parameters of all workers are the host's, also of those with
    // device: CUDA. Else they are where the config says.
    bool host_parameters = false;
    // The program has state of its own, which goes into checkpoints: Next()
    // asks for it (Keep), and gives it back (Restore).
    bool keeps_state = false;
    HealthBoard* health = nullptr;       // As in WorkerLoop::Options.
    Inspector::Sources inspection = {};  // As in WorkerLoop::Options.
    // What protects all-reduce over tcp when a group connects, as in
    // Credentials. Empty: nothing does.
    std::function<std::optional<Secret>()> ring = {};
  };

  // Everything handed over outlives the session. `to_coordinator` and
  // `to_shard_threads`, which may be one, carry the messages. Nothing is sent
  // before Next(). InvalidArgument: no such worker in the config, rules for
  // tables that the model does not have.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const Options& options, ParameterMemory* parameters,
      Transport& to_coordinator, Transport& to_shard_threads);
  // Leaves the job if that is not over.
  ~Session();

  // The optimizer does not begin anew, but with what OptimizerState() gave
  // elsewhere. Before the first Next(). The first worker's counts, as its
  // parameters do: for tables that begin with what a worker has
  // (wire::Initializer::OF_WORKER).
  //
  // InvalidArgument names the table and what does not fit, or the mode: with
  // given delays the versions of parameters are given, too.
  absl::Status BeginWith(std::vector<TableState> states);

  // ---- What is to be done ---------------------------------------------------

  // The parameters are those of this step. Compute the gradients, call
  // Gradient() once for each table, then FinishStep(). Steps come in order;
  // some may be left out, when others have done them.
  struct Step {
    Clock clock = 0;  // Which minibatch: steps completed so far, from 0.
    StepKind kind{};
    // After the step the parameters are this worker's, all workers having the
    // same: the program may change them between two steps, as long as all do.
    // Else the servers', and what the program changes is lost.
    bool keeps_model = false;
    // Gradients are to stay on the GPU, as FloatMemory there; else they go to
    // the host.
    bool on_device = false;
    // Gradients that are all there are best handed over in this order.
    bool last_table_first = false;
    // The step's examples with Options::elastic. Else they are the clock's.
    std::optional<ExampleRange> examples = {};
    // The parameters come table by table: see WaitFor(). Only with
    // Options::step_by_table, and where that is of use.
    bool by_table = false;
  };
  // Evaluate these parameters, now or beside what comes next, and report them
  // with Evaluated(). The chief alone is asked.
  struct Evaluation {
    Clock clock = 0;
    absl::Time since;  // When they were the job's.
    Snapshot parameters;
  };
  // The parameters are those of the trained model: evaluate them, then call
  // Conclude(). The chief alone is asked.
  struct Conclusion {};
  // A checkpoint has the program where it is now, between two steps: call
  // Kept() with its state before it begins the next one. Other tasks may come
  // before that.
  struct Keep {
    int32_t cut = 0;
    bool last = false;  // No step comes after it: call Kept() before Next().
  };
  // The job goes on from a checkpoint, and this is what Kept() was given for
  // it: the program is to be as it was then. Before all other tasks.
  struct Restore {
    std::string state;
  };
  using Task = std::variant<Step, Evaluation, Conclusion, Keep, Restore>;

  // Waits for the next task. None when the job is over for this worker; then
  // ending() says how. A step that was not finished ends the job for it. After
  // the last step, the job goes on for all workers until each of them has
  // called this, so that OptimizerState() and Gather() have an answer between.
  std::optional<Task> Next();
  // After Next() has returned none: OK if the job has FINISHED, else as
  // WorkerCore::ended().
  const absl::Status& ending() const { return ending_; }

  // ---- In a step ------------------------------------------------------------

  // Returns when the parameters of a table are those of this step. Until then
  // its memory is not to be read or written, and what it has is of no use.
  // Returns at once for the first table, for tables that were waited for, in
  // steps that are not `by_table`, and between two steps.
  //
  // InvalidArgument: no such table. Other errors: the step is lost, as Next()
  // will tell, and the memory may have parameters of two steps.
  absl::Status WaitFor(int table);

  // The whole gradient of a table, float32, in the order of its parameter. It
  // is sent or summed from this memory, so nobody may change it any more; a
  // copy is made nowhere. May wait until there is room for it; and for the
  // table's parameters, as WaitFor() does.
  //
  // The rate factor of `options`, from 0 to kRateFactorMax, is multiplied with
  // the learning rate of the table's optimizer and the factor of the config's
  // schedule; a momentum takes the place of the optimizer's, or of its beta1.
  // Where the gradients of several workers are summed into one update, the
  // options of the lowest rank among them count; by all-reduce each worker goes
  // by its own, so all have to give the same ones for a step.
  //
  // InvalidArgument names the table and what does not fit; nothing happened.
  absl::Status Gradient(int table, Payload gradient,
                        const StepOptions& options = {});
  // In place of Gradient(): the optimizer of the table does nothing in this
  // step. Over servers, a table that all workers skip keeps values and state as
  // they are, and the mean over workers is over those that do not skip it. By
  // all-reduce all workers have to skip the same tables. Errors as of
  // Gradient().
  absl::Status SkipTable(int table);
  // FailedPrecondition names tables without a gradient; nothing happened.
  // Without a loss: nobody is told one, unless by Log().
  absl::Status FinishStep(std::optional<double> loss);

  // So much of the step's time so far went into getting its examples, for the
  // reports of where time goes. In a step.
  void Loaded(absl::Duration took);
  // So much of the step's time so far went into waiting for copies of its
  // gradients from a GPU, which were computed by then.
  void CopiedGradients(absl::Duration took);

  // A copy of what the optimizer keeps of each table. Over servers it is asked
  // of them. In a step it is that of the step's parameters; where these may
  // miss gradients (SSP, ASP) it may be a little younger. Between two steps the
  // parameters become those of this state. Between two calls of Next() after
  // the first, and before Conclude().
  //
  // FailedPrecondition: not now. Others: the worker is to stop, as Next() will
  // tell.
  absl::StatusOr<std::vector<TableState>> OptimizerState();
  // Between two steps: the parameters become the newest, as of
  // OptimizerState(), which also asks for what the optimizer keeps.
  absl::Status FetchParameters();

  // A figure of the step that was finished last or is open, for the records of
  // the run; "loss" is the step's loss. Of any other name they have the mean.
  // At any time between two calls of Next(); without effect when the job is
  // over.
  void Log(const std::string& name, double value);

  // ---- Collectives of the workers' programs
  // ----------------------------------

  // Where a program calls: see wire::Gather. After the first Next(), so place
  // is above 0.
  struct GatherCall {
    uint64_t place = 0;
    uint32_t number = 0;  // Counts gathers at one place, from 0.
  };
  struct Gathered {
    std::vector<int32_t> ranks;  // Ascending: those that took part.
    std::vector<Payload> payloads;
  };
  // Brings `payload`, and waits until all workers that live have called at this
  // place. All get the same. Joins again if the job gives this worker up
  // meanwhile: a step that is open is then lost, as Next() will tell.
  //
  // DeadlineExceeded names who has not come within limits.wait_timeout_ms; the
  // same call may be made again. InvalidArgument: the coordinator refuses, and
  // says why. Others: the job is over for this worker.
  absl::StatusOr<Gathered> Gather(const GatherCall& call,
                                  const Payload& payload);

  // ---- Evaluations ----------------------------------------------------------

  // What is left out was not measured.
  struct Scores {
    std::optional<double> loss;
    std::optional<double> accuracy;  // In [0, 1].
    std::map<std::string, double> values =
        {};  // Others, by the program's names.
  };
  // Any thread. `parameters` has what was evaluated: it is written to the run's
  // folder if it is the first that meets a stop rule.
  void Evaluated(Clock clock, absl::Time since, const Scores& scores,
                 ParameterMemory& parameters);
  // Writes the trained model and reports it, on the training data and on the
  // test data. Goes on to try in Next() if it cannot be written.
  void Conclude(const Scores& train, const Scores& test);

  // ---- Checkpoints ----------------------------------------------------------

  // The program's state, of any bytes up to kKeptBytesMax, or why there is
  // none: then there will be no checkpoint, and all else goes on. It is written
  // beside what comes next. Without effect if nobody waits for it any more.
  void Kept(int32_t cut, absl::StatusOr<std::string> state);

  // ---- Any thread -----------------------------------------------------------

  // Says that something that takes long has come further; to be called at least
  // every few seconds in an evaluation of the trained model. Not OK: the worker
  // is to stop.
  absl::Status ReportProgress();
  // This worker cannot go on: leaves the job, which ends if it needs this
  // worker, and ends with this status. Without effect when it ends already.
  // `traceback`, of several lines, goes into the summary of the run; may be
  // empty.
  void Fail(const absl::Status& why, const std::string& traceback = "");
  // As Fail(), and the job ends, whether or not it could do without this
  // worker.
  void StopJob(const absl::Status& why, const std::string& traceback = "");
  // The process will have to end soon: asks for a checkpoint, after which the
  // job ends (docs/manual/checkpoints.md), and goes on until then. As
  // Interrupt() before the job is joined for the first time, and if its
  // coordinator is not heard.
  void Suspend(const std::string& reason);
  // Fail() with Cancelled, now and in every later life, by a user's wish.
  void Interrupt(const std::string& reason);
  // The time by which the job lives. It is no time of day.
  absl::Time Now() const { return options_.time.Now(); }

  const Options& options() const { return options_; }

 private:
  struct Life;
  struct Parts;
  Session(const Options& options, ParameterMemory* parameters,
          Transport& to_coordinator, Transport& to_shard_threads, Parts parts);

  std::shared_ptr<WorkerLoop> loop() const;
  absl::Status BeginLife();
  // Where other workers can try to connect to, if they will have to; null:
  // nowhere.
  std::unique_ptr<Listener> OpenDoor(wire::JoinRequest* join);
  // After Life::Next() has returned none. True if there can be another life.
  bool EndLife();
  void AddRecord(const run::MetricRecord& record, absl::Time made_at);
  absl::StatusOr<std::string> Write(ParameterMemory& parameters,
                                    run::Result* result) const;

  const Options options_;
  ParameterMemory& parameters_;
  Transport& to_coordinator_;
  Transport& to_shard_threads_;
  const std::unique_ptr<const Parts> parts_;
  // What all threads of the session do, of all lives.
  const std::unique_ptr<TimelineRecorder> timeline_;
  Removals removals_;
  std::unique_ptr<Life> life_;  // Null before the first Next() and at the end.
  bool over_ = false;
  absl::Status ending_;
  // BeginWith()'s, until a step is done.
  std::vector<TableState> initial_state_;
  bool begun_ = false;  // A life has had its first action.

  mutable Mutex mutex_;
  // The loop of life_; null without one.
  std::shared_ptr<WorkerLoop> loop_ ABSL_GUARDED_BY(mutex_);
  std::string interrupted_ ABSL_GUARDED_BY(mutex_);  // Why.
  // Why a life asks for a checkpoint and the end of the job: the next one, too,
  // since the first may be given up before it is heard.
  std::string suspended_ ABSL_GUARDED_BY(mutex_);
  bool has_lived_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace slackline
