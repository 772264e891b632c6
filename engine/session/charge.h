// Charge: what a session has paid to the host's account for memory that belongs to no storage
// (names, tape, queue, late errors, programs, unread reports), and what it owes because the account
// refused. Belongs to the owner of the session's front end. The pool must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/memory/pool.h"

namespace teletensor::session {

class Charge {
 public:
  // The first bytes of a session are free of charge; the rest is charged in steps.
  static constexpr std::uint64_t kFree = 4u << 20, kStep = 1u << 20;

  // The sessions of `user` share one part of the overdraft.
  Charge(memory::Pool& host, std::string user) : host_(host), user_(std::move(user)) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    host_.release(paid_);
    (void)owe(0);
  }

  // Pays for `used` bytes. Returns false, without a change, if the account refuses.
  bool pay(std::uint64_t used) {
    const std::uint64_t due = in_steps(used - std::min(used, kFree));
    if (due > paid_ && !host_.reserve(due - paid_)) return false;
    if (due < paid_) host_.release(paid_ - due);
    paid_ = due;
    (void)owe(0);
    return true;
  }
  // The part of `used` bytes that is neither free nor paid.
  std::uint64_t unpaid(std::uint64_t used) const { return used - std::min(used, kFree + paid_); }
  // Owes this many bytes instead of what was owed before. Returns false, without a change, if the
  // overdraft does not cover it.
  bool owe(std::uint64_t bytes) {
    bytes = in_steps(bytes);
    if (bytes == owed_) return true;
    if (!host_.device().budget().overdraft().change(user_, owed_, bytes)) return false;
    owed_ = bytes;
    return true;
  }

 private:
  static std::uint64_t in_steps(std::uint64_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

  memory::Pool& host_;
  const std::string user_;
  std::uint64_t paid_ = 0, owed_ = 0;
};

}  // namespace teletensor::session
