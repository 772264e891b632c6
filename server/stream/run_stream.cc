// The Run stream: receives frames and sends progress. One read and one write are active at a time.
#include <utility>

#include "server/base/serial_executor.h"
#include "server/session/run_call.h"
#include "server/session/streams.h"

namespace teletensor::server {

using core::MutexLock;
using core::Status;

namespace {

class RunStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                        public RunCall,
                        public std::enable_shared_from_this<RunStream> {
 public:
  RunStream(grpc::CallbackServerContext* context, Leases& leases, StreamShares::Place place,
            std::uint64_t attach)
      : RunCall(leases), context_(context), place_(std::move(place)), attach_(attach) {}

  void start(LeaseRef lease) noexcept {
    const core::UsesReserve reserve;
    self_ = shared_from_this();
    if (attach_ == 0) attach_ = lease->client.attach_counter;
    join(std::move(lease), weak_from_this(), attach_);
    pump();
  }

  void OnReadDone(bool ok) noexcept override {
    if (!ok) return leave("the client closed the stream");
    const auto self = shared_from_this();  // Keeps the stream alive if the lease ends meanwhile.
    const LeaseRef lease = this->lease();
    const Status status = core::with_memory("a frame", [&] { return consume(*lease); });
    if (!status.ok()) leases_.end(*lease, status, "protocol");
    {
      MutexLock lock(mutex_);
      reading_ = false;
    }
    pump();
  }

  void OnWriteDone(bool ok) noexcept override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    pump();
  }

  void OnCancel() noexcept override { leave("the stream was cut"); }

  void OnDone() noexcept override {
    leave("the stream is over");
    self_.reset();
  }

  // ---- LeaseCall
  void abandon() override {
    {
      MutexLock lock(mutex_);
      cancel_wanted_ = true;
    }
    pump();
  }
  void wake() override { pump(); }

 private:
  Status consume(Lease& lease) {
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
    return lease.submit(this, bytes);
  }

  // The client has disconnected or ended this stream.
  void leave(const char* how) {
    detach(how);
    pump();
  }

  void pump() override {
    // Keeps the stream alive, because Finish may call OnDone before it returns.
    const auto self = shared_from_this();
    serial_executor_.run([this] { return step(); });
  }

  Status take_progress(Lease& lease, bool* some) {
    Outbox::Message message = lease.outbox().take(attach_);
    *some = static_cast<bool>(message);
    if (!message) return {};
    auto held = std::make_unique<Outbox::Message>(std::move(message));
    const std::string& bytes = **held;
    const grpc::Slice slice(
        const_cast<char*>(bytes.data()), bytes.size(),
        [](void* owner) { delete static_cast<Outbox::Message*>(owner); }, held.get());
    held.release();
    progress_ = grpc::ByteBuffer(&slice, 1);
    return {};
  }

  bool step() {
    enum { kNothing, kRead, kWrite, kFinish, kCancel } next = kNothing;
    LeaseRef lease;
    Ending answer;
    {
      MutexLock lock(mutex_);
      if (finished_) return false;
      if (finish_wanted_) {
        if (!writing_) {
          next = kFinish;
          finished_ = true;
          answer = answer_;
        } else if (std::exchange(cancel_wanted_, false)) {
          next = kCancel;  // Ends a write that the client does not read, because it delays Finish.
        }
      } else if (!reading_ && lease_ && lease_->streams().readable()) {
        next = kRead;
        reading_ = true;
      } else if (!writing_ && !broken_) {
        lease = lease_;
      }
    }
    if (lease) {
      bool some = false;
      const Status status =
          core::with_memory("progress", [&] { return take_progress(*lease, &some); });
      if (!status.ok()) {  // The report for the client is lost, so the session must end.
        leases_.end(*lease, status, "protocol");
        return true;
      }
      if (!some) return false;
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
        if (!answer.word.empty()) context_->AddTrailingMetadata(kReasonKey, answer.word);
        Finish(to_grpc(answer.status));
        return false;
    }
    return false;
  }

  grpc::CallbackServerContext* const context_;  // gRPC's context of the call, valid until OnDone.
  const StreamShares::Place place_;
  std::uint64_t attach_;             // Attach counter of the stream; constant after start().
  std::shared_ptr<RunStream> self_;  // Keeps the stream alive until OnDone.
  SerialExecutor serial_executor_;
  grpc::ByteBuffer frame_;     // Buffer of the read in progress.
  grpc::ByteBuffer progress_;  // Buffer of the write in progress.

  bool reading_ TT_GUARDED_BY(mutex_) = false;
  bool broken_ TT_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* start_run(
    grpc::CallbackServerContext* context, Leases& leases, LeaseRef lease, StreamShares::Place place,
    std::uint64_t attach) {
  auto stream = std::make_shared<RunStream>(context, leases, std::move(place), attach);
  RunStream* raw = stream.get();
  stream->start(std::move(lease));
  return raw;
}

}  // namespace teletensor::server
