#include "server/state/recovery.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <utility>

#include "engine/core/threads.h"
#include "engine/core/with_memory.h"
#include "server/base/log.h"
#include "server/session/image_codec.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::chrono::milliseconds kShortestWait{50};
// Maximum time between two checks for sessions whose snapshot is due.
constexpr std::chrono::milliseconds kLook{250};
// Maximum time of a wait for sessions that use a storage, while others wait for the writer.
constexpr std::chrono::seconds kLongestWait{1};
// Periodic snapshots of a session are at least this many times as far apart as one takes to write.
constexpr int kMaxOften = 10;
constexpr int kSqueezes = 8;  // Maximum number of attempts with less data when the disk is full.
// A shutdown waits at most this long for sessions that still run before it writes larger ones.
constexpr std::chrono::milliseconds kLongestHold{1000};
constexpr std::uint64_t kSpare = 32 << 10;  // Bytes that are left free on the disk.

std::uint64_t microseconds_of_the_clock() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// An estimate of the size of a session's file.
std::uint64_t bytes_of(Lease& lease) {
  std::uint64_t sum = 0;
  (void)lease.with_session([&](engine::Session& session) {
    for (const engine::MemoryUse& use : session.memory()) sum += use.used + use.disk_used;
    return Status();
  });
  return sum;
}

}  // namespace

Recovery::Recovery(Leases& leases, std::unique_ptr<SessionStore> store, Times times,
                   std::function<void()> shutdown)
    : leases_(leases),
      store_(std::move(store)),
      state_use_(leases.limits()),
      shared_tensors_(store_.get(), leases.engine(), state_use_),
      times_(times),
      shutdown_(std::move(shutdown)),
      drain_{times.drain, {}} {
  if (!store_) return;
  leases_.on_over = [this](const std::string& file) {
    {
      MutexLock lock(mutex_);
      over_.push_back(file);
    }
    changed_.notify_all();
  };
  leases_.on_new_hands = [this](const LeaseRef& lease) {
    (void)request(lease, [](const auto&) {});
  };
  writer_ = core::start_thread([this] { work(); });
}

Recovery::~Recovery() {
  if (!store_) return;
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  writer_.join();
}

// ---------------------------------------------------------------- writing

// Returns true if this is the last chance to save the session: during a shutdown, for a session
// without an older file.
bool Recovery::last_chance(const Job& job) {
  return job.head->drained() && job.lease->saved().name().empty();
}

Status Recovery::refusal(const Lease& lease) const {
  if (!on()) {
    return Status(
        Code::kFailedPrecondition,
        "this daemon does not save sessions: it has no state directory of its own that it "
        "can write, or was started with --restart 0 or --lease 0");
  }
  if (!lease.client.survives()) {
    return Status(
        Code::kFailedPrecondition,
        "the session ends with its connection (its lease is 0), so no client could return to it");
  }
  return {};
}

void Recovery::snapshot(const LeaseRef& lease, Written done) {
  const std::string user = lease->client.user;
  bool full = false;
  {
    MutexLock lock(mutex_);
    std::size_t& calls = calls_[user];
    full = calls == kMaxCalls;
    if (!full) ++calls;
  }
  if (full) {
    return done(
        Status(Code::kResourceExhausted,
               user + " has " + std::to_string(kMaxCalls) +
                   " calls that wait for snapshots; call again when one of them has ended"));
  }
  const Written counted = [this, user, done = std::move(done)](const auto& facts) {
    {
      MutexLock lock(mutex_);
      if (const auto calls = calls_.find(user); --calls->second == 0) calls_.erase(calls);
    }
    done(facts);
  };
  const Status refused = request(lease, counted);
  if (!refused.ok()) counted(refused);
}

// Calls `done` after the next snapshot of the session that begins. Does not call it if the result
// is an error.
Status Recovery::request(const LeaseRef& lease, Written done) {
  TT_RETURN_IF_ERROR(refusal(*lease));
  {
    MutexLock lock(mutex_);
    if (drain_.begun) return shutting_down();
    Line& line = lines_[lease.get()];
    line.waiting.push_back(std::move(done));
    if (std::exchange(line.busy, true)) return {};
  }
  begin(lease);
  return {};
}

