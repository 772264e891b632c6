#include "engine/session/session.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace teletensor::session {

using core::Code;
using core::Status;

Session::Session(const ops::Catalog& catalog, runtime::Devices& devices, runtime::Lanes& lanes,
                 runtime::Publications& publications, memory::OwnerId owner,
                 const engine::SessionOptions& options, engine::SessionListener* listener,
                 runtime::Tiers* tiers, runtime::Groups* groups)
    : catalog_(catalog),
      devices_(devices),
      lanes_(lanes),
      publications_(publications),
      user_(options.publishes ? options.user : ""),
      name_(options.name),
      limits_(options.limits),
      owner_(owner),
      listener_(listener),
      back_(catalog, devices, lanes, owner, options.memory_quota, this, &publications, tiers,
            groups),
      front_(catalog, this, options.limits),
      charge_(host_pool(), options.user) {
  if (!options.user.empty()) back_.set_share(lanes.share(options.user, options.weight));
  back_.join_tiers(options.user);
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
  closing_ = true;
  back_.stop();
  std::vector<Ready> waiting;
  std::function<void(core::Result<engine::TakenOver>)> successor;
  Picture picture;
  {
    core::MutexLock lock(mu_);
    for (auto& [seq, download] : downloads_) {
      if (download.ready) waiting.push_back(std::move(download.ready));
    }
    downloads_.clear();
    uploads_.clear();
    shares_->clear();
    successor.swap(successor_);
    picture = std::exchange(pending_snapshot_, {});
  }
  if (picture.done) picture.done(Status(Code::kCancelled, "the session is closed"));
  if (successor) successor(Status(Code::kCancelled, "the session is closed"));
  for (Ready& ready : waiting) ready(Status(Code::kCancelled, "the session is closed"));
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
  while (!try_take_front()) std::this_thread::yield();
  engine::TakenOver taken;
  taken.inventory = front_.take_over();
  handles_ = front_.handles();
  taken.next_id = front_.next_id();
  const program::Amounts amounts = front_.amounts();
  give_front_back();
  Uploads uploads;
  std::map<std::uint64_t, Download> downloads;
  // A snapshot that the old client requested is cancelled: the session's state now belongs to the
  // new client.
  Picture picture;
  Status broken;
  {
    core::MutexLock lock(mu_);
    consuming_ = false;
    next_id_ = taken.next_id;
    taken.next_seq = next_seq_;
    abandoned_upto_ = next_seq_ - 1;
    back_.groups().take_over(abandoned_upto_);
    ++takeovers_;
    amounts_ = amounts;
    uploads.swap(uploads_);
    for (const auto& [number, upload] : uploads) staged_ -= upload->bytes;
    downloads.swap(downloads_);
    given_up_.clear();
    picture = std::exchange(pending_snapshot_, {});
    broken = broken_;
  }
  shares_->end_open();
  if (picture.done) picture.done(Status(Code::kCancelled, "the session was taken over"));
  for (auto& [seq, download] : downloads) {
    if (download.ready) download.ready(Status(Code::kAborted, "the session was taken over"));
  }
  forget_completed();
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

// ---------------------------------------------------------------- commands from the front end

Status Session::constant(std::uint64_t seq, program::Constant constant, program::ValueRef value) {
  if (devices_.find(constant.device) < 0) {
    return devices_.missing("constant", constant.device);
  }
  back_.queue().constant(seq, constant.shape, std::move(constant.bytes), std::move(value));
  return {};
}

void Session::fetch(std::uint64_t seq, bool bulk, program::Operand operand) {
  back_.queue().fetch(seq, bulk, std::move(operand));
}

runtime::FailureRef Session::refused(std::uint64_t seq, const Status& status) {
  return back_.queue().failed(seq, status,
                              core::make_ref<program::Value>(core::DType::kF32, core::Device{}, 0));
}

void Session::fetch_refused(std::uint64_t seq, bool bulk, const Status& status,
                            std::uint64_t root) {
  if (bulk) {
    runtime::FetchResult result;
    result.seq = seq;
    result.bulk = true;
    result.status = status;
    result.root = root;
    return on_fetched(std::move(result));
  }
  engine::Fetched fetched;
  fetched.seq = seq;
  fetched.status = status;
  fetched.root = root;
  fetched.description = engine::Fetched::Description{};  // not in its turn
  listener_->on_fetched(std::move(fetched));
}

void Session::described(std::uint64_t seq, const core::Layout& layout, bool requires_grad) {
  engine::Fetched fetched;
  fetched.seq = seq;
  fetched.dtype = layout.dtype;
  fetched.shape = layout.geometry.shape;
  fetched.description = engine::Fetched::Description{};
  fetched.description->device = layout.device;
  fetched.description->strides = layout.geometry.strides;
  fetched.description->requires_grad = requires_grad;
  listener_->on_fetched(std::move(fetched));
}

namespace {

constexpr char kNobody[] =
    "publish: needs an authenticated user: connect through the daemon's Unix socket or with a "
    "token";

}  // namespace

void Session::publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
                      program::ValueRef value) {
  runtime::Publications::Facts facts;
  facts.name = std::move(publish.name);
  facts.user = user_;
  facts.users = std::move(publish.users);
  facts.writable = publish.writable;
  facts.most = limits_.published;
  if (value) {
    facts.dtype = operand.dtype;
    facts.device = value->device;
    facts.shape = operand.geometry->shape;
  }
  back_.queue().publish_tensor(seq, std::move(facts), std::move(operand), std::move(value));
}

