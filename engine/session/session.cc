#include "engine/session/session.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace teletensor::session {
namespace {

using core::Code;
using core::Status;

constexpr int kCommandsPerPublish = 64;
constexpr int kNodesPerResume = 16;

memory::Pool& host_pool(const runtime::Devices& devices, const runtime::Back& back) {
  return back.executor().pool(static_cast<std::size_t>(devices.find(core::Device{})));
}

}  // namespace

Session::Session(const ops::Catalog& catalog, runtime::Devices& devices, runtime::Lanes& lanes,
                 runtime::Publications& publications, memory::OwnerId owner,
                 const engine::SessionOptions& options, engine::SessionListener* listener,
                 runtime::Tiers* tiers)
    : catalog_(catalog),
      devices_(devices),
      lanes_(lanes),
      publications_(publications),
      user_(options.publishes ? options.user : ""),
      limits_(options.limits),
      owner_(owner),
      listener_(listener),
      back_(catalog, devices, lanes, owner, options.memory_quota, this, &publications, tiers),
      front_(catalog, this, options.limits) {
  if (!options.user.empty()) back_.set_share(lanes.share(options.user, options.weight));
  back_.join_tiers(options.user);
}

engine::Publication to_engine(runtime::Publications::Facts facts) {
  return {facts.id,    std::move(facts.name), std::move(facts.user), std::move(facts.users),
          facts.dtype, facts.device,          facts.shape,           facts.writable,
          facts.bytes};
}

Session::~Session() {
  closing_ = true;
  back_.stop();
  host_pool(devices_, back_).release(charged_);
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
    shares_.clear();
    successor.swap(successor_);
    picture = std::exchange(picture_, {});
  }
  if (picture.done) picture.done(Status(Code::kCancelled, "the session is closed"));
  if (successor) successor(Status(Code::kCancelled, "the session is closed"));
  for (Ready& ready : waiting) ready(Status(Code::kCancelled, "the session is closed"));
}

// ---------------------------------------------------------------- the pump

void Session::submit(std::uint64_t first_seq, std::uint64_t first_id,
                     std::vector<program::Command> commands, std::function<void(Status)> done) {
  Status refused;
  bool waits = false;
  {
    core::MutexLock lock(mu_);
    if (!broken_.ok()) {
      refused = broken_;
    } else if (pumping_ && !(still_ && !frame_.done)) {
      refused = Status(Code::kFailedPrecondition, "the frame before is still being consumed");
    } else if (first_seq != next_seq_) {
      refused = Status(Code::kFailedPrecondition, "frame starts with command " +
                                                      std::to_string(first_seq) + ", expected " +
                                                      std::to_string(next_seq_));
    } else if (first_id != next_id_) {
      refused =
          Status(Code::kFailedPrecondition, "frame starts with handle " + std::to_string(first_id) +
                                                ", expected " + std::to_string(next_id_));
    } else if (!commands.empty()) {
      pumping_ = true;
      next_seq_ += commands.size();
      accepted_upto_ = next_seq_ - 1;
      back_.profile().arrived(first_seq, commands.size());
      frame_ = {first_seq, std::move(commands), 0, std::exchange(done, nullptr)};
      waits = still_;
    }
  }
  if (done) return done(std::move(refused));
  if (!waits) pump();
}

void Session::pump() {
  while (!try_take_front()) std::this_thread::yield();  // somebody tells the front of progress
  pump_frame();
}

// The front is taken; this thread is the pump until it gives it back. Once the back has been asked
// to call on_continue(), another thread takes over: then only that is left to do.
void Session::pump_frame() {
  int unpublished = 0;
  while (frame_.position < frame_.commands.size()) {
    if (closing_) return give_front_back();
    const bool raise =
        !front_.busy() && std::holds_alternative<program::Raise>(frame_.commands[frame_.position]);
    const bool charged =
        within_limits() && ((unpublished > 0 && !back_.refusing()) || charge_bookkeeping());
    const bool drain = raise || (!charged && !back_.refusing());  // the queue costs, too
    if (drain || back_.full()) {
      back_.publish(frame_.consumed());
      unpublished = 0;
      if (drain ? back_.wait_until_drained() : back_.wait_for_room()) return give_front_back();
    }
    if (!charged || back_.refusing()) {
      if (Status status = refuse_or_resume(); !status.ok()) return finish_frame(std::move(status));
    }
    if (Status status = pump_one(); !status.ok()) {
      back_.publish(frame_.consumed());
      return finish_frame(std::move(status));
    }
    if (++unpublished >= kCommandsPerPublish) {
      back_.publish(frame_.consumed());
      unpublished = 0;
    }
  }
  back_.publish(frame_.consumed(), true);
  finish_frame({});
}