// Starts a snapshot for all requests that wait for one of this session. Precondition: the entry in
// lines_ is busy, so no other snapshot of it is started.
void Recovery::begin(const LeaseRef& lease) {
  {
    MutexLock lock(mutex_);
    Line& line = lines_[lease.get()];
    line.served.swap(line.waiting);
  }
  const Status status = core::with_memory("a snapshot", [&] {
    picture(lease, After::kGoOn, 0,
            [this, lease](const core::Result<SnapshotFacts>& facts) { served(lease, facts); });
    return Status();
  });
  if (!status.ok()) served(lease, status);
}

void Recovery::served(const LeaseRef& lease, const core::Result<SnapshotFacts>& facts) {
  std::vector<Written> done, late;
  bool more = false;
  {
    MutexLock lock(mutex_);
    const auto line = lines_.find(lease.get());
    done.swap(line->second.served);
    if (times_.every.count() > 0) note(*lease, facts, done.empty());
    more = !drain_.begun && !line->second.waiting.empty();
    if (!more) {
      late.swap(line->second.waiting);
      lines_.erase(line);
    }
  }
  for (const Written& each : done) each(facts);
  if (more) return begin(lease);
  for (const Written& each : late) {
    each(shutting_down());
  }
}

// With `timed`, the snapshot was periodic rather than requested.
void Recovery::note(const Lease& lease, const core::Result<SnapshotFacts>& facts, bool timed) {
  Past& past = past_[lease.client.id];
  const double took = facts.ok() ? kMaxOften * facts->seconds : 0;
  past.due = Clock::now() +
             std::max<Clock::duration>(times_.every, std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(took)));
  if (timed && !facts.ok() && facts.status().message() != past.status.message()) {
    log_warn("no_snapshot", {{"session", lease.client.name},
                             {"id", lease.client.id},
                             {"reason", facts.status().message()}});
  }
  past.status = facts.status();
}

// Starts the periodic snapshots that are due. Called by the writer thread, also between two pieces
// of a file, so that a session that becomes due meanwhile has its turn after that file.
void Recovery::start_due_snapshots() {
  if (times_.every.count() == 0 || Clock::now() < next_look_) return;
  next_look_ = Clock::now() + look();
  const std::vector<LeaseRef> all = leases_.table().all();
  std::vector<LeaseRef> due;
  {
    MutexLock lock(mutex_);
    if (drain_.begun || stop_) return;
    const Clock::time_point now = Clock::now();
    std::set<std::uint64_t> ids;
    for (const LeaseRef& lease : all) {
      if (!refusal(*lease).ok()) continue;
      ids.insert(lease->client.id);
      const auto [past, fresh] = past_.try_emplace(lease->client.id);
      if (fresh) past->second.due = now + times_.every;
      if (now < past->second.due) continue;
      if (lease->outbox().completed_upto() == lease->saved().upto()) continue;
      if (!std::exchange(lines_[lease.get()].busy, true)) due.push_back(lease);
    }
    std::erase_if(past_, [&](const auto& past) { return !ids.contains(past.first); });
  }
  for (const LeaseRef& lease : due) begin(lease);
}

void Recovery::ask_to_drain(std::chrono::milliseconds budget, Drained done) {
  bool first = false, late = false;
  {
    MutexLock lock(mutex_);
    late = drain_.begun;
    if (!late && shutdown_) {
      drain_.asked.push_back(std::exchange(done, nullptr));
      first = !std::exchange(drain_.announced, true);
      if (budget.count() > 0) drain_.budget = budget;
    }
  }
  if (done) {
    return done(Status(
        late ? Code::kUnavailable : Code::kUnimplemented,
        late ? "the server is shutting down already" : "this server has no shutdown handler"));
  }
  if (first) shutdown_();
}

void Recovery::rest(const LeaseRef& lease, Written done) {
  Status refused = refusal(*lease);
  if (refused.ok()) {
    MutexLock lock(mutex_);
    if (drain_.begun) refused = shutting_down();
  }
  if (!refused.ok()) return done(std::move(refused));
  picture(lease, After::kRest, 0, [lease, done](const core::Result<SnapshotFacts>& facts) {
    if (!facts.ok()) resume(*lease);
    done(facts);
  });
}

void Recovery::resume(Lease& lease) {
  (void)lease.with_session([](engine::Session& session) {
    session.resume();
    return Status();
  });
}

