// Goal: what the coordinator sends of a view's edits makes of the view before
// it exactly the view after them; and a change that does not fit is refused
// whole. Method: random edits, and a twin that is made of the whole view each
// time.
#include "server/coordinator/view_editor.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/view/shard_map.h"
#include "gtest/gtest.h"
#include "server/coordinator/job_end.h"

namespace slackline::view_editor_test {

using Committed = ViewEditor::Committed;

wire::ServerMember ServerOf(int32_t index, int threads, uint64_t incarnation) {
  wire::ServerMember server;
  server.set_index(index);
  server.set_incarnation(incarnation);
  for (int t = 0; t < threads; ++t) {
    server.add_thread()->add_endpoint(
        absl::StrCat("tcp://server", index, ":", t));
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
  // One follower for each shard, and two for some.
  std::vector<wire::Follower> followers;
  for (int32_t shard = 0; shard < shards && servers > 2; ++shard) {
    for (int32_t s = 0; s < servers; ++s) {
      const int next =
          (s - editor.view().owner_server(shard) + servers) % servers;
      if (next == 0 || next > 1 + (shard % 10 == 0 ? 1 : 0)) continue;
      wire::Follower& follower = followers.emplace_back();
      follower.set_shard(shard);
      follower.set_server(s);
      follower.set_thread(shard % 2);
      follower.set_since(1);
      follower.set_in_sync(true);
    }
  }
  editor.SetFollowers(std::move(followers));
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
    const auto followers = view.FollowersOf(shard);
    const auto theirs = twin->FollowersOf(shard);
    ASSERT_TRUE(std::equal(followers.begin(), followers.end(), theirs.begin(),
                           theirs.end(), IsSame));
    const auto ours = editor.FollowersOf(id);
    ASSERT_TRUE(
        std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                   [](const auto* a, const auto& b) { return IsSame(*a, b); }));
  }
  const auto ranges = view.ShardsOf(TableId{0});
  const auto theirs = twin->ShardsOf(TableId{0});
  ASSERT_EQ(ranges.size(), theirs.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    ASSERT_EQ(ranges[i].shard, theirs[i].shard);
    ASSERT_EQ(ranges[i].region, theirs[i].region);
  }
  for (int32_t s = 0; s < 20; ++s) {
    ASSERT_EQ(editor.OwnsShards(s), twin->OwnsAny(s));
    ASSERT_EQ(editor.FollowsShards(s),
              std::any_of(editor.view().follower().begin(),
                          editor.view().follower().end(),
                          [&](const auto& f) { return f.server() == s; }));
  }
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
  // Half of them are about a few shards, so that edits of one event meet.
  const auto some_shard = [&] {
    return rng->Chance(0.5) ? any_shard()
                            : static_cast<int32_t>(rng->Between(0, 5));
  };
  switch (rng->Between(0, 17)) {
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
      std::map<int32_t, int32_t> heirs;
      for (int32_t shard = 0; shard < view.owner_server_size(); ++shard) {
        if (!editor->Owns(index, shard)) continue;
        const auto followers = editor->FollowersOf(shard);
        if (followers.empty()) return;
        heirs[shard] = followers[rng->Below(followers.size())]->server();
      }
      return editor->RemoveServer(index, heirs);
    }
    case 4: {
      wire::ServerMember server = any_server();
      server.set_draining(true);
      return editor->PutServer(server);
    }
    case 5:
    case 6: {
      const int32_t shard = some_shard();
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
      const int32_t shard = some_shard();
      const ShardRange range = Whole(*editor)->shard(ShardId{shard});
      if (range.region.size() < 2) return;
      return editor->Split(shard, rng->Between(range.region.begin() + 1,
                                               range.region.end() - 1));
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
    case 12:
    case 13: {
      const int32_t shard = some_shard();
      const int32_t server = any_server().index();
      if (editor->Owns(server, shard) ||
          editor->FindFollower(shard, server) != nullptr) {
        return;
      }
      return editor->AddFollower(shard, {server, rng->Chance(0.5) ? 1 : 0});
    }
    case 14:
    case 15:
    case 16: {
      const int32_t shard = some_shard();
      const auto followers = editor->FollowersOf(shard);
      if (followers.empty()) return;
      const int32_t server = followers[rng->Below(followers.size())]->server();
      if (rng->Chance(0.4)) return editor->SetInSync(shard, server);
      if (rng->Chance(0.6)) return editor->RemoveFollower(shard, server);
      return editor->Promote(shard, server);
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
    const int64_t edits = rng.Between(0, 8);
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

INSTANTIATE_TEST_SUITE_P(Seeds, ViewEditorProperty, ::testing::Range(1, 41));

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
  editor.PutServer(ServerOf(2, 2, 102));
  editor.OrderMove(1, {.server = 2, .thread = 1});
  editor.RemoveServer(2);
  ASSERT_EQ(editor.Commit(), Committed::kChange);
  EXPECT_EQ(editor.change().move_size() + editor.change().move_gone_size(), 0);
  const auto after = before->With(editor.change());
  ASSERT_TRUE(after.ok()) << after.status();
  ExpectSame(**after, editor);
}

// ---- Followers --------------------------------------------------------------

// Three servers; of six shards 0 and 3, 1 and 4, 2 and 5 belong to one each,
// and the next server follows them. Shard 0 has two followers.
class FollowersTest : public ::testing::Test {
 protected:
  FollowersTest() {
    wire::View view = editor_.view();
    view.clear_follower();
    const auto follow = [&](int32_t shard, int32_t server) {
      wire::Follower& follower = *view.add_follower();
      follower.set_shard(shard);
      follower.set_server(server);
      follower.set_thread(shard % 2);
      follower.set_since(1);
      follower.set_in_sync(true);
    };
    for (int32_t shard = 0; shard < 6; ++shard) {
      view.set_owner_server(shard, shard % 3);
      view.set_owner_thread(shard, 0);
      follow(shard, (shard + 1) % 3);
      if (shard == 0) follow(shard, 2);
    }
    editor_ = ViewEditor(view);
    view_ = Whole(editor_);
  }

  // Commits, and checks what the change makes of the view.
  void Commit() {
    ASSERT_EQ(editor_.Commit(), Committed::kChange);
    const auto next = view_->With(editor_.change());
    ASSERT_TRUE(next.ok()) << next.status();
    view_ = *next;
    ASSERT_NO_FATAL_FAILURE(ExpectSame(*view_, editor_));
  }
  // "1.0 2.1+": thread 0 of server 1, and thread 1 of server 2, in sync.
  std::string Followers(int32_t shard) {
    std::string text;
    for (const wire::Follower& follower : view_->FollowersOf(ShardId{shard})) {
      absl::StrAppend(&text, text.empty() ? "" : " ", follower.server(), ".",
                      follower.thread(), follower.in_sync() ? "+" : "");
    }
    return text;
  }

  ViewEditor editor_ = Job(3, 1, 6);
  std::shared_ptr<const View> view_;
};

TEST_F(FollowersTest, ANewOneIsNotInSyncUntilSomebodySaysSo) {
  const uint64_t number = editor_.next_number();
  EXPECT_EQ(Followers(1), "2.1+");
  editor_.AddFollower(1, {.server = 0, .thread = 1});
  Commit();
  EXPECT_EQ(Followers(1), "0.1 2.1+");
  EXPECT_EQ(view_->FollowersOf(ShardId{1})[0].since(), number);
  editor_.SetInSync(1, 0);
  Commit();
  EXPECT_EQ(Followers(1), "0.1+ 2.1+");
  EXPECT_EQ(view_->FollowersOf(ShardId{1})[0].since(), number);
  editor_.RemoveFollower(1, 2);
  Commit();
  EXPECT_EQ(Followers(1), "0.1+");
}

TEST_F(FollowersTest, WhatIsUndoneInTheSameEventWasNeverThere) {
  editor_.AddFollower(1, {.server = 0, .thread = 1});
  editor_.SetInSync(1, 0);
  editor_.RemoveFollower(1, 0);
  editor_.SetInSync(2, 0);  // It is.
  Commit();
  EXPECT_EQ(editor_.change().follower_size(), 0);
  EXPECT_EQ(editor_.change().follower_gone_size(), 0);
}

TEST_F(FollowersTest, AnOwnerThatIsGoneIsFollowedByWhoHasACopy) {
  editor_.OrderMove(0, {.server = 1, .thread = 0});  // Off it,
  editor_.OrderMove(2, {.server = 0, .thread = 0});  // to it, and
  editor_.OrderMove(5, {.server = 1, .thread = 1});  // past it.
  editor_.RemoveServer(0, {{0, 2}, {3, 1}});
  Commit();
  EXPECT_EQ(view_->OwnerOf(ShardId{0}), (Owner{2, 0}));
  EXPECT_EQ(view_->OwnerOf(ShardId{3}), (Owner{1, 1}));
  EXPECT_EQ(Followers(0), "1.0+") << "the other one stays";
  EXPECT_EQ(Followers(3), "");
  EXPECT_EQ(Followers(2), "") << "it was on the server that is gone";
  EXPECT_EQ(Followers(1), "2.1+");
  EXPECT_EQ(view_->FindMove(ShardId{0}), nullptr);
  EXPECT_EQ(view_->FindMove(ShardId{2}), nullptr);
  EXPECT_NE(view_->FindMove(ShardId{5}), nullptr);
  EXPECT_EQ(editor_.change().move_gone_size(), 0) << "they were never there";
}

TEST_F(FollowersTest, TwoServersThatAreGoneInOneEventMakeOneView) {
  editor_.RemoveServer(0, {{0, 1}, {3, 1}});
  editor_.PutServer(ServerOf(3, 2, 103));
  editor_.AddFollower(1, {.server = 3, .thread = 0});
  editor_.AddFollower(3, {.server = 3, .thread = 0});
  editor_.AddFollower(4, {.server = 3, .thread = 1});
  editor_.RemoveServer(1, {{0, 2}, {1, 2}, {3, 3}, {4, 3}});
  Commit();
  EXPECT_EQ(view_->OwnerOf(ShardId{0}), (Owner{2, 0}));
  EXPECT_EQ(view_->OwnerOf(ShardId{3}), (Owner{3, 0}));
  EXPECT_EQ(Followers(0), "");
  EXPECT_EQ(Followers(1), "3.0");
}

TEST_F(FollowersTest, AMoveToAFollowerChangesPlaces) {
  const uint64_t id = editor_.next_number();
  editor_.OrderMove(1, {.server = 2, .thread = 1});
  Commit();
  EXPECT_EQ(Followers(1), "2.1+") << "until it is done";
  editor_.FinishMove(1);
  Commit();
  EXPECT_EQ(view_->OwnerOf(ShardId{1}), (Owner{2, 1}));
  EXPECT_EQ(Followers(1), "1.0+");
  EXPECT_EQ(view_->FollowersOf(ShardId{1})[0].since(), id);
}

TEST_F(FollowersTest, AMoveElsewhereLeavesTheFollowersAsTheyAre) {
  editor_.OrderMove(1, {.server = 0, .thread = 1});
  editor_.FinishMove(1);
  Commit();
  EXPECT_EQ(view_->OwnerOf(ShardId{1}), (Owner{0, 1}));
  EXPECT_EQ(Followers(1), "2.1+");
}

// The change lists the split, and the receiver knows only the followers before
// it.
TEST_F(FollowersTest, ASplitInheritsWhatTheSameEventHasChanged) {
  editor_.RemoveFollower(0, 1);
  editor_.Promote(3, 1);
  editor_.AddFollower(3, {.server = 2, .thread = 1});
  editor_.Split(0, 50);
  editor_.Split(3, 350);
  editor_.Split(6, 70);
  editor_.AddFollower(8, {.server = 1, .thread = 0});
  editor_.RemoveFollower(8, 2);
  Commit();
  EXPECT_EQ(Followers(6), "2.0+");
  EXPECT_EQ(Followers(7), "2.1");
  EXPECT_EQ(view_->OwnerOf(ShardId{7}).server, 1);
  EXPECT_EQ(Followers(8), "1.0");
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

}  // namespace slackline::view_editor_test
