// Bookkeeping: the memory of a session that belongs to no tensor, which is charged to the host's
// account, and the limits on what its client can make grow.
//
// Charged are names, tape and queue, late errors, programs and their plans, and the reports that
// the client has not read. If the account refuses, instructions fail. A client that still adds
// names or programs breaks its session once the overdraft does not cover them.
//
// Belongs to the owner of the session's front end; publish_to() may be called by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/autograd/front.h"
#include "engine/engine.h"
#include "engine/program/template.h"
#include "engine/runtime/back/back.h"
#include "engine/session/charge.h"

namespace teletensor::session {

class Bookkeeping {
 public:
  // The excess over the limits of handles and of tape at which the session is broken.
  static constexpr std::uint64_t kMaxExcess = 1u << 18, kMaxTapeExcess = 256u << 20;

  // The sessions of `user` share one part of the overdraft.
  Bookkeeping(const autograd::Front& front, runtime::Back& back,
              const engine::SessionListener& listener, memory::Pool& host, std::string user,
              const program::Amounts& limits)
      : front_(front),
        back_(back),
        listener_(listener),
        host_(host),
        limits_(limits),
        charge_(host, std::move(user)) {}

  // Charges the present memory. Returns false, without a change, if the account refuses.
  bool charge();
  // Returns true if the session stays within the limits of handles and tape with its next command
  // (null: the front end continues a command that has begun).
  bool fits(const program::Command* next) const {
    return (limits_.handles == 0 || handles_fit(next)) &&
           (limits_.tape_bytes == 0 || tape_bytes() <= limits_.tape_bytes);
  }
  // Returns true if the session stays within the limits of fits() even with the largest repetition
  // of a template.
  bool fits_template() const {
    // kBytes: more than a handle, a value and a node of the tape.
    constexpr std::uint64_t kMost = program::Template::kMaxSteps, kBytes = 4096;
    return (limits_.handles == 0 || front_.handles() + kMost < limits_.handles) &&
           (limits_.tape_bytes == 0 || tape_bytes() + kMost * kBytes < limits_.tape_bytes);
  }
  // Makes the queue refuse instructions if the session exceeds its limits or the account refuses,
  // and accept them again otherwise. Returns an error if the session ends with the command `seq`.
  // Precondition: nothing is queued, or entries are refused already.
  core::Status refuse_or_resume(const program::Command* next, std::uint64_t seq);
  // Returns an error if the session may not spend more time on planning this new program.
  core::Status may_plan(const program::Program& program);
  // Counts the time that checking and planning programs has taken, and forgets the plans that
  // nothing can call any more.
  void count_plans();
  void count_plans_if_fewer(std::uint64_t programs);

  // Adds the amounts of the last check.
  void publish_to(program::Amounts& amounts) const;

 private:
  std::uint64_t tape_bytes() const { return front_.bookkeeping_bytes() + back_.load().bytes(); }
  std::uint64_t chargeable() const;
  bool handles_fit(const program::Command* next) const;
  core::Status beyond_limits(const program::Command* next) const;
  core::Status beyond_the_overdraft(const core::Status& refused, std::uint64_t unpaid,
                                    std::uint64_t seq) const;
  std::string charged_things() const;

  const autograd::Front& front_;
  runtime::Back& back_;
  const engine::SessionListener& listener_;
  memory::Pool& host_;
  const program::Amounts limits_;
  Charge charge_;
  std::uint64_t programs_ = 0;                // at the last frame
  std::atomic<std::uint64_t> tape_bytes_{0};  // at the last check
  std::atomic<std::uint64_t> plan_ms_{0};     // at the last check
};

}  // namespace teletensor::session