void Recovery::picture(const LeaseRef& lease, After after, int place,
                       std::function<void(core::Result<SnapshotFacts>)> done) {
  auto taken = [this, lease, after, place, done](core::Result<program::Image> image) {
    if (!image.ok()) return done(image.status());
    const Status status = core::with_memory("a snapshot", [&] {
      Job job{lease,
              std::move(*image),
              std::make_shared<v1::SavedHead>(),
              std::make_shared<v1::SavedBody>(),
              done,
              place};
      lease->save(*job.head, *job.body);
      job.head->set_drained(after == After::kHold);
      for (const program::Image::Storage& storage : job.image.storages) job.bytes += storage.bytes;
      {
        MutexLock lock(mutex_);
        if (queue_.order && after == After::kHold) queue_.order->settle(lease.get());
        queue_.add(std::move(job));
      }
      changed_.notify_all();
      return Status();
    });
    if (status.ok()) return;
    // Reports for the client may be lost, so the session must end.
    leases_.end(*lease, status, "protocol");
    done(status);
  };
  const Status status = lease->with_session([&](engine::Session& session) {
    if (after == After::kRest) {
      session.rest(std::move(taken));
    } else {
      session.snapshot(after == After::kHold, std::move(taken));
    }
    return Status();
  });
  if (!status.ok()) done(status);
}

void Recovery::Queue::add(Job job) {
  if (!order) turns.enter(job.lease->client.user);
  jobs.push_back(std::move(job));
}

std::optional<Recovery::Job> Recovery::Queue::take(Clock::time_point now) {
  if (jobs.empty()) return {};
  auto first = jobs.begin();
  if (order) {
    std::vector<WriteOrder::Session> ready;
    for (const Job& job : jobs) {
      ready.push_back({job.lease.get(), job.lease->client.user, job.bytes, job.place});
    }
    const std::optional<std::size_t> chosen = order->choose(ready, now);
    if (!chosen) return {};
    first += static_cast<std::ptrdiff_t>(*chosen);
    order->charge(first->lease->client.user, first->bytes);
  } else {
    const std::string& user = turns.next();
    first =
        std::ranges::find_if(jobs, [&](const Job& job) { return job.lease->client.user == user; });
    turns.begin(user);
  }
  std::optional<Job> job = std::move(*first);
  jobs.erase(first);
  return job;
}

void Recovery::Queue::squeeze_starved() {
  for (Job& job : starved) {
    if (order) order->refund(job.lease->client.user, job.bytes);
    job.squeezed = true;
    jobs.push_back(std::move(job));
  }
  starved.clear();
}

std::chrono::milliseconds Recovery::look() const {
  return std::min(kLook, std::max(kShortestWait, times_.every / 4));
}

