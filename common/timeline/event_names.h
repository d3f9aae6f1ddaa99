// The names of events that several programs or tests know. Others are sentences
// of the coordinator.
#pragma once

namespace slackline::timeline_names {

// Threads.
inline constexpr char kTrainer[] = "trainer";
inline constexpr char kMessages[] = "messages";
inline constexpr char kCoordinator[] = "coordinator";
inline constexpr char kCheckpoints[] = "checkpoints";
// Of all-reduce among the ranks, and by servers.
inline constexpr char kRanks[] = "all-reduce";
inline constexpr char kSums[] = "sums by servers";

// The trainer thread of a worker: a step, and in it the phases of
// run::StepPhases. The number is the clock.
inline constexpr char kStep[] = "step";
inline constexpr char kLoading[] = "loading";
inline constexpr char kComputing[] = "computing";
inline constexpr char kWaiting[] = "waiting";
inline constexpr char kPushing[] = "pushing";
inline constexpr char kPulling[] = "pulling";
inline constexpr char kReducing[] = "reducing";

// Messages between a worker and a shard thread, in the order in which a flow
// comes to them: sent by the worker, done and answered by the shard thread,
// taken in by the worker. The number is bytes of payload.
inline constexpr char kPush[] = "push";
inline constexpr char kApply[] = "apply";
inline constexpr char kAcknowledge[] = "acknowledge";
inline constexpr char kAcknowledged[] = "acknowledged";
inline constexpr char kPull[] = "pull";
inline constexpr char kLookUp[] = "look up";
inline constexpr char kAnswer[] = "answer";
inline constexpr char kPulled[] = "pulled";
// Anything else.
inline constexpr char kMessage[] = "message";
inline constexpr char kReceive[] = "receive";
// Between two shard threads, and of all-reduce.
inline constexpr char kHandOver[] = "hand over";
inline constexpr char kSum[] = "sum";
// A bucket of all-reduce, or the state of a rank. The number is bytes.
inline constexpr char kAllReduce[] = "all-reduce";
inline constexpr char kBroadcast[] = "broadcast";

// The coordinator has made a view; the number is the view's.
inline constexpr char kView[] = "view";
// A part of a checkpoint is written.
inline constexpr char kWritePart[] = "write checkpoint";

}  // namespace slackline::timeline_names
