#include "server/lease.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <utility>

#include "server/auth.h"
#include "server/codec.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kTombstones = 256;
constexpr std::size_t kOpenErrors = 1000;  // told to the next client
constexpr std::size_t kUploads = 64;       // whose keys are remembered
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
      ticket(make_token()),
      client(std::move(client)),
      table_(table),
      reader_(limits.frame, this->client.ops, this->client.op_names),
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
    table_->counters().add(client.user, {session_->lane_ns(), session_->completed_upto()});
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

Status Lease::submit(const LeaseCall* run, std::string_view bytes) {
  wire::Frame frame;
  TT_RETURN_IF_ERROR(reader_.read(bytes, frame));
  bool is_new = false;
  {
    MutexLock lock(mutex_);
    if (run_now_ != run) return {};  // fenced: the client sends it again on its own stream
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
    session.submit(frame.first_seq, frame.first_id, std::move(frame.commands),
                   [this](Status status) { consumed(std::move(status)); });
    return Status();
  });
}

void Lease::consumed(Status status) {
  if (!status.ok()) return table_->end(*this, std::move(status), "protocol");
  consuming_ = false;
  wake();
}

Status Lease::join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach) {
  MutexLock lock(mutex_);
  if (ended_) return ending_.status;
  if (attach) {
    if (*attach != attach_) {
      return Status(Code::kFailedPrecondition, "a stream of attach " + std::to_string(*attach) +
                                                   ", the last is " + std::to_string(attach_));
    }
    if (!awaited_) {
      return Status(Code::kAlreadyExists,
                    "the session has a Run stream already, or had it: Attach comes first");
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
  if (before == 0) return;
  (void)with_session([&](engine::Session& session) {
    session.abort_upload(before);
    return Status();
  });
}

core::Result<Attached> Lease::attach(const std::string& instance, std::uint64_t attach,
                                     std::uint64_t progress_upto) {
  std::shared_ptr<LeaseCall> older;
  Attached reply;
  {
    MutexLock lock(mutex_);
    if (ended_) return ending_.status;
    if (instance != client.instance) {
      return Status(Code::kPermissionDenied, "the session belongs to another client instance");
    }
    if (attach <= attach_) {
      return Status(Code::kFailedPrecondition, "attach " + std::to_string(attach) +
                                                   " comes late, the last was " +
                                                   std::to_string(attach_));
    }
    if (!survives()) {
      return Status(Code::kFailedPrecondition, "the session has a lease of 0");
    }
    attach_ = attach;
    awaited_ = true;
    run_now_ = nullptr;
    older = run_.lock();
    run_.reset();
    detached_at_ = Clock::now();
    if (!outbox_.rewind(progress_upto, attach)) {
      return Status(Code::kDataLoss,
                    "the client had left too many results unacknowledged to come back");
    }
    reply = {outbox_.received_upto(), outbox_.completed_upto()};
  }
  if (older) {
    const Ending ending{Status(Code::kAborted, "a later attach has taken the place of this stream"),
                        "fenced"};
    table_->dismiss(older, ending);
  }
  spdlog::info("event=session_attached session=\"{}\" attach={}", client.name, attach);
  return reply;
}

bool Lease::busy() {
  const core::Result<std::size_t> queued = with_session(
      [](engine::Session& session) -> core::Result<std::size_t> { return session.queued(); });
  return queued.ok() && *queued != 0;
}

Clock::time_point Lease::deserted_since() const {
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

void Lease::on_fetched(engine::Fetched fetched) {
  const Status status = outbox_.fetched(to_wire(std::move(fetched), table_->limits()));
  if (!status.ok()) return table_->end(*this, status, "slow");
  wake();
}

void Lease::on_error(engine::LateError error) {
  {
    MutexLock lock(mutex_);
    if (open_errors_.size() < kOpenErrors) open_errors_.emplace(error.root, error.status);
  }
  outbox_.error({error.root, std::move(error.status)});
  wake();
}

void Lease::on_raised(engine::Raised raised) {
  {
    MutexLock lock(mutex_);
    open_errors_.erase(raised.root);
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

void Lease::set_sites(std::vector<std::pair<std::uint64_t, std::string>> sites) {
  MutexLock lock(mutex_);
  for (auto& [seq, text] : sites) {
    sites_.insert_or_assign(seq, std::move(text));
    if (sites_.size() > kMostSites) sites_.erase(sites_.begin());
  }
}

std::string Lease::site_of(std::uint64_t seq) const {
  MutexLock lock(mutex_);
  const auto found = sites_.find(seq);
  return found == sites_.end() ? "" : found->second;
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
  const UserLimits user_limits = limits_.of(client.user);
  while (full(client.user) && evict_one(client.user)) {
  }
  {
    MutexLock lock(mutex_);
    if (closed_) return Status(Code::kUnavailable, "the server is shutting down");
    if (leases_.size() + opening_ >= limits_.sessions) {
      return Status(Code::kResourceExhausted,
                    "there are " + std::to_string(leases_.size()) + " sessions, the most allowed");
    }
    const std::size_t own = sessions_of(client.user);
    if (user_limits.sessions != 0 && own >= user_limits.sessions) {
      return Status(Code::kResourceExhausted, client.user + " has " + std::to_string(own) +
                                                  " sessions, the most a user may have; close one "
                                                  "(teletensor sessions, teletensor kill ID)");
    }
    ++opening_;
    opening_users_.insert(client.user);
    client.id = ++opened_;
    if (client.name.empty()) client.name = "session-" + std::to_string(opened_);
  }
  const auto closing = [this, user = client.user] {
    MutexLock lock(mutex_);
    --opening_;
    opening_users_.erase(opening_users_.find(user));
  };
  std::string token = make_token();
  if (token.empty()) {
    closing();
    return core::internal("no random bits for a token");
  }
  engine::SessionOptions options;
  options.memory_quota = client.memory_quota;
  options.name = client.name;
  options.user = client.user;
  options.user_quota = user_limits.memory;
  options.weight = user_limits.weight;
  options.publishes = client.user != kAnonymous;
  auto lease = std::make_shared<Lease>(this, std::move(token), std::move(client), limits_);
  lease->relay_ = std::make_unique<Relay>(lease.get());
  auto session = engine_.open(options, lease->relay_.get());
  if (!session.ok()) {
    closing();
    return session.status();
  }
  lease->session_ = std::move(*session);
  bool refused = false;
  {
    MutexLock lock(mutex_);
    --opening_;
    opening_users_.erase(opening_users_.find(lease->client.user));
    refused = closed_;
    if (!refused) leases_.emplace(lease->token, lease);
  }
  if (refused) return Status(Code::kUnavailable, "the server is shutting down");
  spdlog::info(
      "event=session_opened session=\"{}\" id={} user=\"{}\" peer=\"{}\" client=\"{}\" quota={}",
      lease->client.name, lease->client.id, lease->client.user, lease->client.peer,
      lease->client.version, lease->client.memory_quota);
  return lease;
}

core::Result<LeaseRef> Leases::find(std::string_view token, std::string* word) const {
  MutexLock lock(mutex_);
  if (const auto it = leases_.find(std::string(token)); it != leases_.end()) return it->second;
  for (const auto& [dead, ending] : tombstones_) {
    if (dead != token) continue;
    if (word) *word = ending.word;
    return Status(Code::kAborted, "the session has ended: " + ending.status.message());
  }
  if (word) *word = "unknown";
  return Status(Code::kNotFound, "no session has this token");
}

LeaseRef Leases::find_id(std::uint64_t id) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.id == id) return lease;
  }
  return nullptr;
}

std::vector<LeaseRef> Leases::all() const {
  MutexLock lock(mutex_);
  std::vector<LeaseRef> leases;
  for (const auto& [token, lease] : leases_) leases.push_back(lease);
  return leases;
}

LeaseRef Leases::find_name(std::string_view user, std::string_view name) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.named && lease->client.user == user && lease->client.name == name) {
      return lease;
    }
  }
  return nullptr;
}