void Recovery::work() {
  while (true) {
    start_due_snapshots();
    std::optional<Job> job;
    std::deque<std::string> over;
    {
      MutexLock lock(mutex_);
      const bool hurried = stop_ || Clock::now() >= cut_.load();
      job = queue_.take(hurried ? Clock::time_point::max() : Clock::now());
      if (!job && over_.empty()) {
        if (!queue_.jobs.empty()) {
          changed_.wait_for(mutex_, kShortestWait / 10);
        } else if (stop_) {
          return;
        } else if (times_.every.count() > 0) {
          changed_.wait_for(mutex_, look());
        } else {
          changed_.wait(mutex_);
        }
        continue;
      }
      over.swap(over_);
      writing_ = job.has_value();
    }
    for (const std::string& file : over) {
      store_->remove(file);
      state_use_.forget(file);
      shared_tensors_.held_by(file, {});
    }
    if (!over.empty()) shared_tensors_.sweep();
    if (!job) continue;
    const Clock::time_point began = Clock::now();
    auto facts = core::with_memory("a snapshot", [&] { return write(*job); });
    const auto done = job->done;
    const bool last = last_chance(*job);
    {
      MutexLock lock(mutex_);
      if (!queue_.order) queue_.turns.end(job->lease->client.user, seconds_since(began));
      if (!queue_.order && std::exchange(job->gives_way, false)) {
        queue_.add(std::move(*job));
        writing_ = false;
        continue;
      }
      if (job->full) {
        if (queue_.order) queue_.order->refund(job->lease->client.user, job->bytes);
      } else if (last && !job->squeezed && facts.status().code() == Code::kResourceExhausted) {
        queue_.starved.push_back(std::move(*job));
      }
    }
    job.reset();  // Releases the image, so that the session can use the memory again.
    done(std::move(facts));
    {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    changed_.notify_all();
  }
}

core::Result<SnapshotFacts> Recovery::write(Job& job) {
  const auto wanted = [&]() -> Status {
    if (job.lease->streams().over()) return Status(Code::kCancelled, "the session has ended");
    if (job.lease->saved().handed_on())
      return Status(Code::kCancelled, "another client has the session");
    return {};
  };
  const auto check = [&]() -> Status {
    start_due_snapshots();
    TT_RETURN_IF_ERROR(wanted());
    if (Clock::now() < cut_.load()) return {};
    return Status(Code::kDeadlineExceeded, "there was no time left to write it");
  };
  TT_RETURN_IF_ERROR(check());
  // Storages that are lost anyway do not prevent the rest from being written. During a shutdown the
  // same holds for storages for which there is no time, unless an older file has all of them.
  const bool last = last_chance(job);
  const auto spares = [&](const Status& why) {
    return why.code() == Code::kDataLoss || (last && why.code() == Code::kDeadlineExceeded);
  };
  const Clock::time_point began = Clock::now();
  SessionStore::Lost lost;
  SnapshotFacts facts;
  std::vector<std::uint64_t> shared_ids;
  for (const program::Image::Storage& storage : job.image.storages) {
    facts.bytes += storage.bytes;
    if (storage.common != 0) shared_ids.push_back(storage.common);
  }
  facts.common = !shared_ids.empty();
  job.head->mutable_commons()->Assign(shared_ids.begin(), shared_ids.end());
  facts.completed_upto = job.image.next_seq - 1;
  job.head->set_bytes(facts.bytes);
  job.head->set_written(static_cast<std::uint64_t>(std::time(nullptr)));
  std::string file = job.lease->saved().name();
  const bool fresh = file.empty();
  if (fresh) file = store_->new_name();
  const std::string& user = job.lease->client.user;
  Status no_room;
  const auto fits = [&](std::uint64_t bytes) {
    no_room = state_use_.fits(file, user, bytes);
    job.full = !no_room.ok();
    return no_room;
  };
  SessionStore::Terms terms{check, spares};
  // During a shutdown, a wait may take a quarter of the time. Else it ends if other sessions wait.
  terms.may_wait = [&](Clock::time_point since) {
    const Clock::time_point now = Clock::now(), cut = cut_.load();
    if (cut != Clock::time_point::max()) return now < since + (cut - since) / 4;
    if (now < since + kLongestWait) return true;
    MutexLock lock(mutex_);
    job.gives_way = !queue_.jobs.empty();
    return !job.gives_way;
  };
  terms.fits = fits;
  Status written = write_files(job, file, terms, lost);
  if (!no_room.ok()) written = no_room;  // The reason without the name of the file.
  facts.seconds = seconds_since(began);
  if (job.gives_way) return written;  // It is written again later.
  if (written.ok()) {
    job.lease->saved().set_failure("");
  } else if (written.code() != Code::kCancelled) {
    job.lease->saved().set_failure(written.message());
  }
  if (job.full) {
    leases_.counters().not_saved(user);
    shared_tensors_.sweep();  // Published tensors may have been written for this session alone.
  }
  if (!written.ok()) {
    log_warn("snapshot_failed", {{"session", job.lease->client.name},
                                 {"id", job.lease->client.id},
                                 {"reason", written.message()}});
    return written;
  }
  if ((facts.lost = lost.storages) > 0) {
    log_warn("tensors_lost", {{"session", job.lease->client.name},
                              {"id", job.lease->client.id},
                              {"tensors", lost.storages},
                              {"bytes", lost.bytes},
                              {"reason", lost.why.message()}});
  }
  state_use_.set(file, user, store_->size_of(file));
  shared_tensors_.held_by(file, std::move(shared_ids));
  shared_tensors_.sweep();
  // If this lease has passed its file to the next lease of the session, the snapshot is stored in
  // that file as well.
  const bool ours = job.lease->set_file(file, facts.completed_upto);
  if (ours ? job.lease->streams().over() : fresh) {
    store_->remove(file);
    state_use_.forget(file);
    shared_tensors_.held_by(file, {});
    shared_tensors_.sweep();
  }
  TT_RETURN_IF_ERROR(wanted());
  log_info("snapshot", {{"session", job.lease->client.name},
                        {"id", job.lease->client.id},
                        {"upto", facts.completed_upto},
                        {"bytes", facts.bytes},
                        {"seconds", facts.seconds}});
  return facts;
}

Status Recovery::write_files(Job& job, const std::string& file, SessionStore::Terms terms,
                             SessionStore::Lost& lost) {
  engine::Engine& engine = leases_.engine();
  SessionStore::Terms spared = terms;
  spared.spares = [&](const Status& why) {
    return terms.spares(why) || (last_chance(job) && why.code() == Code::kResourceExhausted);
  };
  TT_RETURN_IF_ERROR(
      shared_tensors_.write(job.image, job.lease->client.user, spared, lost, &job.full));
  job.body->clear_image();
  write_image(job.image, engine.catalog(), *job.body->mutable_image());
  for (int tries = job.squeezed ? kSqueezes : 0;; --tries) {
    SessionStore::Lost now = lost;
    const Status status = store_->write(file, *job.head, *job.body, job.image, engine, terms, now);
    if (tries == 0 || job.full || status.code() != Code::kResourceExhausted) {
      lost = now;
      return status;
    }
    // The space that was available for contents, reduced by what else has to be written.
    terms.room = std::min(now.stored, terms.room);
    terms.room -= std::min(terms.room, std::max(kSpare, terms.room / 8));
  }
}

// ---------------------------------------------------------------- shutdown

void Recovery::drain(Clock::time_point since) {
  const core::Result<DrainFacts> facts = write_all(since);
  std::vector<Drained> drained;
  {
    MutexLock lock(mutex_);
    drained.swap(drain_.asked);
  }
  for (const Drained& each : drained) each(facts);
}

DrainFacts Recovery::write_all(Clock::time_point began) {
  leases_.table().close();
  std::chrono::milliseconds budget{0};
  {
    MutexLock lock(mutex_);
    budget = drain_.budget;
  }
  (void)leases_.takeovers().settle(budget / 8);
  std::vector<LeaseRef> all;
  if (on()) {
    for (LeaseRef& lease : leases_.table().all()) {
      if (lease->client.survives()) all.push_back(std::move(lease));
    }
  }
  for (const LeaseRef& lease : leases_.table().all()) {
    if (on() && lease->client.survives()) continue;
    (void)lease->with_session([](engine::Session& session) {
      session.leave_groups(kShutsDown);
      return Status();
    });
  }
  const auto key = [](const LeaseRef& lease) {
    return std::tuple(!lease->client.named, !lease->streams().attached(),
                      -lease->active_at().time_since_epoch());
  };
  std::vector<std::pair<decltype(key(all[0])), LeaseRef>> order;
  for (const LeaseRef& lease : all) order.emplace_back(key(lease), lease);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::uint64_t> sizes;
  for (const auto& [ignored, lease] : order) sizes.push_back(bytes_of(*lease));
  std::map<const Lease*, std::optional<core::Result<SnapshotFacts>>> results;
  {
    MutexLock lock(mutex_);
    drain_.begun = true;
    Clock::time_point never = Clock::time_point::max();
    deadline_.compare_exchange_strong(never, began + drain_.budget);
    never = Clock::time_point::max();
    cut_.compare_exchange_strong(never, began + drain_.budget - drain_.budget / 8);
    const auto hold = std::min<std::chrono::milliseconds>(budget / 8, kLongestHold);
    queue_.order.emplace(Clock::now(), hold);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const LeaseRef& lease = order[i].second;
      queue_.order->expect({lease.get(), lease->client.user, sizes[i], static_cast<int>(i) + 1});
      results[lease.get()];
    }
  }
  std::size_t done = 0;
  int rank = 0;
  const auto begin = [&](const LeaseRef& lease, int place) {
    picture(lease, After::kHold, place,
            [this, &results, &done, raw = lease.get()](core::Result<SnapshotFacts> facts) {
              {
                MutexLock lock(mutex_);
                if (facts.status().code() != Code::kAborted) queue_.order->settle(raw);
                results[raw] = std::move(facts);
                ++done;
              }
              changed_.notify_all();
            });
  };
  for (const auto& [ignored, lease] : order) begin(lease, ++rank);
  // Collects the sessions whose snapshot failed because a client's own snapshot was running.
  // Precondition: the lock is held.
  const auto take_aborted = [&] {
    std::vector<LeaseRef> again;
    for (const auto& [ignored, lease] : order) {
      auto& result = results[lease.get()];
      if (!result || result->status().code() != Code::kAborted || lease->streams().over()) continue;
      result.reset();
      --done;
      again.push_back(lease);
    }
    return again;
  };
  rest_groups(all, began, budget, [&] {
    std::vector<LeaseRef> again;
    {
      MutexLock lock(mutex_);
      again = take_aborted();
    }
    for (const LeaseRef& lease : again) begin(lease, 0);
  });
  bool squeezed = false;
  while (Clock::now() < deadline_.load()) {
    std::vector<LeaseRef> again;
    {
      MutexLock lock(mutex_);
      if (done < order.size()) changed_.wait_for(mutex_, kShortestWait);
      again = take_aborted();
      if (done == order.size() && (std::exchange(squeezed, true) || queue_.starved.empty())) break;
      if (done == order.size()) {
        // There is not enough space for all sessions.
        for (const Job& job : queue_.starved) {
          results[job.lease.get()].reset();
          --done;
        }
        queue_.squeeze_starved();
        changed_.notify_all();
      }
    }
    for (const LeaseRef& lease : again) begin(lease, 0);
  }
  hurry();  // A snapshot that is being written ends now without the missing parts.
  {
    MutexLock lock(mutex_);
    while (writing_ || !queue_.jobs.empty()) changed_.wait(mutex_);
    queue_.starved.clear();
  }
  DrainFacts facts;
  v1::SavedLosses losses;
  std::set<const Lease*> stay;
  for (const auto& [ignored, lease] : order) {
    Status why(Code::kDeadlineExceeded, "its commands did not finish in time");
    {
      MutexLock lock(mutex_);
      const auto& result = results[lease.get()];
      if (result && result->ok()) {
        stay.insert(lease.get());
        ++facts.kept;
        continue;
      }
      if (result) why = result->status();
    }
    if (lease->streams().over()) continue;  // The client has closed the session meanwhile.
    // The next daemon restores the session from its last snapshot.
    if (!lease->saved().name().empty()) stay.insert(lease.get());
    lose(lease, why, losses, facts);
  }
  if (losses.losses_size() > 0) {
    const Status status = store_->write_losses(losses);
    if (!status.ok()) log_warn("losses_not_written", {{"reason", status.message()}});
  }
  const auto lost = std::count_if(facts.lost.begin(), facts.lost.end(),
                                  [](const auto& each) { return !each.goes_back; });
  log_info("drained", {{"kept", stay.size()}, {"lost", lost}, {"seconds", seconds_since(began)}});
  written_ = true;
  leases_.shutdown([&](const Lease& lease) { return stay.contains(&lease); });
  // Sessions that could not be paused have ended with shutdown(): every callback was called or will
  // be dropped.
  MutexLock lock(mutex_);
  while (done < order.size()) changed_.wait(mutex_);
  return facts;
}

