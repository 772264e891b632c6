// The Download stream: sends the value of a bulk Fetch in chunks.
#include <algorithm>
#include <utility>

#include "proto/wire/bulk.h"
#include "server/base/serial_executor.h"
#include "server/session/streams.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

class DownloadStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                             public LeaseCall,
                             public std::enable_shared_from_this<DownloadStream> {
 public:
  DownloadStream(grpc::CallbackServerContext* context, Leases& leases, StreamShares::Place place)
      : context_(context), limits_(leases.limits()), place_(std::move(place)) {}

  void start(LeaseRef lease, const grpc::ByteBuffer& request) noexcept {
    const core::UsesReserve reserve;
    self_ = shared_from_this();
    Status status = core::with_memory("a stream", [&] { return begin(std::move(lease), request); });
    if (!status.ok()) finish(std::move(status));
  }

  void OnWriteDone(bool ok) noexcept override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    if (!ok) return finish(Status(Code::kCancelled, "download: the connection was lost"));
    pump();
  }
  void OnCancel() noexcept override {
    finish(Status(Code::kCancelled, "download: the connection was lost"));
  }
  void OnDone() noexcept override {
    if (lease_ && !lease_->client.survives()) {
      (void)lease_->with_session([&](engine::Session& session) {
        session.downloads().end(asked_.seq);
        return Status();
      });
    } else {
      // The client reports when it has all of the value; until then it may ask for the missing part
      // again.
      stop_waiting([] { return Status(Code::kCancelled, "download: the call has ended"); });
    }
    self_.reset();
  }

  void lease_ended(const Ending& ending) override { finish(ending.status); }
  void end_if_silent(Clock::time_point now) override {
    const std::chrono::milliseconds most = limits_.chunk_wait;
    {
      MutexLock lock(mutex_);
      if (wait_ == 0 || ready_ || now - began_ <= most) return;
    }
    if (!lacks_command(*lease_, asked_.seq, most)) return;
    stop_waiting([&] { return no_command_came(most); });
  }
  void abandon() override {
    {
      MutexLock lock(mutex_);
      cancel_wanted_ = true;
    }
    pump();
  }

 private:
  Status begin(LeaseRef lease, const grpc::ByteBuffer& request) {
    TT_RETURN_IF_ERROR(read_request(request));
    TT_RETURN_IF_ERROR(lease->streams().join(weak_from_this(), std::nullopt));
    lease_ = std::move(lease);
    const auto self = shared_from_this();
    return lease_->with_session([&](engine::Session& session) {
      const std::uint64_t wait = session.downloads().begin(
          asked_.seq,
          [self](core::Result<engine::Fetched> fetched) { self->ready(std::move(fetched)); });
      MutexLock lock(mutex_);
      wait_ = wait;
      return Status();
    });
  }

  // Ends the wait for the value, if it has not arrived, so that ready() is called with why(). If
  // there is no memory for that, the wait ends with the session.
  template <class Why>
  void stop_waiting(Why&& why) {
    std::uint64_t wait = 0;
    {
      MutexLock lock(mutex_);
      if (!ready_) wait = std::exchange(wait_, 0);
    }
    if (wait == 0) return;
    (void)core::with_memory("a stream", [&] {
      return lease_->with_session([&](engine::Session& session) {
        session.downloads().stop_waiting(asked_.seq, wait, why());
        return Status();
      });
    });
  }

  Status read_request(const grpc::ByteBuffer& request) {
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (request.Length() > wire::kMaxChunkHeader || !request.Dump(&slices).ok()) {
      return core::invalid("download: the request cannot be decoded");
    }
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return wire::decode_download_request(bytes, asked_);
  }

  // Receives the fetched value. Called by an execution lane, or at once.
  void ready(core::Result<engine::Fetched> fetched) {
    if (!fetched.ok()) return finish(fetched.status());
    if (!fetched->status.ok()) return finish(fetched->status);
    const core::Result<std::int64_t> elements = core::checked_numel(fetched->shape.span());
    if (!elements.ok()) return finish(elements.status());
    const std::uint64_t total =
        static_cast<std::uint64_t>(*elements) * core::size_of(fetched->dtype);
    if (asked_.offset > total) {
      return finish(core::invalid("download: the offset is after the end of the value"));
    }
    {
      MutexLock lock(mutex_);
      header_.bytes = total;
      header_.dtype = fetched->dtype;
      header_.shape = fetched->shape;
      header_.offset = asked_.offset;
      ready_ = true;
    }
    pump();
  }

  void finish(Status status) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(finish_wanted_, true)) return;
      answer_ = std::move(status);
    }
    pump();
  }
  void pump() {
    const auto self = shared_from_this();
    serial_executor_.run([this] { return step(); });
  }

  bool step() {
    enum { kWrite, kFinish, kCancel } next = kWrite;
    Status answer;
    wire::DownloadHeader header;
    {
      MutexLock lock(mutex_);
      if (finished_) return false;
      if (finish_wanted_ && !writing_) {
        finished_ = true;
        answer = answer_;
        next = kFinish;
      } else if (finish_wanted_) {
        if (!std::exchange(cancel_wanted_, false)) return false;
        next = kCancel;
      } else if (!ready_ || writing_) {
        return false;
      } else {
        header = header_;
      }
    }
    switch (next) {
      case kFinish:
        Finish(to_grpc(answer));
        return false;
      case kCancel:
        context_->TryCancel();
        return true;
      case kWrite:
        break;
    }
    if (!header.first && header.offset == header.bytes) {
      finish(Status());  // Makes the serial executor call step() again.
      return false;
    }
    const Status status = core::with_memory("a download", [&] { return fill_chunk(header); });
    if (!status.ok()) {
      finish(status);
      return false;
    }
    StartWrite(&chunk_);
    return true;
  }

  // Makes the next chunk, which is written from then on.
  Status fill_chunk(wire::DownloadHeader& header) {
    const std::size_t size = static_cast<std::size_t>(
        std::min<std::uint64_t>(limits_.chunk_bytes, header.bytes - header.offset));
    const grpc::Slice slices[] = {grpc::Slice(wire::encode_download_header(header, size)),
                                  grpc::Slice(size)};
    // Writable memory of the slice that was allocated above.
    char* data = const_cast<char*>(reinterpret_cast<const char*>(slices[1].begin()));
    if (size != 0) {
      TT_RETURN_IF_ERROR(lease_->with_session([&](engine::Session& session) {
        return session.downloads().read(asked_.seq, header.offset, {data, size});
      }));
    }
    chunk_ = grpc::ByteBuffer(slices, 2);
    MutexLock lock(mutex_);
    header_.first = false;
    header_.offset += size;
    writing_ = true;
    return {};
  }

  grpc::CallbackServerContext* const context_;  // gRPC's context of the call, valid until OnDone.
  const Limits& limits_;
  const StreamShares::Place place_;
  std::shared_ptr<DownloadStream> self_;  // Keeps the stream alive until OnDone.
  SerialExecutor serial_executor_;
  LeaseRef lease_;             // The lease; constant after start().
  wire::DownloadAsked asked_;  // The request; constant after start().
  grpc::ByteBuffer chunk_;     // Buffer of the write in progress.

  const Clock::time_point began_ = Clock::now();

  mutable core::Mutex mutex_;
  // Number of the engine's wait for the value. 0 if there is none.
  std::uint64_t wait_ TT_GUARDED_BY(mutex_) = 0;
  wire::DownloadHeader header_ TT_GUARDED_BY(mutex_);  // Header of the next chunk.
  bool ready_ TT_GUARDED_BY(mutex_) = false;
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finish_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
  Status answer_ TT_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* start_download(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           Leases& leases, LeaseRef lease,
                                                           StreamShares::Place place) {
  auto stream = std::make_shared<DownloadStream>(context, leases, std::move(place));
  DownloadStream* raw = stream.get();
  stream->start(std::move(lease), *request);
  return raw;
}

}  // namespace teletensor::server