void Leases::take_over(ClientInfo client, LeaseReady ready) {
  const std::pair<std::string, std::string> key(client.user, client.name);
  bool seized = false;
  {
    MutexLock lock(mutex_);
    seized = !seized_.insert(key).second;
  }
  if (seized) {
    return ready(Status(Code::kAborted, "session \"" + client.name +
                                            "\" is being taken over by another client just now"));
  }
  ready = [this, key, ready = std::move(ready)](core::Result<LeaseRef> lease) {
    {
      MutexLock lock(mutex_);
      seized_.erase(key);
    }
    ready(std::move(lease));
  };
  const LeaseRef old = find_name(client.user, client.name);
  if (!old || !old->survives() ||
      !retire(*old, Status(Code::kAborted, "another client has taken the session over"), "taken",
              true)) {
    return ready(open(std::move(client)));
  }
  client.id = old->client.id;
  client.memory_quota = old->client.memory_quota;
  auto done = [this, raw = old.get(), client = std::move(client),
               ready](core::Result<engine::TakenOver> start) mutable {
    LeaseRef from;
    {
      MutexLock lock(mutex_);
      const auto found = std::find_if(heritage_.begin(), heritage_.end(),
                                      [&](const LeaseRef& lease) { return lease.get() == raw; });
      if (found != heritage_.end()) {
        from = std::move(*found);
        heritage_.erase(found);
      }
      if (from && start.ok()) {
        handovers_.push_back({std::move(from), std::move(client), std::move(*start), ready});
      } else if (from) {
        dying_.push_back(std::move(from));
      }
    }
    changed_.notify_all();
    if (!start.ok()) ready(start.status());
  };
  const Status status = old->with_session([&](engine::Session& session) {
    session.take_over(std::move(done));
    return Status();
  });
  if (!status.ok()) ready(status);
}

