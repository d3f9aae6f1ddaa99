// Goal: what the coordinator sends of a view's edits makes of the view before
// it exactly the view after them; and a change that does not fit is refused
// whole. Method: random edits, and a twin that is made of the whole view each
// time.
#include "server/coordinator/view_editor.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/view/shard_map.h"
#include "gtest/gtest.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

using Committed = ViewEditor::Committed;

wire::ServerMember ServerOf(int32_t index, int threads, uint64_t incarnation) {
  wire::ServerMember server;
  server.set_index(index);
  server.set_incarnation(incarnation);
  for (int t = 0; t < threads; ++t) {
    server.add_thread()->set_tcp(absl::StrCat("tcp://server", index, ":", t));
  }
  return server;
}

wire::WorkerMember WorkerOf(int32_t rank, uint64_t incarnation) {
  wire::WorkerMember worker;
  worker.set_rank(rank);
  worker.set_incarnation(incarnation);
  worker.set_host("somewhere");
  return worker;
}

// A job that runs, of so many servers with two threads each.
ViewEditor Job(int servers, int workers, int64_t shards) {
  ViewEditor editor{wire::View()};
  std::vector<Owner> threads;
  for (int s = 0; s < servers; ++s) {
    editor.PutServer(ServerOf(s, 2, 100 + static_cast<uint64_t>(s)));
    threads.push_back({s, 0});
    threads.push_back({s, 1});
  }
  for (int w = 0; w < workers; ++w)
    editor.PutWorker(WorkerOf(w, 10000 + static_cast<uint64_t>(w)));
  wire::Table table;
  table.set_name("weight");
  table.add_shape(shards * 100);
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  editor.PlaceTables({table}, threads, 100);
  editor.Run(/*steps_total=*/1000, /*steps_per_epoch=*/100);
  editor.SetPhases({wire::Phase()});
  EXPECT_EQ(editor.Commit(), Committed::kWhole);
  return editor;
}

std::shared_ptr<const View> Whole(const ViewEditor& editor) {
  auto view = View::Create(editor.view());
  EXPECT_TRUE(view.ok()) << view.status();
  return *view;
}

void ExpectSame(const View& view, const ViewEditor& editor) {
  const std::shared_ptr<const View> twin = Whole(editor);
  ASSERT_EQ(view.ToProto().SerializeAsString(),
            editor.view().SerializeAsString());
  ASSERT_EQ(view.shard_count(), twin->shard_count());
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardId shard{id};
    ASSERT_EQ(view.OwnerOf(shard), twin->OwnerOf(shard));
    ASSERT_EQ(view.ShardName(shard), twin->ShardName(shard));
    ASSERT_EQ(view.RangeSince(shard), twin->RangeSince(shard));
    ASSERT_EQ(view.OriginOf(shard), twin->OriginOf(shard));
    ASSERT_EQ(view.FindMove(shard) == nullptr,
              twin->FindMove(shard) == nullptr);
  }
  const auto ranges = view.ShardsOf(TableId{0});
  const auto theirs = twin->ShardsOf(TableId{0});
  ASSERT_EQ(ranges.size(), theirs.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    ASSERT_EQ(ranges[i].shard, theirs[i].shard);
    ASSERT_EQ(ranges[i].begin, theirs[i].begin);
    ASSERT_EQ(ranges[i].end, theirs[i].end);
  }
  for (int32_t s = 0; s < 20; ++s)
    ASSERT_EQ(editor.OwnsShards(s), twin->OwnsAny(s));
}