void Session::give_front_back() {
  // A read-modify-write: whoever found the front taken before it has published its progress to us.
  front_taken_.exchange(false, std::memory_order_acq_rel);
}

// Values that a Raise could have brought back are held until then: also in a session that sends
// nothing any more.
void Session::forget_completed() {
  while (true) {
    const std::uint64_t completed = back_.completed_upto();
    if (completed <= forgotten_ || back_.open_failures() > 0 || !try_take_front()) return;
    forget_upto(completed);
    give_front_back();
  }
}

void Session::forget_upto(std::uint64_t completed) {
  front_.completed(completed);
  forgotten_ = completed;
  (void)charge_bookkeeping();  // it shrinks
}

bool Session::charge_bookkeeping() {
  const std::uint64_t used = bookkeeping();
  bookkeeping_.store(used, std::memory_order_relaxed);
  std::uint64_t due = used - std::min(used, kFreeBookkeeping);
  due = (due + kBookkeepingStep - 1) / kBookkeepingStep * kBookkeepingStep;
  if (due == charged_) return true;
  memory::Pool& pool = host_pool(devices_, back_);
  if (due < charged_) {
    pool.release(charged_ - due);
  } else if (!pool.reserve(due - charged_)) {
    return false;
  }
  charged_ = due;
  return true;
}

namespace {

bool makes_names(const program::Command& command) {
  if (const auto* apply = std::get_if<program::Apply>(&command)) return !apply->inplace;
  if (const auto* call = std::get_if<program::Call>(&command)) return call->made > 0;
  if (const auto* backward = std::get_if<program::Backward>(&command)) return backward->made > 0;
  return std::holds_alternative<program::Constant>(command) ||
         std::holds_alternative<program::Uploaded>(command) ||
         std::holds_alternative<program::Saved>(command) ||
         std::holds_alternative<program::Published>(command);
}

}  // namespace

bool Session::handles_fit() const {
  const std::uint64_t limit = limits_.handles, used = front_.handles();
  if (limit == 0 || used < limit) return true;
  return used == limit && (front_.busy() || !makes_names(frame_.commands[frame_.position]));
}

std::string Session::names_and_tape() const {
  return "names and tape (" + std::to_string(front_.handles()) + " tensors, " +
         std::to_string(front_.tape_nodes()) + " recorded operations)";
}

Status Session::beyond_limits() const {
  if (!handles_fit()) {
    return program::over_limit("tensors", &program::Amounts::handles, front_.handles(), 1,
                               limits_.handles, "delete some");
  }
  return program::over_limit(names_and_tape(), &program::Amounts::tape_bytes, bookkeeping(), 0,
                             limits_.tape_bytes,
                             "delete tensors, or call backward() or detach() on what is recorded");
}

// Nothing is queued, or entries are refused already.
Status Session::refuse_or_resume() {
  if (back_.open_failures() == 0) forget_upto(back_.completed_upto());
  if (!within_limits()) {
    const std::uint64_t handles = limits_.handles, tape = limits_.tape_bytes;
    if ((handles != 0 && front_.handles() > handles + kMostExcess) ||
        (tape != 0 && bookkeeping() > tape + kMostUnpaid)) {
      return beyond_limits();
    }
    if (!back_.refusing()) back_.refuse(beyond_limits());
    return {};
  }
  if (charge_bookkeeping()) {
    if (back_.refusing()) back_.refuse({});
    return {};
  }
  const std::uint64_t due = bookkeeping() - kFreeBookkeeping - charged_;
  if (back_.refusing() && due <= kMostUnpaid) return {};
  Status status =
      host_pool(devices_, back_).refusal(names_and_tape(), std::max(due, kBookkeepingStep));
  if (due > kMostUnpaid) return status;
  back_.refuse(std::move(status));
  return {};
}

Status Session::pump_one() {
  Status status;
  try {
    if (front_.busy()) {
      status = front_.resume(kNodesPerResume);
    } else {
      status = front_.execute(frame_.consumed() + 1, std::move(frame_.commands[frame_.position]));
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "the daemon is out of memory for a session's names");
  }
  if (status.ok() && !front_.busy()) ++frame_.position;
  return status;
}

