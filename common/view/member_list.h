// The members of a view: an immutable list, servers by index or workers by
// rank. A list that is made from another one shares its members.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "common/view/member_lists.h"
#include "google/protobuf/repeated_field.h"

namespace slackline {

// `Member` is wire::ServerMember or wire::WorkerMember.
template <typename Member>
class MemberList {
 public:
  class Iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = Member;
    using difference_type = std::ptrdiff_t;
    using pointer = const Member*;
    using reference = const Member&;

    Iterator() = default;
    explicit Iterator(const std::shared_ptr<const Member>* at) : at_(at) {}
    reference operator*() const { return **at_; }
    pointer operator->() const { return at_->get(); }
    reference operator[](difference_type n) const { return *at_[n]; }
    Iterator& operator+=(difference_type n) {
      at_ += n;
      return *this;
    }
    Iterator& operator-=(difference_type n) { return *this += -n; }
    Iterator& operator++() { return *this += 1; }
    Iterator& operator--() { return *this += -1; }
    Iterator operator++(int) { return std::exchange(*this, *this + 1); }
    Iterator operator--(int) { return std::exchange(*this, *this - 1); }
    friend Iterator operator+(Iterator a, difference_type n) { return a += n; }
    friend Iterator operator-(Iterator a, difference_type n) { return a -= n; }
    difference_type operator-(const Iterator& other) const {
      return at_ - other.at_;
    }
    auto operator<=>(const Iterator& other) const = default;

   private:
    const std::shared_ptr<const Member>* at_ = nullptr;
  };

  MemberList() = default;
  explicit MemberList(google::protobuf::RepeatedPtrField<Member> members) {
    members_.reserve(members.size());
    for (Member& member : members)
      members_.push_back(std::make_shared<const Member>(std::move(member)));
  }

  Iterator begin() const { return Iterator(members_.data()); }
  Iterator end() const { return begin() + size(); }
  int size() const { return static_cast<int>(members_.size()); }
  bool empty() const { return members_.empty(); }
  // nullptr if there is none.
  const Member* Find(int32_t key) const { return FindMember(*this, key); }
  void AddTo(google::protobuf::RepeatedPtrField<Member>* members) const {
    for (const Member& member : *this) *members->Add() = member;
  }

  // ---- To be called while this list is made, before anybody else sees it.
  // Adds a member, or puts it in the place of the one that is there.
  void Put(const Member& member) {
    const auto place = PlaceOf(MemberKey(member));
    auto added = std::make_shared<const Member>(member);
    if (place != members_.end() && MemberKey(**place) == MemberKey(member)) {
      *place = std::move(added);
    } else {
      members_.insert(place, std::move(added));
    }
  }
  // Removes the member, if it is there.
  void Remove(int32_t key) {
    const auto place = PlaceOf(key);
    if (place != members_.end() && MemberKey(**place) == key)
      members_.erase(place);
  }

 private:
  auto PlaceOf(int32_t key) {
    return members_.begin() + (MemberPlace(*this, key) - begin());
  }

  std::vector<std::shared_ptr<const Member>> members_;
};

}  // namespace slackline
