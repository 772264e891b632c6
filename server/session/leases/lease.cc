#include "server/session/leases/lease.h"

#include <algorithm>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/base/log.h"
#include "server/base/secrets.h"
#include "server/session/codec.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kOpenErrors = 1000;  // Maximum number of errors that the next client is told.
constexpr std::size_t kUploads = 64;       // Maximum number of uploads whose keys are remembered.

Status call_attach() {
  return Status(Code::kUnavailable, "the daemon was restarted: call Attach before Run and Upload");
}

}  // namespace

bool lacks_command(const Lease& lease, std::uint64_t seq, std::chrono::milliseconds most) {
  const Clock::time_point since = lease.outbox().idle_since();
  return seq > lease.outbox().received_upto() && since != Clock::time_point{} &&
         Clock::now() - since > most && lease.attached();
}

Status no_command_came(std::chrono::milliseconds waited) {
  return Status(Code::kDeadlineExceeded,
                "download: no command came for " + std::to_string(waited.count() / 1000) + " s");
}

std::string make_token() { return random_hex(16); }

Lease::Lease(Leases* table, std::string token, std::string ticket, ClientInfo client,
             const Limits& limits)
    : token(std::move(token)),
      ticket(std::move(ticket)),
      client(std::move(client)),
      table_(table),
      intake_(wire::FrameReader(limits.frame, this->client.ops, this->client.op_names,
                                this->client.thin, this->client.protocol)),
      outbox_(limits, this->client.lease.count() > 0, this->client.attach_counter),
      attach_(this->client.attach_counter) {}

Lease::~Lease() = default;

bool Lease::enter() {
  MutexLock lock(mutex_);
  if (closed_) return false;
  ++users_;
  return true;
}

void Lease::leave() {
  bool last = false;
  {
    MutexLock lock(mutex_);
    last = --users_ == 0 && closed_;
  }
  if (last) left_.notify_all();
}

void Lease::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  while (users_ != 0) left_.wait(mutex_);
}

void Lease::destroy_session() {
  close();
  if (session_) {
    table_->counters().add(client.user, {session_->load().lane_ns, session_->completed_upto()});
  }
  session_.reset();
}

Status Lease::ended_status() const {
  MutexLock lock(mutex_);
  return ending_.status.ok() ? Status(Code::kAborted, "the session has ended") : ending_.status;
}

bool Lease::attached() const {
  MutexLock lock(mutex_);
  return run_now_ != nullptr;
}

double Lease::detached_seconds() const {
  MutexLock lock(mutex_);
  if (run_now_ != nullptr) return 0;
  return std::chrono::duration<double>(Clock::now() - detached_at_).count();
}

Status Lease::submit(const LeaseCall* run, std::string_view bytes) {
  wire::Frame frame;
  TT_RETURN_IF_ERROR(intake_.read(bytes, frame));
  bool is_new = false;
  {
    MutexLock lock(mutex_);
    // The stream was replaced; the client sends the frame again on its own stream.
    if (run_now_ != run) return {};
    if (frame.attach_counter > attach_ || (!survives() && frame.attach_counter != attach_)) {
      return Status(Code::kFailedPrecondition,
                    "frame of another attach: " + std::to_string(frame.attach_counter) +
                        ", this one is " + std::to_string(attach_));
    }
    const core::Result<bool> follows =
        outbox_.received(frame.first_seq, frame.commands.size(), bytes.size());
    if (!follows.ok()) return follows.status();
    consuming_ = is_new = *follows;
  }
  outbox_.acknowledged(frame.ack_upto);
  if (!is_new) return {};
  return with_session([&](engine::Session& session) {
    session.submit(
        frame.first_seq, frame.first_id, std::move(frame.commands),
        [self = shared_from_this()](Status s) { self->consumed(std::move(s)); }, intake_.thin());
    return Status();
  });
}

void Lease::consumed(Status status) {
  if (!status.ok()) return table_->end(*this, std::move(status), "protocol");
  consuming_ = false;
  wake();
}

Status Lease::wants_attach() const {
  MutexLock lock(mutex_);
  return origin_ == Origin::kRestored ? call_attach() : Status();
}