void Session::finish_frame(Status status) {
  const std::size_t failures = back_.open_failures();
  if (status.ok() && (failures > kMostFailures ||
                      (failures > 0 && frame_.consumed() - forgotten_ > kMostCommandsKept))) {
    status = Status(Code::kResourceExhausted, "too many errors that the client did not raise");
  }
  (void)charge_bookkeeping();
  handles_ = front_.handles();
  const std::uint64_t next_id = front_.next_id();
  const program::Amounts amounts = front_.amounts();
  const auto done = std::move(frame_.done);
  frame_ = {};
  give_front_back();
  {
    core::MutexLock lock(mu_);
    pumping_ = false;
    next_id_ = next_id;
    amounts_ = amounts;
    if (!status.ok()) broken_ = status;
  }
  forget_completed();
  done(std::move(status));
  hand_over();
  stand_still();
}

void Session::take_over(std::function<void(core::Result<engine::TakenOver>)> done) {
  {
    core::MutexLock lock(mu_);
    if (broken_.ok() && !successor_) std::swap(successor_, done);
  }
  if (done) return done(Status(Code::kFailedPrecondition, "the session cannot be taken over now"));
  hand_over();
}

void Session::hand_over() {
  std::function<void(core::Result<engine::TakenOver>)> done;
  {
    core::MutexLock lock(mu_);
    if (pumping_ || !successor_) return;
    pumping_ = true;
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
  Status broken;
  {
    core::MutexLock lock(mu_);
    pumping_ = false;
    next_id_ = taken.next_id;
    taken.next_seq = next_seq_;
    forsaken_upto_ = next_seq_ - 1;
    amounts_ = amounts;
    uploads.swap(uploads_);
    for (const auto& [number, upload] : uploads) staged_ -= upload->bytes;
    downloads.swap(downloads_);
    given_up_.clear();
    broken = broken_;
  }
  for (auto& [seq, download] : downloads) {
    if (download.ready) download.ready(Status(Code::kAborted, "the session was taken over"));
  }
  forget_completed();
  if (broken.ok()) {
    done(std::move(taken));
  } else {
    done(std::move(broken));
  }
  stand_still();
}

void Session::interrupt(std::uint64_t upto) {
  back_.cancel_upto(upto != 0 ? upto : accepted_upto_.load());
}

// ---------------------------------------------------------------- what the front asks for

Status Session::constant(std::uint64_t seq, program::Constant constant, program::ValueRef value) {
  if (devices_.find(constant.device) < 0) {
    return core::invalid("constant: this daemon has no " + core::to_string(constant.device));
  }
  back_.constant(seq, std::move(constant.bytes), std::move(value));
  return {};
}

Status Session::uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                         program::ValueRef value) {
  std::shared_ptr<Upload> upload = find_upload(uploaded.upload);
  const std::string name = "upload " + std::to_string(uploaded.upload);
  if (!upload) return Status(Code::kNotFound, name + " is unknown");
  core::Ref<memory::Storage> storage;
  {
    core::MutexLock lock(upload->mu);
    if (!upload->finished) return Status(Code::kFailedPrecondition, name + " is not finished");
    if (upload->received != runtime::bytes_of(value->elements, uploaded.dtype) ||
        !(upload->storage->device() == uploaded.device)) {
      return core::invalid(name + " has " + std::to_string(upload->received) + " bytes on " +
                           core::to_string(upload->storage->device()) + ", not a tensor " +
                           core::to_string(uploaded.shape) + " on " +
                           core::to_string(uploaded.device));
    }
    storage = std::move(upload->storage);
  }
  {
    core::MutexLock lock(mu_);
    if (uploads_.erase(uploaded.upload) != 0) staged_ -= upload->bytes;
  }
  back_.uploaded(seq, std::move(storage), std::move(value));
  return {};
}

void Session::fetch(std::uint64_t seq, bool bulk, program::Operand operand) {
  back_.fetch(seq, bulk, std::move(operand));
}

void Session::taken(std::uint64_t fetch) {
  {
    core::MutexLock lock(mu_);
    if (!downloads_.contains(fetch) && fetch > back_.completed_upto() && fetch <= accepted_upto_) {
      std::erase_if(given_up_, [&](std::uint64_t seq) { return seq <= back_.completed_upto(); });
      given_up_.insert(fetch);
      return;
    }
  }
  end_download(fetch);
}

