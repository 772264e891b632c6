// Run: frames in, progress out. One read and one write at a time.
#include <utility>

#include "server/streams.h"
#include "server/turnstile.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

class RunStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                        public LeaseCall,
                        public std::enable_shared_from_this<RunStream> {
 public:
  RunStream(grpc::CallbackServerContext* context, Leases& leases, StreamTotal& total)
      : context_(context), leases_(leases), count_(total) {}

  void start(core::Result<LeaseRef> lease) {
    self_ = shared_from_this();
    Status status = lease.ok() ? (*lease)->join(weak_from_this(), true) : lease.status();
    if (status.ok()) {
      MutexLock lock(mutex_);
      lease_ = *lease;
      want_read_ = true;
    } else {
      finish(std::move(status));
    }
    pump();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // half-closed, cut or cancelled: with a lease of 0 all the same
      end(Status(Code::kCancelled, "the client closed the stream"), Status());
      return;
    }
    const auto self = shared_from_this();
    grpc::Slice single;
    std::string joined;
    std::string_view bytes;
    if (frame_.TrySingleSlice(&single).ok()) {
      bytes = {reinterpret_cast<const char*>(single.begin()), single.size()};
    } else {
      std::vector<grpc::Slice> slices;
      if (frame_.Dump(&slices).ok()) {
        joined.reserve(frame_.Length());
        for (const grpc::Slice& slice : slices) {
          joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
        }
      }
      bytes = joined;
    }
    LeaseRef lease;
    {
      MutexLock lock(mutex_);
      lease = lease_;
    }
    const Status status =
        lease->submit(bytes, [self](Status result) { self->consumed(std::move(result)); });
    if (!status.ok()) end(status, status);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    pump();
  }

  void OnCancel() override { end(Status(Code::kCancelled, "the stream was cut"), Status()); }

  void OnDone() override {
    end(Status(Code::kCancelled, "the stream is over"), Status());
    self_.reset();
  }

  // LeaseCall
  void lease_ended(const Status& reason) override {
    finish(reason);
    pump();
  }
  void abandon() override {
    {
      MutexLock lock(mutex_);
      cancel_wanted_ = true;
    }
    pump();
  }
  void wake() override { pump(); }
  Clock::time_point stalled_since() const override {
    MutexLock lock(mutex_);
    return writing_ ? write_began_ : Clock::time_point{};
  }

 private:
  // The engine has taken the frame.
  void consumed(Status status) {
    if (!status.ok()) return end(status, status);
    {
      MutexLock lock(mutex_);
      want_read_ = true;
    }
    pump();
  }

  // Ends the lease with `reason`; the client gets `answer`.
  void end(const Status& reason, Status answer) {
    finish(std::move(answer));
    LeaseRef lease;
    {
      MutexLock lock(mutex_);
      lease = lease_;
    }
    if (lease) leases_.end(*lease, reason);
    pump();
  }

  void finish(Status status) {
    MutexLock lock(mutex_);
    if (std::exchange(finish_wanted_, true)) return;
    answer_ = std::move(status);
  }

  void pump() {
    const auto self = shared_from_this();  // Finish may bring OnDone before it returns
    turnstile_.run([this] { return step(); });
  }

  bool step() {
    enum { kNothing, kRead, kWrite, kFinish, kCancel } next = kNothing;
    LeaseRef lease;
    Status answer;
    {
      MutexLock lock(mutex_);
      if (finished_) return false;
      if (finish_wanted_) {
        if (!writing_) {
          next = kFinish;
          finished_ = true;
          answer = answer_;
        } else if (std::exchange(cancel_wanted_, false)) {
          next = kCancel;  // ends the write that the client does not take, which holds up Finish
        }
      } else if (want_read_) {
        next = kRead;
        want_read_ = false;
      } else if (!writing_ && !broken_) {
        lease = lease_;
      }
    }
    if (lease) {
      std::optional<std::string> message = lease->outbox().take();
      if (!message) return false;
      auto* bytes = new std::string(std::move(*message));
      const grpc::Slice slice(
          bytes->data(), bytes->size(),
          [](void* owner) { delete static_cast<std::string*>(owner); }, bytes);
      progress_ = grpc::ByteBuffer(&slice, 1);
      MutexLock lock(mutex_);
      writing_ = true;
      write_began_ = Clock::now();
      next = kWrite;
    }
    switch (next) {
      case kNothing:
        return false;
      case kRead:
        StartRead(&frame_);
        return true;
      case kWrite:
        StartWrite(&progress_);
        return true;
      case kCancel:
        context_->TryCancel();
        return true;
      case kFinish:
        Finish(to_grpc(answer));
        return false;
    }
    return false;
  }

  grpc::CallbackServerContext* const context_;  // until OnDone
  Leases& leases_;
  const StreamCount count_;
  std::shared_ptr<RunStream> self_;  // until OnDone
  Turnstile turnstile_;
  grpc::ByteBuffer frame_;     // of the read in progress
  grpc::ByteBuffer progress_;  // of the write in progress

  mutable core::Mutex mutex_;
  LeaseRef lease_ TT_GUARDED_BY(mutex_);
  bool want_read_ TT_GUARDED_BY(mutex_) = false;
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool broken_ TT_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finish_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
  Clock::time_point write_began_ TT_GUARDED_BY(mutex_);
  Status answer_ TT_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* start_run(
    grpc::CallbackServerContext* context, Leases& leases, StreamTotal& total) {
  auto stream = std::make_shared<RunStream>(context, leases, total);
  RunStream* raw = stream.get();
  stream->start(lease_of(*context, leases));
  return raw;
}

}  // namespace teletensor::server
