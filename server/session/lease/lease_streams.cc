#include "server/session/lease/lease_streams.h"

#include <utility>

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

Status call_attach() {
  return Status(Code::kUnavailable, "the daemon was restarted: call Attach before Run and Upload");
}

}  // namespace

bool LeaseStreams::attached() const {
  MutexLock lock(mutex_);
  return run_now_ != nullptr;
}

double LeaseStreams::detached_seconds() const {
  MutexLock lock(mutex_);
  if (run_now_ != nullptr) return 0;
  return std::chrono::duration<double>(Clock::now() - detached_at_).count();
}

Clock::time_point LeaseStreams::detached_since() const {
  MutexLock lock(mutex_);
  return run_now_ != nullptr || ending_ ? Clock::time_point{} : detached_at_;
}

Status LeaseStreams::wants_attach() const {
  MutexLock lock(mutex_);
  return origin_ == Origin::kRestored ? call_attach() : Status();
}

Status LeaseStreams::join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach,
                          std::string* word) {
  MutexLock lock(mutex_);
  if (ending_) {
    if (word != nullptr) *word = ending_->word;
    return ending_->status;
  }
  if (attach) {
    if (origin_ == Origin::kRestored) {
      if (word != nullptr) *word = "restart";
      return call_attach();
    }
    if (*attach != attach_) {
      return Status(Code::kFailedPrecondition, "a stream of attach " + std::to_string(*attach) +
                                                   ", the last is " + std::to_string(attach_));
    }
    if (!awaited_) {
      return Status(Code::kAlreadyExists,
                    "the session has or had a Run stream: call Attach before Run");
    }
    run_ = call;
    run_now_ = call.lock().get();
    awaited_ = false;
    met_ = true;
  }
  std::erase_if(calls_, [](const auto& weak) { return weak.expired(); });
  calls_.push_back(std::move(call));
  return {};
}

bool LeaseStreams::detach(const LeaseCall* run) {
  MutexLock lock(mutex_);
  if (run_now_ != run) return true;
  run_now_ = nullptr;
  run_.reset();
  detached_at_ = Clock::now();
  return client_.survives();
}

std::vector<std::shared_ptr<LeaseCall>> LeaseStreams::calls() const {
  std::vector<std::shared_ptr<LeaseCall>> calls;
  MutexLock lock(mutex_);
  for (const std::weak_ptr<LeaseCall>& weak : calls_) {
    if (auto call = weak.lock()) calls.push_back(std::move(call));
  }
  return calls;
}

std::shared_ptr<LeaseCall> LeaseStreams::run() const {
  MutexLock lock(mutex_);
  return run_.lock();
}

LeaseStreams::Presence LeaseStreams::presence() const {
  MutexLock lock(mutex_);
  return {run_.lock(), met_, detached_at_};
}

core::Result<LeaseStreams::Arrival> LeaseStreams::arrive(const LeaseCall* run,
                                                         const wire::Frame& frame,
                                                         std::size_t bytes) {
  MutexLock lock(mutex_);
  if (run_now_ != run) return Arrival::kReplaced;
  if (frame.attach_counter > attach_ || (!client_.survives() && frame.attach_counter != attach_)) {
    return Status(Code::kFailedPrecondition,
                  "frame of another attach: " + std::to_string(frame.attach_counter) +
                      ", this one is " + std::to_string(attach_));
  }
  const core::Result<bool> follows =
      outbox_.received(frame.first_seq, frame.commands.size(), bytes);
  if (!follows.ok()) return follows.status();
  // Set with the lock held: the first frame of the next stream must not overtake this one.
  consuming_ = *follows;
  return *follows ? Arrival::kNew : Arrival::kKnown;
}

core::Result<LeaseStreams::Reattached> LeaseStreams::attach(const AttachCall& call,
                                                            const SavedFile& saved,
                                                            std::string* word) {
  MutexLock lock(mutex_);
  if (ending_) {
    *word = ending_->word;
    return ending_->status;
  }
  if (call.instance != client_.instance) {
    return Status(Code::kPermissionDenied, "the session belongs to another client instance");
  }
  if (call.attach <= attach_) {
    return Status(Code::kFailedPrecondition, "attach " + std::to_string(call.attach) +
                                                 " comes late, the last was " +
                                                 std::to_string(attach_));
  }
  if (!client_.survives()) {
    return Status(Code::kFailedPrecondition,
                  "the session cannot be attached again, because its lease is 0");
  }
  if (origin_ == Origin::kHello && call.completed > outbox_.received_upto()) {
    return core::invalid("completed_upto: command " + std::to_string(call.completed) +
                         " was never sent; the last one is " +
                         std::to_string(outbox_.received_upto()));
  }
  Reattached result;
  Attached& reply = result.reply;
  // Happens only if the daemon was restarted from an older snapshot.
  const bool behind = call.completed > outbox_.completed_upto();
  const bool lacks_uploads = origin_ == Origin::kRestored && call.uploads > restored_.uploads;
  reply.replay = behind && !restored_.shares && call.replay_from != 0 && !lacks_uploads &&
                 call.replay_from <= outbox_.received_upto() + 1;
  if ((behind && !reply.replay) || lacks_uploads) {
    const std::string unsaved = saved.failure();
    *word = "rollback";
    return Status(
        Code::kFailedPrecondition,
        "the daemon was restarted, and has the session as of command " +
            std::to_string(outbox_.completed_upto()) + "; command " +
            std::to_string(call.completed) + " had run" +
            (unsaved.empty() ? "" : " (what came later was not written: " + unsaved + ")") +
            ". Session.accept_rollback() goes on with what there is");
  }
  attach_ = call.attach;
  awaited_ = true;
  if (origin_ == Origin::kRestored) origin_ = Origin::kAttached;
  run_now_ = nullptr;
  result.older = run_.lock();
  run_.reset();
  detached_at_ = Clock::now();
  if (!outbox_.rewind(call.progress_upto, call.attach)) {
    return Status(Code::kDataLoss,
                  "the client cannot reconnect: it has left too many results unacknowledged");
  }
  reply.received_upto = outbox_.received_upto();
  reply.completed_upto = outbox_.completed_upto();
  reply.credits = outbox_.credits();
  return result;
}

std::uint64_t LeaseStreams::attach_counter() const {
  MutexLock lock(mutex_);
  return attach_;
}

void LeaseStreams::restore(std::uint64_t attach, Restored restored) {
  MutexLock lock(mutex_);
  attach_ = attach;
  origin_ = Origin::kRestored;
  restored_ = restored;
  met_ = true;  // The client that had the session has a complete lease term to return.
  detached_at_ = Clock::now();
}

std::optional<std::vector<std::weak_ptr<LeaseCall>>> LeaseStreams::end(const Ending& ending) {
  MutexLock lock(mutex_);
  if (ending_) return std::nullopt;
  ending_ = ending;
  return std::exchange(calls_, {});
}

Status LeaseStreams::ended_status() const {
  MutexLock lock(mutex_);
  return !ending_ || ending_->status.ok() ? Status(Code::kAborted, "the session has ended")
                                          : ending_->status;
}

bool LeaseStreams::over() const {
  MutexLock lock(mutex_);
  return ending_ && ending_->word != "daemon" && ending_->word != "restart" &&
         ending_->word != "taken";
}

}  // namespace teletensor::server