namespace {

constexpr char kNobody[] =
    "publish: needs to know who you are; use the daemon's socket, or a token";

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
  back_.publish_tensor(seq, std::move(facts), std::move(operand), std::move(value));
}

void Session::published(std::uint64_t seq, const program::Published& published,
                        program::ValueRef value) {
  auto storage =
      user_.empty()
          ? core::Result<core::Ref<memory::Storage>>(Status(Code::kPermissionDenied, kNobody))
          : publications_.take(published, user_);
  if (!storage.ok()) return back_.failed(seq, storage.status(), std::move(value));
  back_.uploaded(seq, std::move(*storage), std::move(value));
}

Status Session::call(std::uint64_t seq, program::Invocation invocation) {
  for (const program::Literal& literal : invocation.program->literals) {
    const core::Device device = invocation.program->values[literal.value].device;
    if (devices_.find(device) < 0) {
      return core::invalid("call: this daemon has no " + core::to_string(device));
    }
  }
  back_.call(seq, std::move(invocation));
  return {};
}

std::vector<std::uint64_t> Session::failed_rebinds(std::uint64_t root) {
  return back_.take_failed_rebinds(root);
}

void Session::raised(std::uint64_t seq, std::uint64_t root,
                     const std::vector<std::uint64_t>& rebinds) {
  listener_->on_raised({seq, root, rebinds});
}

// ---------------------------------------------------------------- what the back tells