Status Lease::join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach,
                   std::string* word) {
  MutexLock lock(mutex_);
  if (ended_) {
    if (word != nullptr) *word = ending_.word;
    return ending_.status;
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

bool Lease::detach(const LeaseCall* run) {
  MutexLock lock(mutex_);
  if (run_now_ != run) return true;
  run_now_ = nullptr;
  run_.reset();
  detached_at_ = Clock::now();
  return survives();
}

void Lease::uploaded(std::uint64_t key, std::uint64_t upload) {
  std::uint64_t before = 0;
  {
    MutexLock lock(mutex_);
    for (auto& [known, number] : uploads_) {
      if (known == key) before = std::exchange(number, upload);
    }
    if (before == 0) uploads_.emplace_back(key, upload);
    if (uploads_.size() > kUploads) uploads_.pop_front();
  }
  if (before != 0) abort_upload(before);
}

void Lease::abort_upload(std::uint64_t upload) {
  (void)with_session([&](engine::Session& session) {
    session.uploads().abort(upload);
    return Status();
  });
}

wire::StagedAnswer Lease::staged(std::uint64_t key, bool give_up) {
  wire::StagedAnswer answer;
  answer.received = staging_.received(key);
  {
    MutexLock lock(mutex_);
    for (const auto& [known, number] : uploads_) {
      if (known == key) answer.upload = number;
    }
  }
  if (give_up) {
    staging_.give_up(key, [this](std::uint64_t upload) { abort_upload(upload); });
    if (answer.upload != 0) abort_upload(answer.upload);
    return {};
  }
  return answer;
}

void Lease::drop_staged(Clock::time_point before) {
  staging_.drop(before, [this](std::uint64_t upload) { abort_upload(upload); });
}

core::Result<Attached> Lease::attach(const AttachCall& call, std::string* word) {
  std::shared_ptr<LeaseCall> older;
  Attached reply;
  {
    MutexLock lock(mutex_);
    if (ended_) {
      *word = ending_.word;
      return ending_.status;
    }
    if (call.instance != client.instance) {
      return Status(Code::kPermissionDenied, "the session belongs to another client instance");
    }
    if (call.attach <= attach_) {
      return Status(Code::kFailedPrecondition, "attach " + std::to_string(call.attach) +
                                                   " comes late, the last was " +
                                                   std::to_string(attach_));
    }
    if (!survives()) {
      return Status(Code::kFailedPrecondition,
                    "the session cannot be attached again, because its lease is 0");
    }
    if (origin_ == Origin::kHello && call.completed > outbox_.received_upto()) {
      return core::invalid("completed_upto: command " + std::to_string(call.completed) +
                           " was never sent; the last one is " +
                           std::to_string(outbox_.received_upto()));
    }
    // Happens only if the daemon was restarted from an older snapshot.
    const bool behind = call.completed > outbox_.completed_upto();
    const bool lacks_uploads = origin_ == Origin::kRestored && call.uploads > restored_uploads_;
    reply.replay = behind && !no_replay_ && call.replay_from != 0 && !lacks_uploads &&
                   call.replay_from <= outbox_.received_upto() + 1;
    if ((behind && !reply.replay) || lacks_uploads) {
      const std::string unsaved = saved_.failure();
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
    older = run_.lock();
    run_.reset();
    detached_at_ = Clock::now();
    if (!outbox_.rewind(call.progress_upto, call.attach)) {
      return Status(Code::kDataLoss,
                    "the client cannot reconnect: it has left too many results unacknowledged");
    }
    reply.received_upto = outbox_.received_upto();
    reply.completed_upto = outbox_.completed_upto();
    reply.credits = outbox_.credits();
  }
  if (older) {
    const Ending ending{Status(Code::kAborted, "a later attach has replaced this stream"),
                        "fenced"};
    table_->dismiss(older, ending);
  }
  log_info("session_attached", {{"session", client.name},
                                {"attach", call.attach},
                                {"from", reply.received_upto},
                                {"replay", reply.replay ? call.completed : 0}});
  return reply;
}

bool Lease::busy() {
  const core::Result<std::size_t> queued = with_session(
      [](engine::Session& session) -> core::Result<std::size_t> { return session.load().queued; });
  return queued.ok() && *queued != 0;
}

Clock::time_point Lease::unused_since() const {
  MutexLock lock(mutex_);
  if (run_now_ != nullptr || ended_) return {};
  return std::max(detached_at_, Clock::time_point(Clock::duration(active_at_.load())));
}

void Lease::wake() {
  std::shared_ptr<LeaseCall> run;
  {
    MutexLock lock(mutex_);
    run = run_.lock();
  }
  if (run) run->wake();
}

void Lease::on_completed(std::uint64_t seq) {
  outbox_.completed(seq);
  active_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  wake();
}

// Runs in the session's executor, where no call can be failed for lack of memory. In that case the
// session ends.
template <class Act>
void Lease::tell(Act act) {
  const Status status = core::with_memory("what its client is to be told", act);
  if (!status.ok()) return table_->end(*this, status, "protocol");
  wake();
}

void Lease::on_fetched(engine::Fetched fetched) {
  tell([&]() -> Status {
    const Status status = outbox_.fetched(to_wire(std::move(fetched), table_->limits()));
    if (!status.ok()) table_->end(*this, status, "slow");
    return {};
  });
}

Status Lease::advised(Status status) const {
  return table_->detached().advise(client.user, std::move(status));
}

void Lease::on_error(engine::LateError error) {
  tell([&]() -> Status {
    error.status = LateErrors::shortened(advised(std::move(error.status)));
    {
      MutexLock lock(mutex_);
      if (open_errors_.size() < kOpenErrors) open_errors_.emplace(error.root, error.status);
      if (errors_.size() == kMaxErrors) errors_.pop_back();
      errors_.push_front(
          {Clock::now(), error.root, error.status.message().substr(0, kMaxErrorText), false});
    }
    outbox_.error({error.root, std::move(error.status)});
    return {};
  });
}

void Lease::on_raised(engine::Raised raised) {
  {
    MutexLock lock(mutex_);
    open_errors_.erase(raised.root);
    for (Error& error : errors_) error.raised |= error.seq == raised.root;
  }
  outbox_.raised({raised.seq, raised.root, std::move(raised.rebinds)});
  wake();
}

void Lease::on_slow(engine::SlowOp slow) {
  const auto took = std::chrono::nanoseconds(slow.ns);
  if (took < table_->limits().slow) return;
  table_->slow_log().add({Clock::now(), client.id, client.user, client.name, std::move(slow.op),
                          took, slow.seq, site_of(slow.seq)});
}

std::vector<Lease::Error> Lease::errors() const {
  MutexLock lock(mutex_);
  return {errors_.begin(), errors_.end()};
}

}  // namespace teletensor::server
