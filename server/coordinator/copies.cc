#include "server/coordinator/copies.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/some_names.h"
#include "common/status.h"
#include "common/view/shard_bytes.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

constexpr size_t kLostMax = 256;  // Sentences.

std::shared_ptr<const View> ViewOf(const ViewEditor& editor) {
  absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(editor.view());
  SL_CHECK(view.ok(), view.status().ToString());  // We made it.
  return *std::move(view);
}

// "3 shards".
std::string Shards(size_t count) {
  return absl::StrCat(count, count == 1 ? " shard" : " shards");
}

}  // namespace

// ---- What there is ----------------------------------------------------------

void Copies::Measure() {
  candidates_.clear();
  host_of_.clear();
  std::map<std::string, int> hosts;
  for (const auto& [index, server] : members_->servers()) {
    const int host =
        hosts
            .try_emplace(server->join.host_id(), static_cast<int>(hosts.size()))
            .first->second;
    host_of_[index] = host;
    if (server->draining) continue;
    candidates_.push_back(
        {.server = index,
         .host = host,
         .load = std::vector<int64_t>(
             static_cast<size_t>(server->join.thread_size()), 0)});
  }
  const std::shared_ptr<const View> view = ViewOf(*editor_);
  bytes_.clear();
  for (int32_t id = 0; id < view->shard_count(); ++id) {
    const ShardId shard{id};
    bytes_.push_back(BytesOf(*view, shard));
    AddLoad(view->OwnerOf(shard), bytes_.back());
    for (const wire::Follower& follower : view->FollowersOf(shard))
      AddLoad({follower.server(), follower.thread()}, bytes_.back());
  }
}

void Copies::AddLoad(Owner place, int64_t bytes) {
  const auto found = std::lower_bound(
      candidates_.begin(), candidates_.end(), place.server,
      [](const Candidate& a, int32_t server) { return a.server < server; });
  if (found != candidates_.end() && found->server == place.server)
    found->load[static_cast<size_t>(place.thread)] += bytes;
}

int Copies::HostOf(int32_t server) const {
  const auto found = host_of_.find(server);
  return found == host_of_.end() ? -1 : found->second;
}

void Copies::Survey() {
  Measure();
  copying_.clear();
  stranded_.clear();
  lacking_.clear();
  const int32_t shards = editor_->view().owner_server_size();
  for (int32_t shard = 0; shard < shards; ++shard) lacking_.insert(shard);
  for (const wire::Follower& follower : editor_->view().follower()) {
    if (!follower.in_sync())
      copying_.emplace(follower.shard(), follower.server());
  }
}

bool Copies::IsDraining(int32_t server) const {
  const auto found = members_->servers().find(server);
  return found != members_->servers().end() && found->second->draining;
}

// ---- Where copies go --------------------------------------------------------

std::optional<Owner> Copies::PlaceFor(const std::vector<int32_t>& holders,
                                      absl::FunctionRef<bool(int32_t)> may,
                                      absl::FunctionRef<int64_t(int32_t)> rank,
                                      bool* any) const {
  // Of the holders' hosts.
  std::vector<int> hosts;
  for (const int32_t holder : holders) hosts.push_back(HostOf(holder));
  // How many of the holders are on its host, and so on: the smallest is best.
  using Key = std::tuple<int64_t, int64_t, int64_t>;
  std::optional<Owner> best;
  Key best_key;
  int64_t best_host = 0;
  *any = false;
  for (const Candidate& candidate : candidates_) {
    if (std::find(holders.begin(), holders.end(), candidate.server) !=
        holders.end()) {
      continue;
    }
    const int64_t on_host =
        std::count(hosts.begin(), hosts.end(), candidate.host);
    best_host = *any ? std::min(best_host, on_host) : on_host;
    *any = true;
    if (!may(candidate.server)) continue;
    const auto least =
        std::min_element(candidate.load.begin(), candidate.load.end());
    const Key key{on_host, rank(candidate.server), *least};
    if (best.has_value() && key >= best_key) continue;
    best = {.server = candidate.server,
            .thread = static_cast<int32_t>(least - candidate.load.begin())};
    best_key = key;
  }
  // Rather later on another host than now on the same one.
  if (best.has_value() && std::get<0>(best_key) > best_host)
    return std::nullopt;
  return best;
}

