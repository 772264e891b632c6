#include "clients/session/pending_errors.h"

#include "clients/session/error_text.h"

namespace teletensor::client {

using core::MutexLock;

namespace {

thread_local int t_awaits_value = 0;
// Number of commands after one that failed for lack of memory at which the next operation raises
// the error, although nothing was read.
constexpr std::uint64_t kUnraised = 1024;

}  // namespace

AwaitsValue::AwaitsValue() { ++t_awaits_value; }
AwaitsValue::~AwaitsValue() { --t_awaits_value; }

// The oldest error need not be the error of that command, whose turn comes at the next call.
Status PendingErrors::raise_shortage() {
  std::uint64_t root = 0;
  {
    MutexLock lock(stream_.mutex());
    root = stream_.received().errors.first_shortage();
  }
  const std::uint64_t most = commands_.short_of_memory() ? 0 : kUnraised;
  if (root == 0 || commands_.last_seq() <= root + most) return {};
  const LateError error = raise();
  return error.status.ok() ? Status() : Status(error.status.code(), explained(hooks_, error));
}

std::vector<wire::ErrorEvent> PendingErrors::all() const {
  if (stream_.origin().is_parents()) return {};
  MutexLock lock(stream_.mutex());
  return stream_.received().errors.all();
}

std::vector<wire::LostRankEvent> PendingErrors::take_lost_ranks() {
  if (stream_.origin().is_parents()) return {};
  MutexLock lock(stream_.mutex());
  return std::exchange(stream_.received().lost_ranks, {});
}

std::string PendingErrors::join(core::Code code) {
  const LateError error = raise_those(code);
  if (error.status.code() != code) return "";
  return stands_for(hooks_, error);
}

LateError PendingErrors::raise_those(std::optional<core::Code> wanted) {
  if (!any()) return {};
  // The calls that the client has postponed must run before; their operands are the current values
  // and not the last valid ones.
  if (hooks_.watching) {
    const Status settled = hooks_.before_raise();
    if (settled.code() == core::Code::kCancelled || settled.code() == core::Code::kAborted) {
      return {settled};
    }
  }
  const Status ready = commands_.ready();
  if (ready.code() == core::Code::kCancelled) return {ready};
  std::vector<wire::ErrorEvent> errors;
  {
    MutexLock lock(stream_.mutex());
    errors = stream_.received().errors.take_alike(wanted);
  }
  reads_.clear();
  if (errors.empty()) return {};  // Another thread or an interruption has raised the errors.
  if (errors.front().status.code() == core::Code::kResourceExhausted) commands_.note_shortage();
  if (ready.ok()) take_back(errors);
  LateError made{std::move(errors.front().status), errors.front().root, errors.size(),
                 errors.back().root};
  for (std::size_t i = 1; i < errors.size(); ++i) {
    made.further.emplace_back(errors[i].status.message(), errors[i].root);
  }
  return made;
}

void PendingErrors::clear() {
  if (!any() || !commands_.ready().ok()) return;
  std::vector<wire::ErrorEvent> errors;
  {
    MutexLock lock(stream_.mutex());
    errors = stream_.received().errors.take_all();
  }
  reads_.clear();
  take_back(errors);
}

void PendingErrors::take_back(const std::vector<wire::ErrorEvent>& errors) {
  constexpr std::size_t kRaisesUnderWay = 256;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (i > 0 && i % kRaisesUnderWay == 0) (void)finish_raises();
    send_raise(errors[i].root);
  }
  // If the wait for the Raise is interrupted, the next command completes it.
  (void)finish_raises();
}

void PendingErrors::send_raise(std::uint64_t root) {
  commands_.begin();
  commands_.issue(program::Command(program::Raise{root}), 0);
  stream_.received().raises.add({commands_.last_seq(), root});
}

// The first API thread that calls this function reverts the in-place writes of failed commands in
// the mirror, before the next command is issued.
Status PendingErrors::finish_raises() {
  while (stream_.received().raises.open()) {
    const SentRaise raise = stream_.received().raises.next();
    TT_RETURN_IF_ERROR(hooks_.block(
        [&] { return stream_.received().raises.settled(raise) || !stream_.lost_status().ok(); }));
    if (!stream_.received().raises.is_next(raise)) continue;
    MutexLock lock(stream_.mutex());
    const auto rebinds = stream_.received().raises.finish(raise);
    stream_.changed().notify_all();
    if (!rebinds) return stream_.lost_status();
    graph_.undo().take_back(*rebinds, raise.root);
  }
  return {};
}

std::uint64_t PendingErrors::mark_interrupted() {
  if (stream_.origin().is_parents() || stream_.over() ||
      stream_.completed_upto() >= commands_.last_seq())
    return 0;
  reads_.clear();
  return interrupted_upto_ = commands_.last_seq();
}

PendingErrors::Dropped PendingErrors::dropped_commands(std::uint64_t upto,
                                                       std::chrono::milliseconds most) {
  stream_.wait_for([&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); },
                   most);
  MutexLock lock(stream_.mutex());
  const std::uint64_t completed = stream_.completed_upto();
  Dropped found;
  found.first = stream_.received().errors.first_cancelled(upto);
  if (found.first == 0 && completed < upto) found.first = completed + 1;
  if (found.first != 0) found.commands = upto - found.first + 1;
  return found;
}

bool PendingErrors::interrupt_again() {
  if (stream_.origin().is_parents() || stream_.over() ||
      stream_.completed_upto() >= commands_.last_seq())
    return false;
  if (t_awaits_value > 0 && interrupt_pending()) return true;
  first_interrupt_ = commands_.last_seq();
  return false;
}

Status PendingErrors::settle() {
  while (unsettled()) {
    TT_RETURN_IF_ERROR(finish_raises());
    const std::uint64_t upto = interrupted_upto_;
    TT_RETURN_IF_ERROR(hooks_.block(
        [&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); }));
    if (stream_.received().raises.open()) continue;  // Another thread has sent Raises meanwhile.
    if (hooks_.watching && upto != 0) hooks_.interrupted(upto);
    std::uint64_t root = 0;
    {
      MutexLock lock(stream_.mutex());
      if (stream_.lost_status().ok()) root = stream_.received().errors.take_cancelled(upto);
    }
    if (root != 0) {
      reads_.clear();
      send_raise(root);
    } else if (interrupted_upto_ == upto) {
      interrupted_upto_ = 0;
    }
  }
  return {};
}

}  // namespace teletensor::client
