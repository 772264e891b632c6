#include "server/lease.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <utility>

#include "server/codec.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kTombstones = 256;
constexpr std::chrono::milliseconds kHouseTick{200};
constexpr std::chrono::milliseconds kLinger{2000};  // for the last message and the status

// 128 random bits in hexadecimal digits; empty if the system has none.
std::string make_token() {
  unsigned char bits[16];
  if (getrandom(bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) return {};
  std::string token;
  for (unsigned char byte : bits) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

}  // namespace

// ---------------------------------------------------------------- Lease

Lease::Lease(Leases* table, std::string token, ClientInfo client, const Limits& limits)
    : token(std::move(token)),
      client(std::move(client)),
      table_(table),
      reader_(limits.frame, this->client.ops, this->client.op_names),
      outbox_(limits) {}

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

void Lease::destroy_session() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    while (users_ != 0) left_.wait(mutex_);
  }
  session_.reset();
}

Status Lease::ended_status() const {
  MutexLock lock(mutex_);
  return reason_.ok() ? Status(Code::kAborted, "the session has ended") : reason_;
}

Status Lease::submit(std::string_view bytes, std::function<void(Status)> done) {
  wire::Frame frame;
  TT_RETURN_IF_ERROR(reader_.read(bytes, frame));
  if (frame.attach_counter != client.attach_counter) {
    return Status(Code::kFailedPrecondition,
                  "frame of another attach: " + std::to_string(frame.attach_counter) +
                      ", this one is " + std::to_string(client.attach_counter));
  }
  TT_RETURN_IF_ERROR(outbox_.received(frame.first_seq, frame.commands.size(), bytes.size()));
  return with_session([&](engine::Session& session) {
    session.submit(frame.first_seq, frame.first_id, std::move(frame.commands), std::move(done));
    return Status();
  });
}

Status Lease::join(std::weak_ptr<LeaseCall> call, bool run) {
  MutexLock lock(mutex_);
  if (ended_) return reason_;
  if (run) {
    if (!run_.expired())
      return Status(Code::kAlreadyExists, "the session has a Run stream already");
    run_ = call;
    attached_ = true;
  }
  std::erase_if(calls_, [](const auto& weak) { return weak.expired(); });
  calls_.push_back(std::move(call));
  return {};
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
  wake();
}

void Lease::on_fetched(engine::Fetched fetched) {
  const Status status = outbox_.fetched(to_wire(std::move(fetched), table_->limits()));
  if (!status.ok()) return table_->end(*this, status);
  wake();
}

void Lease::on_error(engine::LateError error) {
  outbox_.error({error.root, std::move(error.status)});
  wake();
}

void Lease::on_raised(engine::Raised raised) {
  outbox_.raised({raised.seq, raised.root, std::move(raised.rebinds)});
  wake();
}

// ---------------------------------------------------------------- Leases

Leases::Leases(engine::Engine& engine, const Limits& limits)
    : engine_(engine), limits_(limits), house_([this] { keep_house(); }) {}

Leases::~Leases() {
  shutdown();
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  house_.join();
}

core::Result<LeaseRef> Leases::open(ClientInfo client) {
  {
    MutexLock lock(mutex_);
    if (closed_) return Status(Code::kUnavailable, "the server is shutting down");
    if (leases_.size() + opening_ >= limits_.sessions) {
      return Status(Code::kResourceExhausted,
                    "there are " + std::to_string(leases_.size()) + " sessions, the most allowed");
    }
    ++opening_;
    ++opened_;
    if (client.name.empty()) client.name = "session-" + std::to_string(opened_);
  }
  const auto closing = [this] {
    MutexLock lock(mutex_);
    --opening_;
  };
  std::string token = make_token();
  if (token.empty()) {
    closing();
    return core::internal("no random bits for a token");
  }
  engine::SessionOptions options;
  options.memory_quota = client.memory_quota;
  options.name = client.name;
  auto lease = std::make_shared<Lease>(this, std::move(token), std::move(client), limits_);
  auto session = engine_.open(options, lease.get());
  if (!session.ok()) {
    closing();
    return session.status();
  }
  lease->session_ = std::move(*session);
  bool refused = false;
  {
    MutexLock lock(mutex_);
    --opening_;
    refused = closed_;
    if (!refused) leases_.emplace(lease->token, lease);
  }
  if (refused) return Status(Code::kUnavailable, "the server is shutting down");
  spdlog::info("event=session_opened session=\"{}\" peer=\"{}\" client=\"{}\" quota={}",
               lease->client.name, lease->client.peer, lease->client.version,
               lease->client.memory_quota);
  return lease;
}