void Copies::OnStart(const JobStart&, CoordinatorEffects*) {
  if (options_.replicas == 0) return;
  Measure();
  survey_due_ = true;
  const wire::View& view = editor_->view();
  std::vector<wire::Follower> followers;
  // How many copies of shards of the first server are on the second one.
  absl::flat_hash_map<int32_t, absl::flat_hash_map<int32_t, int64_t>> spread;
  for (int32_t shard = 0; shard < view.owner_server_size(); ++shard) {
    const int32_t owner = view.owner_server(shard);
    std::vector<int32_t> holders = {owner};
    absl::flat_hash_map<int32_t, int64_t>& of_owner = spread[owner];
    const size_t first = followers.size();
    for (int i = 0; i < options_.replicas; ++i) {
      bool any = false;
      const std::optional<Owner> place = PlaceFor(
          holders, [](int32_t) { return true; },
          [&](int32_t server) {
            const auto copies = of_owner.find(server);
            return copies == of_owner.end() ? 0 : copies->second;
          },
          &any);
      if (!place.has_value()) break;
      holders.push_back(place->server);
      ++of_owner[place->server];
      AddLoad(*place, bytes_[static_cast<size_t>(shard)]);
      wire::Follower& follower = followers.emplace_back();
      follower.set_shard(shard);
      follower.set_server(place->server);
      follower.set_thread(place->thread);
      follower.set_since(editor_->next_number());
      follower.set_in_sync(true);
    }
    std::sort(followers.begin() + static_cast<std::ptrdiff_t>(first),
              followers.end(),
              [](const wire::Follower& a, const wire::Follower& b) {
                return a.server() < b.server();
              });
  }
  editor_->SetFollowers(std::move(followers));
}

void Copies::CountBusy() {
  busy_.clear();
  for (const auto& [shard, server] : copying_) {
    ++busy_[server];
    ++busy_[editor_->view().owner_server(shard)];
  }
}

bool Copies::HasRoom(int32_t server) const {
  const auto busy = busy_.find(server);
  return busy == busy_.end() || busy->second < options_.concurrent;
}

void Copies::Drop(int32_t shard, int32_t server) {
  const wire::Follower* const follower = editor_->FindFollower(shard, server);
  AddLoad({server, follower->thread()}, -bytes_[static_cast<size_t>(shard)]);
  if (copying_.erase({shard, server}) > 0) {
    --busy_[server];
    --busy_[editor_->view().owner_server(shard)];
  }
  editor_->RemoveFollower(shard, server);
}

bool Copies::Settle(int32_t shard) {
  stranded_.erase(shard);
  // What moves is settled when it has come.
  if (editor_->FindMove(shard) != nullptr) return false;
  const int32_t owner = editor_->view().owner_server(shard);
  std::vector<int32_t> holders = {owner};
  std::vector<int32_t> leaving, useless;
  std::vector<int32_t> synced, behind;  // Of those that stay.
  for (const wire::Follower* const follower : editor_->FollowersOf(shard)) {
    const int32_t server = follower->server();
    holders.push_back(server);
    if (IsDraining(server)) {
      (follower->in_sync() ? leaving : useless).push_back(server);
    } else {
      (follower->in_sync() ? synced : behind).push_back(server);
    }
  }
  for (const int32_t server : useless) Drop(shard, server);
  // A server that was to leave and stays has one more than is wanted.
  const auto wanted = static_cast<size_t>(options_.replicas);
  while (synced.size() + behind.size() > wanted) {
    std::vector<int32_t>& surplus = behind.empty() ? synced : behind;
    Drop(shard, surplus.back());
    surplus.pop_back();
  }
  size_t staying = synced.size() + behind.size();
  while (staying < wanted) {
    bool any = false;
    const std::optional<Owner> place = PlaceFor(
        holders, [&](int32_t server) { return HasRoom(server); },
        [](int32_t) { return 0; }, &any);
    if (!any) {
      stranded_.insert(shard);
      break;
    }
    if (!place.has_value() || !HasRoom(owner)) return false;
    editor_->AddFollower(shard, *place);
    holders.push_back(place->server);
    copying_.emplace(shard, place->server);
    ++busy_[place->server];
    ++busy_[owner];
    AddLoad(*place, bytes_[static_cast<size_t>(shard)]);
    ++staying;
  }
  if (synced.size() < staying) return false;
  for (const int32_t server : leaving) Drop(shard, server);
  return true;
}

