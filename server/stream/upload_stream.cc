// The Upload stream: receives chunks in order, into storage that is admitted with the first chunk,
// or into the storage of an interrupted upload.
#include <algorithm>
#include <optional>
#include <utility>

#include "proto/wire/bulk.h"
#include "server/base/serial_executor.h"
#include "server/session/streams.h"

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
               StreamShares::Place place, std::uint64_t key)
      : context_(context),
        reply_(reply),
        limits_(leases.limits()),
        place_(std::move(place)),
        key_(key) {}

  void start(LeaseRef lease) noexcept {
    const core::UsesReserve reserve;
    self_ = shared_from_this();
    Status status = core::with_memory(
        "a stream", [&] { return lease->streams().join(weak_from_this(), std::nullopt); });
    if (status.ok()) status = lease->streams().wants_attach();
    if (status.ok()) {
      lease_ = std::move(lease);
      want_read();
    } else {
      finish(std::move(status));
    }
  }

  void OnReadDone(bool ok) noexcept override {
    {
      MutexLock lock(mutex_);
      waits_since_.reset();
    }
    if (!ok) return close();
    next();
  }
  void OnCancel() noexcept override { finish_cut(); }
  void OnDone() noexcept override {
    StagedRef staged;
    bool keep = false;
    {
      MutexLock lock(mutex_);
      done_ = true;
      staged = std::exchange(staged_, nullptr);
      keep = staged && key_ != 0 && cut_ && lease_->client.survives();
    }
    if (staged) lease_->staging().leave(key_, staged, this, keep);
    self_.reset();
  }

  void lease_ended(const Ending& ending) override { finish(ending.status); }
  // Finishing this stream never waits for the client, so nothing must be cancelled.
  void abandon() override {}
  void end_if_silent(Clock::time_point now) override {
    const std::chrono::milliseconds most = limits_.chunk_wait;
    {
      MutexLock lock(mutex_);
      if (!waits_since_ || now - *waits_since_ <= most || answer_) return;
      cut_ = true;
    }
    finish(Status(Code::kDeadlineExceeded,
                  "upload: no chunk came for " + std::to_string(most.count() / 1000) + " s"));
  }

 private:
  // The end of the call. `word` is the reason in one word, for the client's program.
  struct Answer {
    Status status;
    std::string word;
  };

  void next() {
    bool waits = false;
    const Status status = core::with_memory("an upload", [&] { return take_chunk(&waits); });
    if (!status.ok()) return finish(status);
    if (!waits) want_read();
  }

  // Processes a chunk. Sets `waits` if the upload has to wait for memory; admitted() is then called
  // later.
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
    core::Result<wire::ChunkData> data = wire::decode_upload_header(prefix, total, header);
    if (!data.ok() && prefix.size() < total) {  // The data need not be the last field.
      prefix.clear();
      for (const grpc::Slice& slice : slices) {
        prefix.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      data = wire::decode_upload_header(prefix, total, header);
    }
    if (!data.ok()) return data.status();
    if (data->data_size > limits_.chunk_bytes) {
      return Status(Code::kResourceExhausted,
                    "upload: a chunk of " + std::to_string(data->data_size) + " bytes, at most " +
                        std::to_string(limits_.chunk_bytes));
    }
    if (!staged_) TT_RETURN_IF_ERROR(begin(header, waits));
    if (*waits) return {};
    if (header.offset != received_) {
      return core::invalid("upload: a chunk at " + std::to_string(header.offset) + ", expected " +
                           std::to_string(received_));
    }
    if (data->data_size > expected_ - received_) {
      return core::invalid("upload: longer than the " + std::to_string(expected_) +
                           " bytes that were declared");
    }
    std::size_t skip = data->data_at, left = data->data_size;
    for (const grpc::Slice& slice : slices) {
      const std::size_t from = std::min(skip, slice.size());
      const std::size_t taken = std::min(left, slice.size() - from);
      skip -= from;
      left -= taken;
      if (taken == 0) continue;
      const std::string_view part(reinterpret_cast<const char*>(slice.begin()) + from, taken);
      TT_RETURN_IF_ERROR(lease_->with_session(
          [&](engine::Session& session) { return staged_->write(this, session, part); }));
      received_ += part.size();
    }
    return {};
  }

  Status begin(const wire::UploadHeader& header, bool* waits) {
    expected_ = header.bytes;
    device_ = header.device;
    if (header.offset != 0) {
      auto staged = lease_->staging().go_on(key_, header.device, header.bytes, header.offset, this);
      if (!staged.ok()) return staged.status();
      received_ = header.offset;
      return begun(std::move(*staged));
    }
    const auto ask = [&] {
      return lease_->with_session([&](engine::Session& session) -> core::Result<std::uint64_t> {
        return session.uploads().begin(header.device, header.bytes);
      });
    };
    core::Result<std::uint64_t> upload = ask();
    if (!upload.ok() && upload.status().code() == Code::kResourceExhausted) {
      // The session's own interrupted uploads are dropped first, because their client can send them
      // again.
      lease_->staging().drop(core::Clock::now());
      upload = ask();
    }
    if (!upload.ok() && upload.status().code() == Code::kResourceExhausted) {
      // Idle memory of other sessions may have to be moved to disk first.
      *waits = true;
      return lease_->with_session([&](engine::Session& session) {
        session.uploads().admit(header.device, header.bytes,
                                [self = shared_from_this()](core::Result<std::uint64_t> admitted) {
                                  self->admitted(std::move(admitted));
                                });
        return Status();
      });
    }
    if (!upload.ok()) return upload.status();
    return begun(stage(*upload));
  }

  // Uses the reserve, because nobody else knows the memory of the upload yet.
  StagedRef stage(std::uint64_t upload) {
    const core::UsesReserve reserve;
    return lease_->staging().begin(key_, upload, device_, expected_, this);
  }

  // Returns CANCELLED if the call has ended; the upload is then treated as interrupted before its
  // first byte.
  Status begun(StagedRef staged) {
    {
      MutexLock lock(mutex_);
      if (!done_) {
        staged_ = std::move(staged);
        return {};
      }
    }
    lease_->staging().leave(key_, staged, this, false);
    return Status(Code::kCancelled, "upload: the connection was lost");
  }

  // The chunk that requested the memory is still in chunk_.
  void admitted(core::Result<std::uint64_t> upload) {
    if (!upload.ok()) return finish(lease_->advised(upload.status()));
    if (begun(stage(*upload)).ok()) next();
  }

  // Called when the client has sent everything or has disconnected.
  void close() {
    if (context_->IsCancelled()) return finish_cut();
    if (!staged_) return finish(core::invalid("upload: the stream has no chunk"));
    if (received_ != expected_) {
      return finish(core::invalid("upload: " + std::to_string(received_) + " of the " +
                                  std::to_string(expected_) + " bytes that were declared"));
    }
    const Status status = lease_->with_session(
        [&](engine::Session& session) { return staged_->finish(this, session); });
    // The session is paused: the bytes are kept, and the client asks again later.
    const bool resting = status.code() == Code::kUnavailable;
    if (resting) {
      MutexLock lock(mutex_);
      cut_ = true;
    }
    if (status.ok()) {
      StagedRef whole;
      {
        MutexLock lock(mutex_);
        // Cleared, so that the finished upload is not aborted.
        whole = std::exchange(staged_, nullptr);
      }
      lease_->staging().finished(key_, whole);
      const grpc::Slice slice(wire::encode_upload_reply(whole->upload));
      *reply_ = grpc::ByteBuffer(&slice, 1);
    }
    finish(status, resting ? "resting" : "");
  }

  void finish_cut() {
    {
      MutexLock lock(mutex_);
      cut_ = true;
    }
    finish(Status(Code::kCancelled, "upload: the connection was lost"));
  }
  void finish(Status status, std::string word = "") {
    {
      MutexLock lock(mutex_);
      if (answer_) return;
      answer_ = Answer{std::move(status), std::move(word)};
    }
    pump();
  }
  void want_read() {
    {
      MutexLock lock(mutex_);
      want_read_ = true;
      waits_since_ = Clock::now();
    }
    pump();
  }
  void pump() {
    const auto self = shared_from_this();
    serial_executor_.run([this] { return step(); });
  }
  bool step() {
    std::optional<Answer> answer;
    {
      MutexLock lock(mutex_);
      if (finished_) return false;
      if (answer_) {
        finished_ = true;
        answer = answer_;
      } else if (!std::exchange(want_read_, false)) {
        return false;
      }
    }
    if (answer) {
      if (!answer->word.empty()) context_->AddTrailingMetadata(kReasonKey, answer->word);
      Finish(to_grpc(answer->status));
      return false;
    }
    StartRead(&chunk_);
    return true;
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  const Limits& limits_;
  const StreamShares::Place place_;
  const std::uint64_t key_;             // The client's number for the upload. 0 means none.
  std::shared_ptr<UploadStream> self_;  // Keeps the stream alive until OnDone.
  SerialExecutor serial_executor_;

  // Used by the reads of the stream, which do not overlap, and then by OnDone.
  LeaseRef lease_;
  grpc::ByteBuffer chunk_;
  StagedRef staged_;  // The upload; set when the first chunk was received.
  core::Device device_;
  std::uint64_t expected_ = 0, received_ = 0;

  mutable core::Mutex mutex_;
  bool done_ TT_GUARDED_BY(mutex_) = false;
  bool cut_ TT_GUARDED_BY(mutex_) = false;
  bool want_read_ TT_GUARDED_BY(mutex_) = false;
  // The time since which a chunk is awaited. None while one is processed.
  std::optional<Clock::time_point> waits_since_ TT_GUARDED_BY(mutex_);
  std::optional<Answer> answer_ TT_GUARDED_BY(mutex_);  // Set when the call is to be finished.
  bool finished_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* start_upload(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* reply, Leases& leases,
                                                        LeaseRef lease, StreamShares::Place place,
                                                        std::uint64_t key) {
  auto stream = std::make_shared<UploadStream>(context, reply, leases, std::move(place), key);
  UploadStream* raw = stream.get();
  stream->start(std::move(lease));
  return raw;
}

}  // namespace teletensor::server