// One edit that the coordinator might make.
void EditAtRandom(Rng* rng, uint64_t* life, ViewEditor* editor) {
  const wire::View& view = editor->view();
  const auto any_shard = [&] {
    return static_cast<int32_t>(rng->Between(0, view.owner_server_size() - 1));
  };
  const auto any_server = [&] {
    return view.server(
        static_cast<int>(rng->Between(0, view.server_size() - 1)));
  };
  switch (rng->Between(0, 12)) {
    case 0:
      return editor->PutWorker(
          WorkerOf(static_cast<int32_t>(rng->Between(0, 9)), ++*life));
    case 1:
      return editor->RemoveWorker(static_cast<int32_t>(rng->Between(0, 9)));
    case 2:
      return editor->PutServer(
          ServerOf(static_cast<int32_t>(4 + rng->Between(0, 9)), 2, ++*life));
    case 3: {
      const int32_t index = any_server().index();
      if (editor->OwnsShards(index)) return;
      editor->DropMovesTo(index);
      return editor->RemoveServer(index);
    }
    case 4: {
      wire::ServerMember server = any_server();
      server.set_draining(true);
      return editor->PutServer(server);
    }
    case 5:
    case 6: {
      const int32_t shard = any_shard();
      if (editor->FindMove(shard) != nullptr) return;
      return editor->OrderMove(shard, {.server = any_server().index(),
                                       .thread = rng->Chance(0.5) ? 1 : 0});
    }
    case 7:
    case 8:
      if (view.move_size() == 0) return;
      return editor->FinishMove(
          view.move(static_cast<int>(rng->Between(0, view.move_size() - 1)))
              .shard());
    case 9: {
      const int32_t shard = any_shard();
      const ShardRange range = Whole(*editor)->shard(ShardId{shard});
      if (range.elements() < 2) return;
      return editor->Split(shard, rng->Between(range.begin + 1, range.end - 1));
    }
    case 10: {
      if (view.has_change()) {
        wire::Phase phase;
        phase.set_from(view.phase(view.phase_size() - 1).from() + 1);
        editor->CloseChange();
        editor->AddPhase(phase);
      } else {
        editor->OpenChange(wire::ModeChange());
      }
      return;
    }
    case 11: {
      wire::Cut cut;
      cut.set_number(view.cut().number() + 1);
      if (rng->Chance(0.5)) {
        cut.set_clock(rng->Between(0, 100));
        cut.set_by_worker(rng->Chance(0.5));
      }
      for (const wire::WorkerMember& worker : view.worker()) {
        if (cut.clock() > 0 || cut.by_worker()) break;
        wire::Cut::Until& until = *cut.add_until();
        until.set_rank(worker.rank());
        until.set_incarnation(worker.incarnation());
        until.set_clock(rng->Between(0, 100));
      }
      return editor->SetCut(cut);
    }
    default:
      editor->SetArrived(static_cast<Clock>(rng->Between(0, 100)));
      editor->SetEntered(view.phase_size() - 1);
      return editor->Regroup();
  }
}

class ViewEditorProperty : public ::testing::TestWithParam<int> {};

TEST_P(ViewEditorProperty, ChangesMakeTheSameViewAsTheWhole) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  Rng rng(static_cast<uint64_t>(GetParam()));
  ViewEditor editor = Job(/*servers=*/4, /*workers=*/5, /*shards=*/1200);
  uint64_t life = 20000;
  std::shared_ptr<const View> view = Whole(editor);
  for (int event = 0; event < 60; ++event) {
    const std::string before = view->ToProto().SerializeAsString();
    const int64_t edits = rng.Between(0, 4);
    for (int i = 0; i < edits; ++i) EditAtRandom(&rng, &life, &editor);
    const uint64_t number = editor.view().number();
    const Committed committed = editor.Commit();
    if (committed == Committed::kNothing) {
      ASSERT_EQ(editor.view().number(), number);
      continue;
    }
    ASSERT_EQ(editor.view().number(), number + 1);
    ASSERT_EQ(committed, Committed::kChange);
    const auto next = view->With(editor.change());
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_EQ(view->ToProto().SerializeAsString(), before) << "it is immutable";
    view = *next;
    ASSERT_NO_FATAL_FAILURE(ExpectSame(*view, editor));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ViewEditorProperty, ::testing::Range(1, 21));