void Recovery::lose(const LeaseRef& ref, const Status& why, v1::SavedLosses& losses,
                    DrainFacts& facts) {
  Lease& lease = *ref;
  const bool back = !lease.saved().name().empty();
  facts.lost.push_back(
      {lease.client.id, lease.client.name, lease.client.user, why.message(), back});
  log_warn(back ? "session_goes_back" : "session_lost", {{"session", lease.client.name},
                                                         {"id", lease.client.id},
                                                         {"user", lease.client.user},
                                                         {"reason", why.message()}});
  v1::SavedLoss& loss = *losses.add_losses();
  loss.set_token(lease.token);
  loss.set_user(lease.client.user);
  loss.set_goes_back(back);
  loss.set_reason(why.message());
  if (back) return;
  if (lease.client.named) loss.set_name(lease.client.name);
  loss.set_reason("the daemon was shut down, and session \"" + lease.client.name +
                  "\" could not be kept: " + why.message());
  leases_.end(lease, Status(Code::kAborted, loss.reason()), "lost");
}

// ---------------------------------------------------------------- restoring

void Recovery::restore() {
  if (!on()) return leases_.engine().restored();
  const v1::SavedLosses losses = store_->take_losses();
  for (const v1::SavedLoss& loss : losses.losses()) {
    if (loss.goes_back()) continue;
    v1::SavedHead head;
    head.set_token(loss.token());
    leases_.table().refuse(head, Status(Code::kAborted, loss.reason()), "lost", nullptr);
  }
  // The numbering starts at the current time, so that numbers from a run that crashed are not used
  // again for other objects.
  leases_.engine().number_from(microseconds_of_the_clock());
  const std::vector<SessionStore::Found> all = store_->list();
  for (const SessionStore::Found& found : all) {
    if (found.status.ok()) {
      state_use_.set(found.file, found.head.user(), store_->size_of(found.file));
    }
    shared_tensors_.held_by(found.file, {found.head.commons().begin(), found.head.commons().end()});
  }
  shared_tensors_.restore(leases_.limits());
  for (const SessionStore::Found& found : all) restore_one(found);
  for (const v1::SavedLoss& loss : losses.losses()) {
    const auto lease = leases_.table().find(loss.token());
    if (loss.goes_back() && lease.ok()) (*lease)->saved().set_failure(loss.reason());
  }
  leases_.engine().restored();
  for (const LeaseRef& lease : leases_.table().all()) resume(*lease);
}

