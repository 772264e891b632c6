#include "engine/session/session.h"

#include <algorithm>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::session {

using core::Code;
using core::Status;

namespace {

memory::Pool& host_pool(const runtime::Back& back) {
  const runtime::Executor& executor = back.executor();
  return executor.pool(static_cast<std::size_t>(executor.devices().find(core::Device{})));
}

}  // namespace

Session::Session(const ops::Catalog& catalog, runtime::Devices& devices, runtime::Lanes& lanes,
                 runtime::Publications& publications, memory::OwnerId owner,
                 const engine::SessionOptions& options, engine::SessionListener* listener,
                 runtime::Tiers* tiers, runtime::Groups* groups)
    : lanes_(lanes),
      publications_(publications),
      owner_(owner),
      listener_(listener),
      back_(catalog, devices, lanes, owner, options.memory_quota, this, &publications, tiers,
            groups),
      uploads_(back_, host_pool(back_), *shares_, accepted_upto_, options.limits.staged_bytes),
      downloads_(back_, *shares_, accepted_upto_),
      sink_({back_, publications, uploads_, downloads_, bookkeeping_, *listener},
            options.publishes ? options.user : "", options.name, options.limits.published),
      front_(catalog, &sink_, options.limits),
      bookkeeping_(front_, back_, *listener, host_pool(back_), options.user, options.limits),
      consumer_(front_, back_, bookkeeping_, this, options.templates) {
  if (!options.user.empty()) back_.set_share(lanes.share(options.user, options.weight));
  back_.tiers().join(options.user);
}

engine::Publication to_engine(runtime::Publications::Facts facts) {
  return {facts.id,
          std::move(facts.name),
          std::move(facts.user),
          std::move(facts.users),
          facts.dtype,
          facts.device,
          facts.shape,
          facts.writable,
          facts.bytes,
          facts.common,
          facts.owner};
}

Session::~Session() {
  consumer_.close();
  back_.stop();
  std::function<void(core::Result<engine::TakenOver>)> successor;
  Picture picture;
  {
    core::MutexLock lock(mu_);
    successor.swap(successor_);
    picture = std::exchange(pending_snapshot_, {});
  }
  uploads_.clear();
  shares_->clear();
  const Status closed(Code::kCancelled, "the session is closed");
  if (picture.done) picture.done(closed);
  if (successor) successor(closed);
  downloads_.abandon_upto(accepted_upto_, closed);
}

// ---------------------------------------------------------------- frames

void Session::submit(std::uint64_t first_seq, std::uint64_t first_id,
                     std::vector<program::Command> commands, std::function<void(Status)> done,
                     bool thin) {
  Status refused;
  bool waits = false;
  {
    core::MutexLock lock(mu_);
    // The image from which the session was restored was taken in the middle of this frame.
    if (next_.seq == next_.restored && first_seq < next_.seq && first_id <= next_.id &&
        first_seq + commands.size() > next_.seq) {
      commands.erase(commands.begin(),
                     commands.begin() + static_cast<std::ptrdiff_t>(next_.seq - first_seq));
      first_seq = next_.seq;
      first_id = next_.id;
    }
    const bool paused = pause_ != Pause::kNone;
    if (!broken_.ok()) {
      refused = broken_;
    } else if (consuming_ && !(paused && !consumer_.has_frame())) {
      refused = Status(Code::kFailedPrecondition, "the previous frame is still being consumed");
    } else if (first_seq != next_.seq) {
      refused = Status(Code::kFailedPrecondition, "frame starts with command " +
                                                      std::to_string(first_seq) + ", expected " +
                                                      std::to_string(next_.seq));
    } else if (first_id != next_.id) {
      refused =
          Status(Code::kFailedPrecondition, "frame starts with handle " + std::to_string(first_id) +
                                                ", expected " + std::to_string(next_.id));
    } else if (!commands.empty()) {
      consuming_ = true;
      next_.seq += commands.size();
      accepted_upto_ = next_.seq - 1;
      back_.profile().arrived(first_seq, commands.size());
      consumer_.set_frame({first_seq, std::move(commands), 0, std::exchange(done, nullptr), thin});
      waits = paused;
    }
  }
  if (done) return done(std::move(refused));
  if (!waits) consumer_.pump();
}

void Session::on_consumed(Status status, program::HandleId next_id,
                          std::function<void(Status)> done) {
  {
    core::MutexLock lock(mu_);
    consuming_ = false;
    next_.id = next_id;
    if (!status.ok()) broken_ = status;
  }
  if (!status.ok()) uploads_.refuse(status);
  consumer_.forget_completed();
  done(std::move(status));
  give_to_successor();
  pause_for_snapshot();
}

// ---------------------------------------------------------------- take-over and interruption

void Session::take_over(std::function<void(core::Result<engine::TakenOver>)> done) {
  {
    core::MutexLock lock(mu_);
    if (broken_.ok() && !successor_) std::swap(successor_, done);
  }
  if (done) return done(Status(Code::kFailedPrecondition, "the session cannot be taken over now"));
  resume();
  give_to_successor();
}