// On the house's thread: it may wait for those who still use the session.
void Leases::hand_over(Handover handover) {
  Lease& old = *handover.old;
  old.close();
  auto lease = std::make_shared<Lease>(this, make_token(), std::move(handover.client), limits_);
  lease->start = std::move(handover.start);
  lease->session_ = std::move(old.session_);
  lease->relay_ = std::move(old.relay_);
  lease->outbox_.begin_at(lease->start->next_seq - 1, lease->session_->completed_upto());
  lease->relay_->aim(lease.get());
  lease->on_completed(lease->session_->completed_upto());
  std::map<std::uint64_t, Status> errors;
  {
    MutexLock lock(old.mutex_);
    errors.swap(old.open_errors_);
  }
  for (auto& [root, status] : errors) lease->on_error({root, std::move(status)});
  bool refused = lease->token.empty();
  {
    MutexLock lock(mutex_);
    refused = refused || closed_;
    if (refused) {
      dying_.push_back(lease);
    } else {
      leases_.emplace(lease->token, lease);
    }
  }
  spdlog::info("event=session_taken_over session=\"{}\" id={} peer=\"{}\" kept={}",
               lease->client.name, lease->client.id, lease->client.peer,
               lease->start->inventory.names.size());
  if (refused) {
    handover.ready(Status(Code::kUnavailable, "the server is shutting down"));
  } else {
    handover.ready(lease);
  }
}

bool Leases::retire(Lease& lease, Status reason, std::string word, bool inherit) {
  const Ending ending{std::move(reason), std::move(word)};
  std::vector<std::weak_ptr<LeaseCall>> calls;
  {
    MutexLock lock(lease.mutex_);
    if (std::exchange(lease.ended_, true)) return false;
    lease.ending_ = ending;
    calls = std::exchange(lease.calls_, {});
  }
  counters_.ended(ending.status.code());
  spdlog::info("event=session_ended session=\"{}\" why={} code={} reason=\"{}\"", lease.client.name,
               ending.word, static_cast<int>(ending.status.code()), ending.status.message());
  {
    MutexLock lock(mutex_);
    if (const auto it = leases_.find(lease.token); it != leases_.end()) {
      (inherit ? heritage_ : dying_).push_back(std::move(it->second));
      leases_.erase(it);
      if (leases_.empty()) empty_since_ = Clock::now();
      tombstones_.emplace_back(lease.token, ending);
      if (tombstones_.size() > kTombstones) tombstones_.pop_front();
    }
    for (const auto& weak : calls) lingering_.emplace_back(Clock::now(), weak);
  }
  changed_.notify_all();
  for (const auto& weak : calls) {
    if (const auto call = weak.lock()) call->lease_ended(ending);
  }
  return true;
}