core::Result<LeaseRef> Recovery::load_session(const std::string& file, bool arrives) {
  auto reading = store_->read(file);
  if (!reading.ok()) return reading.status();
  v1::SavedHead head = (*reading)->head;
  if (arrives) head.set_id(0);
  auto image = read_image((*reading)->body.image(), leases_.engine().catalog());
  if (!image.ok()) return image.status();
  // Starts at the current time, so that an upload number that a client received in a run that
  // crashed is not used again.
  image->next_upload = std::max(image->next_upload, microseconds_of_the_clock());
  Status bytes;
  // Reads the contents to the end of the file, so that damage anywhere is detected.
  std::deque<std::uint64_t> left;
  for (const program::Image::Storage& storage : image->storages) {
    if (storage.bytes > 0 && storage.common == 0) left.push_back(storage.bytes);
  }
  const auto read = [&](void* to, std::size_t size, Status& lost) {
    bytes = (*reading)->read(to, size, lost);
    if (!bytes.ok()) return bytes;
    if (!lost.ok() || (left.front() -= size) == 0) left.pop_front();
    return left.empty() ? bytes = (*reading)->finish() : bytes;
  };
  if (left.empty()) TT_RETURN_IF_ERROR((*reading)->finish());
  return leases_.restore(head, (*reading)->body, std::move(*image), read, file);
}