void Session::give_to_successor() {
  std::function<void(core::Result<engine::TakenOver>)> done;
  {
    core::MutexLock lock(mu_);
    if (consuming_ || !successor_) return;
    consuming_ = true;
    done = std::exchange(successor_, nullptr);
  }
  consumer_.take_front();
  engine::TakenOver taken;
  taken.inventory = front_.take_over();
  taken.next_id = front_.next_id();
  consumer_.publish_counts();
  consumer_.give_front_back();
  // A snapshot that the old client requested is cancelled: the session's state now belongs to the
  // new client.
  Picture picture;
  Status broken;
  {
    core::MutexLock lock(mu_);
    consuming_ = false;
    next_.id = taken.next_id;
    taken.next_seq = next_.seq;
    back_.groups().take_over(next_.seq - 1);
    picture = std::exchange(pending_snapshot_, {});
    broken = broken_;
  }
  uploads_.clear();
  shares_->end_open();
  if (picture.done) picture.done(Status(Code::kCancelled, "the session was taken over"));
  downloads_.abandon_upto(taken.next_seq - 1, Status(Code::kAborted, "the session was taken over"));
  consumer_.forget_completed();
  if (broken.ok()) {
    done(std::move(taken));
  } else {
    done(std::move(broken));
  }
  pause_for_snapshot();
}

void Session::interrupt(std::uint64_t upto) {
  back_.cancel_upto(upto != 0 ? upto : accepted_upto_.load());
}

// ---------------------------------------------------------------- events from the back end

void Session::on_completed(std::uint64_t seq) {
  consumer_.forget_completed();
  downloads_.refuse_upto(seq);
  listener_->on_completed(seq);
}

bool Session::on_moving(std::unordered_set<const void*>& kept) {
  return consumer_.kept_contents(kept);
}

namespace {

// Returns an error if a value would wait for the client to read it although the session has too
// little memory for all `unread` bytes that wait with it.
Status room_for_unread(const memory::Pool& host, std::uint64_t unread) {
  const std::uint64_t more = unread - std::min(unread, Session::kFreeUnread);
  if (more == 0 || host.room_for(more) == memory::Pool::Short::kNothing) return {};
  return host.refusal("fetch (" + std::to_string(unread) + " bytes that the client has not read)",
                      more);
}

Status copy_bytes(const runtime::FetchResult& result, runtime::Devices& devices,
                  std::string& bytes) {
  const runtime::RowMajor& contents = result.contents;
  runtime::Device& device = devices.at(static_cast<std::size_t>(devices.find(result.device)));
  return core::with_memory("a fetch", [&] {
    bytes.resize(contents.bytes);
    return device.backend().copy_out(
        bytes.data(), static_cast<const char*>(contents.storage->data()) + contents.offset,
        contents.bytes);
  });
}

}  // namespace

void Session::on_fetched(runtime::FetchResult result) {
  if (result.bulk) return downloads_.bind(std::move(result));
  if (downloads_.is_abandoned(result.seq)) return;
  engine::Fetched fetched = description_of(result);
  if (fetched.status.ok()) {
    fetched.status =
        room_for_unread(host_pool(back_), listener_->unread_bytes() + result.contents.bytes);
    if (fetched.status.ok()) fetched.status = copy_bytes(result, devices(), fetched.bytes);
    if (!fetched.status.ok()) fetched.root = fetched.seq;
  }
  result.contents.storage = nullptr;
  listener_->on_fetched(std::move(fetched));
}

void Session::on_failed(const program::Failure& root) {
  listener_->on_error({root.seq, root.status});
}

void Session::on_slow(std::uint64_t seq, program::OpId op, std::uint64_t ns) {
  listener_->on_slow(
      {seq, op == runtime::kNoOp ? "transfer" : std::string(back_.executor().catalog().at(op).name),
       ns});
}

// ---------------------------------------------------------------- reports

std::vector<engine::Holding> Session::largest(std::size_t most) const {
  std::vector<engine::Holding> all;
  for (std::size_t i = 0; i < devices().size(); ++i) {
    for (const auto& living : back_.executor().pool(i).record().largest(most)) {
      engine::Holding& held = all.emplace_back(
          engine::Holding{devices().at(i).id(), living.bytes, living.seq, living.away, {}, {}});
      if (!living.described) continue;
      held.dtype = living.described->dtype;
      held.shape = living.described->shape;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const engine::Holding& a, const engine::Holding& b) {
    return a.bytes > b.bytes;
  });
  if (all.size() > most) all.resize(most);
  return all;
}

std::vector<engine::Publication> Session::published(std::string_view name) const {
  std::vector<engine::Publication> found;
  for (runtime::Publications::Facts& facts : sink_.find_published(name)) {
    found.push_back(to_engine(std::move(facts)));
  }
  return found;
}

void Session::reset_peaks() {
  for (std::size_t i = 0; i < devices().size(); ++i) back_.executor().pool(i).reset_peak();
}

engine::Load Session::load() const {
  return {back_.load().waiting(), back_.load().wait_seconds(), lanes_.used_ns(back_),
          lanes_.ahead_of(back_), consumer_.repeated()};
}

program::Amounts Session::amounts() const {
  program::Amounts amounts = consumer_.amounts();
  bookkeeping_.publish_to(amounts);
  amounts.handles = handles();
  amounts.staged_bytes = uploads_.bytes();
  amounts.published = publications_.count(owner_);
  return amounts;
}

std::vector<engine::MemoryUse> Session::memory() const {
  std::vector<engine::MemoryUse> uses;
  for (std::size_t i = 0; i < devices().size(); ++i) {
    const memory::Account& account = back_.executor().pool(i).account();
    uses.push_back({devices().at(i).id(), account.used(), account.peak(), account.quota(),
                    account.budget().used(), account.budget().total()});
    uses.back().away = back_.executor().pool(i).moved_storages().bytes();
    const auto share = back_.executor().pool(i).moved_storages().disk_share();
    if (!share) continue;
    uses.back().away = share->bytes;
    uses.back().disk_used = share->files.used();
    uses.back().disk_quota =
        share->files.user() != nullptr ? share->files.user()->limit() : share->files.quota();
  }
  return uses;
}

}  // namespace teletensor::session