bool Copies::Advance(const Moment&, CoordinatorEffects* effects) {
  if (!editor_->running() || options_.replicas == 0) return false;
  const bool survey =
      std::exchange(survey_due_, false) ||
      bytes_.size() != static_cast<size_t>(editor_->view().owner_server_size());
  if (!survey && changed_.empty()) return false;
  if (survey) Survey();
  CountBusy();
  for (const int32_t shard : std::exchange(changed_, {})) {
    lacking_.erase(shard);
    if (!Settle(shard)) lacking_.insert(shard);
  }
  const auto has_room = [&](const auto& entry) {
    return !entry.second->draining && HasRoom(entry.first);
  };
  const auto& servers = members_->servers();
  for (auto at = lacking_.begin(); at != lacking_.end();) {
    if (!survey && std::none_of(servers.begin(), servers.end(), has_room))
      break;
    at = Settle(*at) ? lacking_.erase(at) : std::next(at);
  }
  Say(effects);
  return true;
}

void Copies::Say(CoordinatorEffects* effects) {
  if (!stranded_.empty() && stranded_.size() != said_stranded_) {
    effects->warnings.push_back(absl::StrCat(
        Shards(stranded_.size()), " of ", bytes_.size(), " have fewer than ",
        options_.replicas, options_.replicas == 1 ? " copy" : " copies",
        ", and no server is left that could have more; they are made when one "
        "joins: slackline servers add"));
  }
  said_stranded_ = stranded_.size();
  // What waits for a move is no news.
  const bool begun = !said_copying_ && !copying_.empty();
  const bool over = said_copying_ && copying_.empty() && lacking_.empty();
  if (begun) {
    effects->log.push_back(
        absl::StrCat("copies are made anew, of ", Shards(lacking_.size())));
  } else if (over) {
    effects->log.push_back(
        absl::StrCat("copies: all are in sync that there is a server for; ",
                     made_, " were made since the job began"));
  }
  said_copying_ = begun || (said_copying_ && !over);
}

// ---- What servers say -------------------------------------------------------

bool Copies::OnServerStats(const Member& server) {
  bool any = false;
  for (const run::FollowerState& state : server.server.follower()) {
    // Only who is listed as the owner knows what its followers have.
    if (!state.in_sync() || !editor_->Owns(server.index(), state.shard()))
      continue;
    const wire::Follower* const follower =
        editor_->FindFollower(state.shard(), state.server());
    if (follower == nullptr || follower->in_sync() ||
        follower->since() != state.since()) {
      continue;  // An old story.
    }
    editor_->SetInSync(state.shard(), state.server());
    copying_.erase({state.shard(), state.server()});
    changed_.insert(state.shard());
    ++made_;
    any = true;
  }
  return any;
}

// ---- Servers go -------------------------------------------------------------

std::string Copies::WhyNotReplaceable(int32_t server) const {
  if (!editor_->OwnsShards(server)) return "";
  const std::string lost = "; its shards are lost, so the job cannot go on";
  if (options_.replicas == 0) {
    return absl::StrCat(
        lost, "; with replicas: 1 in the config each has a copy elsewhere");
  }
  std::vector<std::string> names;
  for (int32_t shard = 0; shard < editor_->view().owner_server_size();
       ++shard) {
    if (!editor_->Owns(server, shard)) continue;
    const auto followers = editor_->FollowersOf(shard);
    if (std::none_of(followers.begin(), followers.end(),
                     [](const wire::Follower* f) { return f->in_sync(); })) {
      names.push_back(absl::StrCat("shard ", shard));
    }
  }
  if (names.empty()) return "";
  return absl::StrCat(
      lost, ": there was no copy in sync of ", SomeNames(names),
      options_.replicas == 1
          ? "; replicas: 2 in the config outlives two servers at a time"
          : "");
}

