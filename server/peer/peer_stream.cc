#include "server/peer/peer_stream.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <utility>

#include "server/session/streams.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr char kMethod[] = "/teletensor.v1.Peer/Exchange";

class ServedStream final : public PeerReactor, public PeerStream {
 public:
  ServedStream(grpc::CallbackServerContext* context, Owner& owner, std::atomic<int>& alive)
      : PeerStream(owner, alive), context_(context), identity_(context->auth_context()) {}

  void open() noexcept override { opened(); }
  void OnReadDone(bool ok) noexcept override { read_done(ok); }
  void OnWriteDone(bool ok) noexcept override { write_done(ok); }
  void OnCancel() noexcept override { end(Status(Code::kUnavailable, "the connection was cut")); }
  void OnDone() noexcept override { over(""); }

 private:
  void start_read(grpc::ByteBuffer* frame) override { StartRead(frame); }
  void start_write(const grpc::ByteBuffer* frame) override { StartWrite(frame); }
  void cancel() override { context_->TryCancel(); }
  void finish(const Status& why) override { Finish(to_grpc(why)); }
  std::shared_ptr<const grpc::AuthContext> identity() const override { return identity_; }

  grpc::CallbackServerContext* const context_;  // gRPC's context of the call, valid until OnDone.
  const std::shared_ptr<const grpc::AuthContext> identity_;
};

class DialedStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public PeerStream {
 public:
  DialedStream(std::shared_ptr<grpc::Channel> channel, Owner& owner, std::atomic<int>& alive)
      : PeerStream(owner, alive), stub_(std::move(channel)) {}

  void open() noexcept override {
    stub_.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    AddHold();  // Keeps the call alive while other threads start operations on it.
    StartCall();
    opened();
  }
  void OnReadDone(bool ok) noexcept override { read_done(ok); }
  void OnWriteDone(bool ok) noexcept override { write_done(ok); }
  void OnDone(const grpc::Status& status) noexcept override { over(status.error_message()); }

 private:
  void start_read(grpc::ByteBuffer* frame) override { StartRead(frame); }
  void start_write(const grpc::ByteBuffer* frame) override { StartWrite(frame); }
  void cancel() override { context_.TryCancel(); }
  void finish(const Status& why) override {
    if (!why.ok()) context_.TryCancel();
    RemoveHold();
  }
  std::shared_ptr<const grpc::AuthContext> identity() const override {
    return context_.auth_context();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
};

}  // namespace

void PeerStream::opened() noexcept {
  self_ = shared_from_this();
  {
    MutexLock lock(mutex_);
    open_ = true;
  }
  wake();
}

void PeerStream::wake() noexcept {
  // Keeps the stream alive, because finish() may call over() before it returns.
  const Ref self = shared_from_this();
  serial_executor_.run([this] { return step(); });
}

void PeerStream::end(Status why) noexcept {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(ending_, true)) why_ = std::move(why);
  }
  wake();
}

bool PeerStream::is_certified(const std::string& name) const {
  const auto names = identity()->FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME);
  return std::find(names.begin(), names.end(), grpc::string_ref(name)) != names.end();
}

void PeerStream::read_done(bool ok) noexcept {
  if (!ok) return end({});  // over() reports the status later.
  const Ref self = shared_from_this();
  owner_.load()->received(self, std::move(read_));
  {
    MutexLock lock(mutex_);
    read_.Clear();
    reading_ = false;
  }
  wake();
}

void PeerStream::write_done(bool ok) noexcept {
  {
    MutexLock lock(mutex_);
    written_.Clear();  // Releases the memory of the frame.
    writing_ = false;
  }
  if (!ok) return end({});
  wake();
}

void PeerStream::over(const std::string& why) noexcept {
  std::string text;
  {
    MutexLock lock(mutex_);
    ending_ = finished_ = true;
    text = why_.ok() ? why : why_.message();
  }
  if (text.empty()) text = "the peer closed the connection";
  const Ref self = std::move(self_);
  owner_.load()->closed(self, text);
}

bool PeerStream::write_next() {
  std::optional<grpc::ByteBuffer> frame = owner_.load()->next(shared_from_this());
  if (!frame) return false;
  written_ = std::move(*frame);
  {
    MutexLock lock(mutex_);
    writing_ = true;
  }
  start_write(&written_);
  return true;
}

bool PeerStream::step() noexcept {
  enum { kNothing, kRead, kWrite, kCancel, kFinish } next = kNothing;
  Status why;
  {
    MutexLock lock(mutex_);
    if (!open_ || finished_) return false;
    if (ending_) {
      if (!writing_) {
        next = kFinish;
      } else if (!why_.ok()) {
        next = kCancel;
      }
      finished_ = next == kFinish;
      why = why_;
    } else if (!std::exchange(reading_, true)) {
      next = kRead;
    } else if (!writing_) {
      next = kWrite;
    }
  }
  switch (next) {
    case kNothing:
      return false;
    case kRead:
      start_read(&read_);
      return true;
    case kWrite:
      return write_next();
    case kCancel:  // When the cancelled write has ended, this function runs again.
      cancel();
      return false;
    case kFinish:
      finish(why);
      return false;
  }
  return false;
}

std::pair<PeerStream::Ref, PeerReactor*> served_peer(grpc::CallbackServerContext* context,
                                                     PeerStream::Owner& owner,
                                                     std::atomic<int>& alive) {
  auto stream = std::make_shared<ServedStream>(context, owner, alive);
  PeerReactor* const reactor = stream.get();
  return {std::move(stream), reactor};
}

PeerStream::Ref dialed_peer(std::shared_ptr<grpc::Channel> channel, PeerStream::Owner& owner,
                            std::atomic<int>& alive) {
  return std::make_shared<DialedStream>(std::move(channel), owner, alive);
}

}  // namespace teletensor::server