TEST(ViewEditorTest, AChangeOfALargeJobIsSmall) {
  ViewEditor editor = Job(/*servers=*/1000, /*workers=*/1000, 100'000);
  const size_t whole = editor.view().ByteSizeLong();
  EXPECT_GT(whole, 300'000u);
  editor.OrderMove(5, {.server = 7, .thread = 1});
  editor.RemoveWorker(3);
  ASSERT_EQ(editor.Commit(), Committed::kChange);
  EXPECT_LT(editor.change().ByteSizeLong(), 200u);
}

TEST(ViewEditorTest, WhatIsOrderedAndDroppedInOneEventWasNeverThere) {
  ViewEditor editor = Job(2, 1, 4);
  const std::shared_ptr<const View> before = Whole(editor);
  editor.OrderMove(1, {.server = 1, .thread = 1});
  editor.DropMovesTo(1);
  ASSERT_EQ(editor.Commit(), Committed::kChange);
  EXPECT_EQ(editor.change().move_size() + editor.change().move_gone_size(), 0);
  const auto after = before->With(editor.change());
  ASSERT_TRUE(after.ok()) << after.status();
  ExpectSame(**after, editor);
}

TEST(ViewEditorTest, AnEndIsFinal) {
  ViewEditor editor = Job(1, 1, 1);
  editor.End(JobEndOf(wire::JobEnd::STOPPED, "first"));
  editor.End(JobEndOf(wire::JobEnd::COMPLETED, "second"));
  editor.Commit();
  EXPECT_EQ(editor.view().state(), wire::FAILED);
  EXPECT_EQ(editor.view().end().cause(), wire::JobEnd::STOPPED);
  EXPECT_EQ(editor.view().end().reason(), "first");
}

// ---- Changes that do not fit
// --------------------------------------------------

TEST(ViewChangeTest, WhatDoesNotFitIsRefused) {
  const ViewEditor editor = Job(/*servers=*/2, /*workers=*/2, /*shards=*/8);
  const std::shared_ptr<const View> view = Whole(editor);
  wire::ViewChange good;
  good.set_base(view->number());
  good.set_number(view->number() + 1);
  good.set_state(wire::RUNNING);
  ASSERT_TRUE(view->With(good).ok());
  using Spoil = std::function<void(wire::ViewChange&)>;
  const auto owner = [](int32_t shard, int32_t server, int32_t thread) {
    return [=](wire::ViewChange& change) {
      wire::ShardOwner& owner = *change.add_owner();
      owner.set_shard(shard);
      owner.set_server(server);
      owner.set_thread(thread);
    };
  };
  const auto move = [](int32_t shard, int32_t server, int32_t thread) {
    return [=](wire::ViewChange& change) {
      wire::Move& move = *change.add_move();
      move.set_shard(shard);
      move.set_server(server);
      move.set_thread(thread);
    };
  };
  const auto split = [](int32_t shard, int64_t at) {
    return [=](wire::ViewChange& change) {
      wire::Split& split = *change.add_split();
      split.set_shard(shard);
      split.set_at(at);
    };
  };
  const auto cut = [](int32_t number, int64_t clock) {
    return [=](wire::ViewChange& change) {
      change.mutable_cut()->set_number(number);
      change.mutable_cut()->set_clock(clock);
    };
  };
  const std::vector<Spoil> cases = {
      [](auto& change) { change.set_number(change.base()); },
      [](auto& change) { change.set_entered(-1); },
      [](auto& change) { change.set_entered(1); },
      [](auto& change) { change.add_phase(); },         // From clock 0 again.
      [](auto& change) { change.add_server_gone(1); },  // It owns shards.
      [](auto& change) { *change.add_server() = ServerOf(1, 1, 5); },
      owner(-1, 0, 0),
      owner(8, 0, 0),
      owner(0, 2, 0),
      owner(0, 0, 2),
      owner(0, 0, -1),
      move(-1, 0, 0),
      move(8, 0, 0),
      move(0, 7, 0),
      move(0, 0, 2),
      [&](auto& change) {
        move(0, 0, 0)(change);
        move(0, 1, 0)(change);
      },
      cut(0, 5),  // Not a newer one.
      cut(-1, 5),
      cut(1, -1),
      cut(1, std::numeric_limits<int64_t>::max()),
      [](auto& change) {
        change.mutable_cut()->set_number(1);
        change.mutable_cut()->set_clock(3);
        change.mutable_cut()->add_until();
      },
      [](auto& change) {
        change.mutable_cut()->set_number(1);
        change.mutable_cut()->set_by_worker(true);
        change.mutable_cut()->add_until();
      },
      [](auto& change) {
        change.mutable_cut()->set_number(1);
        change.mutable_cut()->add_until();
        change.mutable_cut()->add_until();  // The same rank again.
      },
      [](auto& change) {
        change.mutable_cut()->set_number(1);
        change.mutable_cut()->add_until()->set_clock(-1);
      },
      [](auto& change) { change.add_worker()->set_begins_at(-1); },
      split(-1, 50),
      split(8, 850),
      split(1, 100),
      split(1, 200),
      split(0, std::numeric_limits<int64_t>::max()),
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    wire::ViewChange change = good;
    cases[i](change);
    EXPECT_EQ(view->With(change).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "case " << i;
  }
  good.set_base(view->number() + 1);
  good.set_number(view->number() + 2);
  EXPECT_EQ(view->With(good).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace slackline