std::map<int32_t, int32_t> Copies::HeirsOf(int32_t server) {
  std::map<int32_t, int32_t> heirs;
  if (!editor_->OwnsShards(server)) return heirs;
  const std::shared_ptr<const View> view = ViewOf(*editor_);
  std::map<Owner, int64_t> owned;
  for (int32_t id = 0; id < view->shard_count(); ++id)
    owned[view->OwnerOf(ShardId{id})] += BytesOf(*view, ShardId{id});
  for (int32_t id = 0; id < view->shard_count(); ++id) {
    const ShardId shard{id};
    if (view->OwnerOf(shard).server != server) continue;
    const wire::Move* const move = view->FindMove(shard);
    // Of the shard's next owner anyway: it may serve the shard already. Then of
    // who stays, and then who has the least.
    using Key = std::tuple<bool, bool, int64_t>;
    std::optional<Owner> best;
    Key best_key;
    for (const wire::Follower& follower : view->FollowersOf(shard)) {
      if (!follower.in_sync()) continue;
      const Owner heir{.server = follower.server(),
                       .thread = follower.thread()};
      const bool next = move != nullptr && move->server() == heir.server;
      const Key key{!next, IsDraining(heir.server), owned[heir]};
      if (best.has_value() && key >= best_key) continue;
      best = heir;
      best_key = key;
    }
    SL_CHECK(best.has_value(), "a server that nobody can replace");
    owned[*best] += BytesOf(*view, shard);
    heirs[id] = best->server;
  }
  return heirs;
}

void Copies::OnGone(const GoneMember& gone, CoordinatorEffects* effects) {
  const Member& server = gone.member;
  if (!editor_->running() || server.worker_role()) return;
  const std::map<int32_t, int32_t> heirs = HeirsOf(server.index());
  editor_->RemoveServer(server.index(), heirs);
  survey_due_ = true;
  std::string text = gone.sentence;
  if (!heirs.empty()) {
    std::map<int32_t, size_t> counts;
    for (const auto& [shard, heir] : heirs) ++counts[heir];
    std::vector<std::string> names;
    for (const auto& [heir, count] : counts)
      names.push_back(absl::StrCat("server ", heir, " (", count, ")"));
    const std::string to = absl::StrCat(
        Shards(heirs.size()), " of server ", server.index(), " belong",
        heirs.size() == 1 ? "s" : "", " now to ", SomeNames(names),
        ", which had copies of ", heirs.size() == 1 ? "it" : "them");
    effects->warnings.push_back(to);
    absl::StrAppend(&text, "; ", to);
    taken_over_ += static_cast<int64_t>(heirs.size());
  }
  if (heirs.empty() && server.draining) return;  // As it should be.
  if (lost_.size() < kLostMax) lost_.push_back(text);
}

std::optional<int32_t> Copies::Promote(int32_t shard) {
  const wire::Follower* best = nullptr;
  for (const wire::Follower* const follower : editor_->FollowersOf(shard)) {
    if (!follower->in_sync()) continue;
    if (best == nullptr ||
        (IsDraining(best->server()) && !IsDraining(follower->server()))) {
      best = follower;
    }
  }
  if (best == nullptr) return std::nullopt;
  const int32_t server = best->server();
  editor_->Promote(shard, server);
  ++taken_over_;
  changed_.insert(shard);
  return server;
}

// ---- Reports ----------------------------------------------------------------

void Copies::Keep(absl::Time, KeptState* kept) {
  coordinator::CopiesState state;
  state.set_made(made_);
  state.set_taken_over(taken_over_);
  state.mutable_lost()->Add(lost_.begin(), lost_.end());
  kept->Put("copies", state);
}

absl::Status Copies::Load(const StateReader& reader, const Moment&,
                          CoordinatorEffects*) {
  if (editor_->view().phase_size() == 0) return absl::OkStatus();
  coordinator::CopiesState state;
  SL_RETURN_IF_ERROR(reader.Read("copies", &state));
  made_ = state.made();
  taken_over_ = state.taken_over();
  lost_.assign(state.lost().begin(), state.lost().end());
  survey_due_ = true;
  return absl::OkStatus();
}

void Copies::PutStatus(const StatusQuestion&, wire::StatusReply* status) const {
  if (lacking_.empty() && stranded_.empty()) return;
  std::string text = absl::StrCat(
      lacking_.size(), " of ", Shards(bytes_.size()),
      " have copies to be made or dropped, ", copying_.size(), " are made now");
  if (!stranded_.empty()) {
    absl::StrAppend(&text, "; for copies of ", stranded_.size(),
                    " no server is left");
  }
  status->set_copies(text);
}

void Copies::PutSummary(run::Summary* summary) const {
  summary->set_replicas(options_.replicas);
  summary->set_shards_taken_over(taken_over_);
  summary->set_copies_made(made_);
  for (const std::string& sentence : lost_) summary->add_servers_lost(sentence);
}

}  // namespace slackline