void Session::on_completed(std::uint64_t seq) {
  forget_completed();
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

namespace {

engine::Fetched description(const runtime::FetchResult& result) {
  engine::Fetched fetched;
  fetched.seq = result.seq;
  fetched.status = result.status;
  fetched.root = result.root;
  fetched.dtype = result.dtype;
  fetched.shape = result.shape;
  return fetched;
}

}  // namespace

void Session::on_fetched(runtime::FetchResult result) {
  {
    core::MutexLock lock(mu_);
    if (result.seq <= forsaken_upto_) return;
  }
  engine::Fetched fetched = description(result);
  if (!result.bulk) {
    if (fetched.status.ok()) {
      const runtime::Executor::RowMajor& contents = result.contents;
      runtime::Device& device = devices_.at(static_cast<std::size_t>(devices_.find(result.device)));
      fetched.bytes.resize(contents.bytes);
      fetched.status = device.backend().copy_out(
          fetched.bytes.data(),
          static_cast<const char*>(contents.storage->data()) + contents.offset, contents.bytes);
    }
    result.contents.storage = nullptr;
    listener_->on_fetched(std::move(fetched));
    return;
  }
  Ready ready;
  {
    core::MutexLock lock(mu_);
    if (given_up_.erase(result.seq) != 0) return;
    Download& download = downloads_[result.seq];
    if (downloads_.size() > kMostDownloads && !download.ready) {
      result.contents.storage = nullptr;
      fetched.status = result.status =
          Status(Code::kResourceExhausted, "fetch: too many values wait for their download");
      result.root = fetched.root = result.seq;
    }
    download.bound = true;
    download.result = std::move(result);
    ready = std::exchange(download.ready, nullptr);
  }
  if (ready) ready(std::move(fetched));
}

// ---------------------------------------------------------------- bulk

core::Result<memory::Pool*> Session::upload_pool(core::Device device) {
  const int found = devices_.find(device);
  if (found < 0) return core::invalid("upload: this daemon has no " + core::to_string(device));
  core::MutexLock lock(mu_);
  if (!broken_.ok()) return broken_;
  if (uploads_.size() >= kMostUploads) {
    return Status(Code::kResourceExhausted, "upload: " + std::to_string(kMostUploads) +
                                                " uploads are unfinished or unbound already");
  }
  return &back_.executor().pool(static_cast<std::size_t>(found));
}

Status Session::stage(std::uint64_t bytes) {
  core::MutexLock lock(mu_);
  const std::uint64_t limit = limits_.staged_bytes;
  if (limit != 0 && (bytes > limit || staged_ > limit - bytes)) {
    return program::over_limit("upload", &program::Amounts::staged_bytes, staged_, bytes, limit,
                               "upload less at a time, with a synchronize() in between");
  }
  staged_ += bytes;
  return {};
}

void Session::unstage(std::uint64_t bytes) {
  core::MutexLock lock(mu_);
  staged_ -= bytes;
}

std::uint64_t Session::add_upload(core::Ref<memory::Storage> storage, std::uint64_t bytes) {
  auto upload = std::make_shared<Upload>();
  upload->bytes = bytes;
  {
    core::MutexLock lock(upload->mu);
    upload->storage = std::move(storage);
  }
  core::MutexLock lock(mu_);
  uploads_[next_upload_] = std::move(upload);
  return next_upload_++;
}

core::Result<std::uint64_t> Session::begin_upload(core::Device device, std::uint64_t bytes) {
  const core::Result<memory::Pool*> pool = upload_pool(device);
  if (!pool.ok()) return pool.status();
  TT_RETURN_IF_ERROR(stage(bytes));
  return begin_staged(**pool, bytes);
}

core::Result<std::uint64_t> Session::begin_staged(memory::Pool& pool, std::uint64_t bytes) {
  core::Ref<memory::Storage> storage = pool.allocate_shared(bytes, accepted_upto_ + 1);
  Status status;
  if (!storage) {
    status = pool.refusal("upload", bytes);
  } else if (auto* const accelerator =
                 devices_.at(static_cast<std::size_t>(devices_.find(pool.device_id())))
                     .accelerator()) {
    // The memory may be what the session has just freed.
    status = accelerator->begin_beside(storage->owner());
  }
  if (status.ok()) return add_upload(std::move(storage), bytes);
  unstage(bytes);
  return status;
}

void Session::admit_upload(core::Device device, std::uint64_t bytes,
                           std::function<void(core::Result<std::uint64_t>)> done) {
  const core::Result<memory::Pool*> pool = upload_pool(device);
  if (!pool.ok()) return done(pool.status());
  if (Status status = stage(bytes); !status.ok()) return done(std::move(status));
  if (!(device == core::Device{})) return done(begin_staged(**pool, bytes));
  back_.allocate(bytes, accepted_upto_ + 1,
                 [this, bytes, pool = *pool, done](core::Ref<memory::Storage> storage) {
                   if (storage) return done(add_upload(std::move(storage), bytes));
                   unstage(bytes);
                   done(pool->refusal("upload", bytes));
                 });
}

std::shared_ptr<Session::Upload> Session::find_upload(std::uint64_t id) const {
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  return found == uploads_.end() ? nullptr : found->second;
}

Status Session::upload_chunk(std::uint64_t id, std::uint64_t offset, std::string_view bytes) {
  const std::shared_ptr<Upload> upload = find_upload(id);
  const std::string name = "upload " + std::to_string(id);
  if (!upload) return Status(Code::kNotFound, name + " is unknown");
  core::MutexLock lock(upload->mu);
  if (!upload->storage || upload->finished) {
    return Status(Code::kFailedPrecondition, name + " is finished");
  }
  if (offset != upload->received) {
    return Status(Code::kOutOfRange, name + ": chunk at " + std::to_string(offset) + ", expected " +
                                         std::to_string(upload->received));
  }
  if (bytes.size() > upload->storage->bytes() - offset) {
    return Status(Code::kOutOfRange, name + ": more than the declared " +
                                         std::to_string(upload->storage->bytes()) + " bytes");
  }
  runtime::Device& device =
      devices_.at(static_cast<std::size_t>(devices_.find(upload->storage->device())));
  const memory::OnBehalf behalf(upload->storage->owner(), true);
  TT_RETURN_IF_ERROR(device.backend().copy_in(static_cast<char*>(upload->storage->data()) + offset,
                                              bytes.data(), bytes.size()));
  upload->received += bytes.size();
  return {};
}

Status Session::finish_upload(std::uint64_t id) {
  const std::shared_ptr<Upload> upload = find_upload(id);
  const std::string name = "upload " + std::to_string(id);
  if (!upload) return Status(Code::kNotFound, name + " is unknown");
  core::MutexLock lock(upload->mu);
  if (!upload->storage) return Status(Code::kFailedPrecondition, name + " is bound already");
  if (upload->received != upload->storage->bytes()) {
    return core::invalid(name + ": " + std::to_string(upload->received) + " of the declared " +
                         std::to_string(upload->storage->bytes()) + " bytes came");
  }
  upload->finished = true;
  return {};
}

void Session::abort_upload(std::uint64_t id) {
  std::shared_ptr<Upload> upload;
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  if (found == uploads_.end()) return;
  upload = std::move(found->second);
  staged_ -= upload->bytes;
  uploads_.erase(found);
}

void Session::begin_download(std::uint64_t seq, Ready ready) {
  const std::uint64_t completed = completed_upto();  // before the look into the map
  Status refused;
  engine::Fetched fetched;
  {
    core::MutexLock lock(mu_);
    auto found = downloads_.find(seq);
    if (found == downloads_.end()) {
      if (seq <= completed) {
        refused = Status(Code::kNotFound,
                         "download: command " + std::to_string(seq) + " was no bulk fetch");
      } else if (downloads_.size() >= kMostDownloads) {
        refused = Status(Code::kResourceExhausted, "download: too many are waiting");
      } else {
        downloads_[seq].ready = std::move(ready);
        return;
      }
    } else if (!found->second.bound) {
      std::swap(found->second.ready, ready);
      refused = Status(Code::kCancelled, "another download has taken the place of this one");
    } else {
      fetched = description(found->second.result);
    }
  }
  if (!refused.ok()) return ready(std::move(refused));
  ready(std::move(fetched));
}

core::Result<runtime::FetchResult> Session::find_download(std::uint64_t seq) const {
  core::MutexLock lock(mu_);
  const auto found = downloads_.find(seq);
  if (found == downloads_.end() || !found->second.bound) {
    return Status(Code::kNotFound, "download: nothing is bound to command " + std::to_string(seq));
  }
  TT_RETURN_IF_ERROR(found->second.result.status);
  return found->second.result;
}

core::Result<engine::Shared> Session::share_download(std::uint64_t seq) {
  core::Result<runtime::FetchResult> found = find_download(seq);
  if (!found.ok()) return found.status();
  memory::Pool& pool =
      back_.executor().pool(static_cast<std::size_t>(devices_.find(found->device)));
  return shares_.add(pool, found->contents.storage, found->contents.offset, found->contents.bytes);
}

core::Result<engine::Shared> Session::share_new(std::uint64_t bytes) {
  return shares_.open(host_pool(devices_, back_), bytes, accepted_upto_ + 1);
}

Status Session::upload_shared(std::uint64_t upload, std::uint64_t offset, std::uint64_t share,
                              std::uint64_t from, std::uint64_t bytes) {
  const core::Ref<memory::Storage> memory = shares_.opened(share);
  if (!memory) return Status(Code::kNotFound, "upload: there is no such shared memory");
  if (from > memory->bytes() || bytes > memory->bytes() - from) {
    return Status(Code::kOutOfRange, "upload: outside of the shared memory");
  }
  // Somebody may write there meanwhile: it is read once, and what was read is what counts.
  return upload_chunk(upload, offset, {static_cast<const char*>(memory->data()) + from, bytes});
}

core::Result<std::string> Session::download_chunk(std::uint64_t seq, std::uint64_t offset,
                                                  std::uint64_t bytes) {
  const core::Result<runtime::FetchResult> found = find_download(seq);
  if (!found.ok()) return found.status();
  const runtime::Executor::RowMajor& contents = found->contents;
  if (offset > contents.bytes) {
    return Status(Code::kOutOfRange, "download: offset " + std::to_string(offset) + " of " +
                                         std::to_string(contents.bytes) + " bytes");
  }
  std::string chunk(std::min<std::uint64_t>(bytes, contents.bytes - offset), '\0');
  const memory::OnBehalf behalf(contents.storage->owner());
  runtime::Device& device = devices_.at(static_cast<std::size_t>(devices_.find(found->device)));
  TT_RETURN_IF_ERROR(device.backend().copy_out(
      chunk.data(), static_cast<const char*>(contents.storage->data()) + contents.offset + offset,
      chunk.size()));
  return chunk;
}

void Session::end_download(std::uint64_t seq) {
  Download ended;
  Ready ready;
  {
    core::MutexLock lock(mu_);
    const auto found = downloads_.find(seq);
    if (found == downloads_.end()) return;
    ended = std::move(found->second);
    downloads_.erase(found);
    ready = std::move(ended.ready);
  }
  if (ready) ready(Status(Code::kCancelled, "the download was ended"));
}

std::vector<engine::Holding> Session::largest(std::size_t most) const {
  std::vector<engine::Holding> all;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    for (const auto& living : back_.executor().pool(i).largest(most)) {
      all.push_back({devices_.at(i).id(), living.bytes, living.seq, living.away});
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
  return amounts;
}

std::vector<engine::MemoryUse> Session::memory() const {
  std::vector<engine::MemoryUse> uses;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const memory::Account& account = back_.executor().pool(i).account();
    uses.push_back({devices_.at(i).id(), account.used(), account.peak(), account.quota(),
                    account.budget().used(), account.budget().total()});
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