void Leases::shutdown() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  for (const LeaseRef& lease : all())
    end(*lease, Status(Code::kUnavailable, "the server shuts down"), "daemon");
  MutexLock lock(mutex_);
  for (LeaseRef& lease : heritage_) dying_.push_back(std::move(lease));
  heritage_.clear();
  changed_.notify_all();
  while (!dying_.empty() || !handovers_.empty() || destroying_ != 0) changed_.wait(mutex_);
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
    std::optional<Handover> handover;
    {
      MutexLock lock(mutex_);
      if (dying_.empty() && handovers_.empty()) {
        if (stop_) return;
        changed_.wait_for(mutex_, kHouseTick);
      }
      if (!handovers_.empty()) {
        handover = std::move(handovers_.front());
        handovers_.pop_front();
        ++destroying_;
      } else if (!dying_.empty()) {
        dead = std::move(dying_.front());
        dying_.pop_front();
        ++destroying_;
      }
    }
    if (handover) {
      hand_over(std::move(*handover));
      handover.reset();
    } else if (!dead) {
      for (const LeaseRef& lease : all()) look_at(*lease, Clock::now());
      abandon_lingering();
      continue;
    } else {
      dead->destroy_session();
      dead.reset();
    }
    {
      MutexLock lock(mutex_);
      --destroying_;
    }
    changed_.notify_all();
  }
}

void Leases::dismiss(const std::shared_ptr<LeaseCall>& call, const Ending& ending) {
  {
    MutexLock lock(mutex_);
    lingering_.emplace_back(Clock::now(), call);
  }
  call->lease_ended(ending);
}

void Leases::look_at(Lease& lease, Clock::time_point now) {
  std::shared_ptr<LeaseCall> run;
  bool met = false;
  {
    MutexLock lock(lease.mutex_);
    run = lease.run_.lock();
    met = lease.met_;
  }
  if (run) {
    const Clock::time_point since = run->stalled_since();
    if (since == Clock::time_point{} || now - since <= limits_.stall) return;
    const Status status(
        Code::kDeadlineExceeded,
        "the client has not read for " + std::to_string(limits_.stall.count() / 1000) + " s");
    if (!lease.detach(run.get())) return end(lease, status, "slow");
    spdlog::info("event=session_detached session=\"{}\" reason=\"{}\"", lease.client.name,
                 status.message());
    return dismiss(run, {status, "slow"});
  }
  if (!met) {
    if (now - lease.created > limits_.attach) {
      end(lease, Status(Code::kDeadlineExceeded, "no Run stream followed Hello"), "protocol");
    }
    return;
  }
  // Idle is who completes nothing, never who has no socket.
  const Clock::time_point since = lease.deserted_since();
  if (since == Clock::time_point{} || now - since <= lease.client.lease || lease.busy()) return;
  end(lease,
      Status(Code::kDeadlineExceeded, "nobody came back to it for " +
                                          std::to_string(lease.client.lease.count()) +
                                          " s, its lease"),
      "expired");
}

std::size_t Leases::sessions_of(std::string_view user) const {
  std::size_t own = opening_users_.count(std::string(user));
  for (const auto& [token, lease] : leases_) own += lease->client.user == user;
  return own;
}

bool Leases::full(std::string_view user) const {
  const std::size_t most = limits_.of(user).sessions;
  MutexLock lock(mutex_);
  return leases_.size() + opening_ >= limits_.sessions || (most != 0 && sessions_of(user) >= most);
}

bool Leases::evict_one(std::string_view user) {
  LeaseRef oldest;
  Clock::time_point since{};
  for (const LeaseRef& lease : all()) {
    if (lease->client.user != user) continue;
    const Clock::time_point left = lease->deserted_since();
    if (left == Clock::time_point{} || Clock::now() - left < limits_.safe ||
        (oldest && left >= since)) {
      continue;
    }
    if (lease->client.named || lease->busy()) continue;
    oldest = lease;
    since = left;
  }
  if (!oldest) return false;
  end(*oldest, Status(Code::kResourceExhausted, "a new session needed the place of a detached one"),
      "evicted");
  return true;
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