core::Result<LeaseRef> Leases::find(std::string_view token) const {
  MutexLock lock(mutex_);
  if (const auto it = leases_.find(std::string(token)); it != leases_.end()) return it->second;
  for (const auto& [dead, reason] : tombstones_) {
    if (dead == token) return Status(Code::kAborted, "the session has ended: " + reason.message());
  }
  return Status(Code::kNotFound, "no session has this token");
}

std::vector<LeaseRef> Leases::all() const {
  MutexLock lock(mutex_);
  std::vector<LeaseRef> leases;
  for (const auto& [token, lease] : leases_) leases.push_back(lease);
  return leases;
}

void Leases::end(Lease& lease, Status reason) {
  std::vector<std::weak_ptr<LeaseCall>> calls;
  {
    MutexLock lock(lease.mutex_);
    if (std::exchange(lease.ended_, true)) return;
    lease.reason_ = reason;
    calls = std::exchange(lease.calls_, {});
  }
  spdlog::info("event=session_ended session=\"{}\" code={} reason=\"{}\"", lease.client.name,
               static_cast<int>(reason.code()), reason.message());
  {
    MutexLock lock(mutex_);
    if (const auto it = leases_.find(lease.token); it != leases_.end()) {
      dying_.push_back(std::move(it->second));
      leases_.erase(it);
      if (leases_.empty()) empty_since_ = Clock::now();
      tombstones_.emplace_back(lease.token, reason);
      if (tombstones_.size() > kTombstones) tombstones_.pop_front();
    }
    for (const auto& weak : calls) lingering_.emplace_back(Clock::now(), weak);
  }
  changed_.notify_all();
  for (const auto& weak : calls) {
    if (const auto call = weak.lock()) call->lease_ended(reason);
  }
}

void Leases::shutdown() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  for (const LeaseRef& lease : all())
    end(*lease, Status(Code::kUnavailable, "the server shuts down"));
  MutexLock lock(mutex_);
  while (!dying_.empty() || destroying_ != 0) changed_.wait(mutex_);
}

std::chrono::milliseconds Leases::idle() const {
  MutexLock lock(mutex_);
  if (!leases_.empty() || opening_ != 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - empty_since_);
}

std::uint64_t Leases::opened() const {
  MutexLock lock(mutex_);
  return opened_;
}

void Leases::keep_house() {
  while (true) {
    LeaseRef dead;
    {
      MutexLock lock(mutex_);
      if (dying_.empty()) {
        if (stop_) return;
        changed_.wait_for(mutex_, kHouseTick);
      }
      if (!dying_.empty()) {
        dead = std::move(dying_.front());
        dying_.pop_front();
        ++destroying_;
      }
    }
    if (!dead) {
      end_overdue();
      abandon_lingering();
      continue;
    }
    dead->destroy_session();
    dead.reset();
    {
      MutexLock lock(mutex_);
      --destroying_;
    }
    changed_.notify_all();
  }
}

void Leases::end_overdue() {
  const Clock::time_point now = Clock::now();
  for (const LeaseRef& lease : all()) {
    std::shared_ptr<LeaseCall> run;
    {
      MutexLock lock(lease->mutex_);
      run = lease->run_.lock();
    }
    if (!run) {
      if (!lease->attached() && now - lease->created > limits_.attach) {
        end(*lease, Status(Code::kDeadlineExceeded, "no Run stream followed Hello"));
      }
      continue;
    }
    const Clock::time_point since = run->stalled_since();
    if (since != Clock::time_point{} && now - since > limits_.stall) {
      end(*lease,
          Status(Code::kDeadlineExceeded, "the client has not read for " +
                                              std::to_string(limits_.stall.count() / 1000) + " s"));
    }
  }
}

void Leases::abandon_lingering() {
  while (true) {
    std::shared_ptr<LeaseCall> call;
    {
      MutexLock lock(mutex_);
      if (lingering_.empty() || Clock::now() - lingering_.front().first < kLinger) return;
      call = lingering_.front().second.lock();
      lingering_.pop_front();
    }
    if (call) call->abandon();
  }
}

}  // namespace teletensor::server