void Session::published(std::uint64_t seq, const program::Published& published,
                        program::ValueRef value) {
  auto storage =
      user_.empty()
          ? core::Result<core::Ref<memory::Storage>>(Status(Code::kPermissionDenied, kNobody))
          : publications_.take(published, user_);
  if (!storage.ok()) {
    (void)back_.queue().failed(seq, storage.status(), std::move(value));
    return;
  }
  back_.queue().uploaded(seq, std::move(*storage), std::move(value));
}

void Session::join(std::uint64_t seq, program::Join join) {
  runtime::Groups::Join wanted;
  wanted.user = user_;
  wanted.name = std::move(join.name);
  wanted.rank = join.rank;
  wanted.ranks = join.ranks;
  constexpr std::uint64_t kMaxMs = 1000ull * 3600 * 24 * 365;
  wanted.timeout = std::chrono::milliseconds(std::min(join.timeout_ms, kMaxMs));
  wanted.who = who();
  back_.queue().change_group(seq, join.group, std::move(wanted));
}

// Names the session in error messages on other ranks.
std::string Session::who() const {
  return name_.empty() ? "a session without a name" : "session \"" + name_ + "\"";
}

void Session::leave(std::uint64_t seq, std::uint64_t group) {
  back_.queue().change_group(seq, group, std::nullopt);
}

std::vector<std::uint64_t> Session::failed_rebinds(std::uint64_t root) {
  return back_.take_failed_rebinds(root);
}

void Session::raised(std::uint64_t seq, std::uint64_t root,
                     const std::vector<std::uint64_t>& rebinds) {
  listener_->on_raised({seq, root, rebinds});
}

// ---------------------------------------------------------------- events from the back end

void Session::on_completed(std::uint64_t seq) {
  forget_completed();
  refuse_downloads(seq);
  listener_->on_completed(seq);
}

bool Session::on_moving(std::unordered_set<const void*>& kept) {
  if (!try_take_front()) return false;
  front_.kept_contents(kept);
  give_front_back();
  forget_completed();
  return true;
}

void Session::on_failed(const program::Failure& root) {
  listener_->on_error({root.seq, root.status});
}

void Session::on_slow(std::uint64_t seq, program::OpId op, std::uint64_t ns) {
  listener_->on_slow(
      {seq, op == runtime::kNoOp ? "transfer" : std::string(catalog_.at(op).name), ns});
}

// ---------------------------------------------------------------- reports

std::vector<engine::Holding> Session::largest(std::size_t most) const {
  std::vector<engine::Holding> all;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    for (const auto& living : back_.executor().pool(i).largest(most)) {
      engine::Holding& held = all.emplace_back(
          engine::Holding{devices_.at(i).id(), living.bytes, living.seq, living.away, {}, {}});
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
  if (user_.empty()) return found;
  for (runtime::Publications::Facts& facts : publications_.find_all(name, user_)) {
    found.push_back(to_engine(std::move(facts)));
  }
  return found;
}

void Session::reset_peaks() {
  for (std::size_t i = 0; i < devices_.size(); ++i) back_.executor().pool(i).reset_peak();
}

program::Amounts Session::amounts() const {
  program::Amounts amounts;
  {
    core::MutexLock lock(mu_);
    amounts = amounts_;
    amounts.staged_bytes = staged_;
  }
  amounts.handles = handles();
  amounts.tape_bytes = bookkeeping_.load(std::memory_order_relaxed);
  amounts.published = publications_.count(owner_);
  amounts.plan_ms = planned_ms_.load(std::memory_order_relaxed);
  return amounts;
}

std::vector<engine::MemoryUse> Session::memory() const {
  std::vector<engine::MemoryUse> uses;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const memory::Account& account = back_.executor().pool(i).account();
    uses.push_back({devices_.at(i).id(), account.used(), account.peak(), account.quota(),
                    account.budget().used(), account.budget().total()});
    uses.back().away = back_.executor().pool(i).away();
    const auto share = back_.executor().pool(i).disk_share();
    if (!share) continue;
    uses.back().away = share->bytes;
    uses.back().disk_used = share->files.used();
    uses.back().disk_quota =
        share->files.user() != nullptr ? share->files.user()->limit() : share->files.quota();
  }
  return uses;
}

}  // namespace teletensor::session