void Recovery::restore_file(const std::string& file) {
  for (const SessionStore::Found& found : store_->list()) {
    if (found.file == file) restore_one(found);
  }
}

void Recovery::restore_one(const SessionStore::Found& found) {
  const Clock::time_point began = Clock::now();
  const v1::SavedHead& head = found.head;
  core::Result<LeaseRef> lease(found.status);
  if (found.status.ok()) lease = load_session(found.file, false);
  const Status status = lease.ok() ? leases_.table().admit(*lease) : lease.status();
  if (status.ok()) {
    log_info("session_restored", {{"session", head.name()},
                                  {"id", (*lease)->client.id},
                                  {"user", head.user()},
                                  {"upto", head.completed_upto()},
                                  {"bytes", head.bytes()},
                                  {"seconds", seconds_since(began)}});
    return;
  }
  std::string text = status.message();
  if (text.find(found.file) == std::string::npos) text = "sessions/" + found.file + ": " + text;
  log_error("session_not_restored",
            {{"session", head.name()}, {"user", head.user()}, {"reason", text}});
  const Status why(status.code() == Code::kResourceExhausted ? status.code() : Code::kDataLoss,
                   "session \"" + head.name() + "\" cannot be restored: " + text);
  leases_.table().refuse(head, why, "damaged",
                         [this, file = found.file] { return store_->exists(file); });
}

}  // namespace teletensor::server
