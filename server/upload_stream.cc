// Upload: chunks in order into storage that was admitted with the first of them.
#include <algorithm>
#include <utility>

#include "proto/wire/bulk.h"
#include "server/streams.h"
#include "server/turnstile.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

class UploadStream final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                           public LeaseCall,
                           public std::enable_shared_from_this<UploadStream> {
 public:
  UploadStream(grpc::CallbackServerContext* context, grpc::ByteBuffer* reply, Leases& leases,
               StreamTotal& total)
      : context_(context), reply_(reply), limits_(leases.limits()), count_(total) {}

  void start(core::Result<LeaseRef> lease) {
    self_ = shared_from_this();
    Status status = lease.ok() ? (*lease)->join(weak_from_this(), std::nullopt) : lease.status();
    if (status.ok()) {
      lease_ = *lease;
      want_read();
    } else {
      finish(std::move(status));
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return close();
    next();
  }
  void OnCancel() override { finish(Status(Code::kCancelled, "upload: cut")); }
  void OnDone() override {
    bool begun = false;
    {
      MutexLock lock(mutex_);
      done_ = true;
      begun = begun_;
    }
    if (begun) {
      (void)lease_->with_session([&](engine::Session& session) {
        session.abort_upload(upload_);
        return Status();
      });
    }
    self_.reset();
  }

  void lease_ended(const Ending& ending) override { finish(ending.status); }
  void abandon() override {}  // Finish waits for nothing here

 private:
  void next() {
    bool waits = false;
    const Status status = take_chunk(&waits);
    if (!status.ok()) return finish(status);
    if (!waits) want_read();
  }

  // `waits`: for memory; admitted() comes.
  Status take_chunk(bool* waits) {
    std::vector<grpc::Slice> slices;
    if (!chunk_.Dump(&slices).ok()) return core::internal("upload: unreadable chunk");
    const std::size_t total = chunk_.Length();
    std::string prefix;
    for (const grpc::Slice& slice : slices) {
      if (prefix.size() >= wire::kMaxChunkHeader) break;
      prefix.append(reinterpret_cast<const char*>(slice.begin()),
                    std::min(slice.size(), wire::kMaxChunkHeader - prefix.size()));
    }
    wire::UploadHeader header;
    const core::Result<wire::ChunkData> data = wire::decode_upload_header(prefix, total, header);
    if (!data.ok()) return data.status();
    if (data->data_size > limits_.chunk_bytes) {
      return Status(Code::kResourceExhausted,
                    "upload: a chunk of " + std::to_string(data->data_size) + " bytes, at most " +
                        std::to_string(limits_.chunk_bytes));
    }
    if (!begun_) TT_RETURN_IF_ERROR(begin(header, waits));
    if (*waits) return {};
    if (header.offset != received_) {
      return core::invalid("upload: a chunk at " + std::to_string(header.offset) + ", expected " +
                           std::to_string(received_));
    }
    if (data->data_size > expected_ - received_) {
      return core::invalid("upload: longer than the " + std::to_string(expected_) +
                           " bytes that were declared");
    }
    std::size_t skip = data->data_at;
    for (const grpc::Slice& slice : slices) {
      const std::size_t from = std::min(skip, slice.size());
      skip -= from;
      if (from == slice.size()) continue;
      const std::string_view part(reinterpret_cast<const char*>(slice.begin()) + from,
                                  slice.size() - from);
      TT_RETURN_IF_ERROR(lease_->with_session([&](engine::Session& session) {
        return session.upload_chunk(upload_, received_, part);
      }));
      received_ += part.size();
    }
    return {};
  }

  Status begin(const wire::UploadHeader& header, bool* waits) {
    core::Result<std::uint64_t> upload =
        lease_->with_session([&](engine::Session& session) -> core::Result<std::uint64_t> {
          return session.begin_upload(header.device, header.bytes);
        });
    expected_ = header.bytes;
    if (!upload.ok() && upload.status().code() == Code::kResourceExhausted) {
      // Others' idle memory may move away first.
      *waits = true;
      return lease_->with_session([&](engine::Session& session) {
        session.admit_upload(header.device, header.bytes,
                             [self = shared_from_this()](core::Result<std::uint64_t> admitted) {
                               self->admitted(std::move(admitted));
                             });
        return Status();
      });
    }
    if (!upload.ok()) return upload.status();
    (void)begun(*upload);
    return {};
  }

  // False: the call is over, and nobody else aborts it.
  bool begun(std::uint64_t upload) {
    MutexLock lock(mutex_);
    upload_ = upload;
    begun_ = !done_;
    return begun_;
  }

  // The chunk that asked for the memory lies here yet.
  void admitted(core::Result<std::uint64_t> upload) {
    if (!upload.ok()) return finish(upload.status());
    if (begun(*upload)) return next();
    (void)lease_->with_session([&](engine::Session& session) {
      session.abort_upload(*upload);
      return Status();
    });
  }

  // The client has sent everything, or is gone.
  void close() {
    if (context_->IsCancelled()) return finish(Status(Code::kCancelled, "upload: cut"));
    if (!begun_) return finish(core::invalid("upload: no chunk"));
    if (received_ != expected_) {
      return finish(core::invalid("upload: " + std::to_string(received_) + " of the " +
                                  std::to_string(expected_) + " bytes that were declared"));
    }
    const Status status = lease_->with_session(
        [&](engine::Session& session) { return session.finish_upload(upload_); });
    if (status.ok()) {
      if (const std::uint64_t key = number_of(*context_, "teletensor-upload")) {
        lease_->uploaded(key, upload_);
      }
      begun_ = false;  // nothing left to abort
      const grpc::Slice slice(wire::encode_upload_reply(upload_));
      *reply_ = grpc::ByteBuffer(&slice, 1);
    }
    finish(status);
  }

  void finish(Status status) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(finish_wanted_, true)) return;
      answer_ = std::move(status);
    }
    pump();
  }
  void want_read() {
    {
      MutexLock lock(mutex_);
      want_read_ = true;
    }
    pump();
  }
  void pump() {
    const auto self = shared_from_this();
    turnstile_.run([this] { return step(); });
  }
  bool step() {
    Status answer;
    {
      MutexLock lock(mutex_);
      if (finished_) return false;
      if (finish_wanted_) {
        finished_ = true;
        answer = answer_;
      } else if (!std::exchange(want_read_, false)) {
        return false;
      }
    }
    if (finished()) {
      Finish(to_grpc(answer));
      return false;
    }
    StartRead(&chunk_);
    return true;
  }
  bool finished() const {
    MutexLock lock(mutex_);
    return finished_;
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  const Limits& limits_;
  const StreamCount count_;
  std::shared_ptr<UploadStream> self_;  // until OnDone
  Turnstile turnstile_;

  // Of the reads, which come one after the other; then of OnDone.
  LeaseRef lease_;
  grpc::ByteBuffer chunk_;
  bool begun_ = false;
  std::uint64_t upload_ = 0, expected_ = 0, received_ = 0;

  mutable core::Mutex mutex_;
  bool done_ TT_GUARDED_BY(mutex_) = false;
  bool want_read_ TT_GUARDED_BY(mutex_) = false;
  bool finish_wanted_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
  Status answer_ TT_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* start_upload(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* reply, Leases& leases,
                                                        core::Result<LeaseRef> lease,
                                                        StreamTotal& total) {
  auto stream = std::make_shared<UploadStream>(context, reply, leases, total);
  UploadStream* raw = stream.get();
  stream->start(std::move(lease));
  return raw;
}

}  // namespace teletensor::server
