// Session's snapshots: taking an image at a moment when nothing runs, and restoring a session from
// an image.
#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "engine/autograd/image.h"
#include "engine/core/with_memory.h"
#include "engine/session/session.h"

namespace teletensor::session {

using core::Code;
using core::Status;
using program::Image;

namespace {

// Removes lost storages (`why` has one status for each storage; an error means lost) from the
// image. Values in them become failed values with that error.
void drop_lost(Image& image, const std::vector<Status>& why) {
  std::vector<Image::Index> place(image.storages.size(), Image::kNone), failure = place;
  std::vector<Image::Storage> kept;
  for (std::size_t i = 0; i < image.storages.size(); ++i) {
    const Image::Storage& storage = image.storages[i];
    if (why[i].ok()) {
      place[i] = static_cast<Image::Index>(kept.size());
      kept.push_back(storage);
    } else {
      failure[i] = static_cast<Image::Index>(image.failures.size());
      image.failures.push_back({storage.seq, why[i]});
    }
  }
  if (kept.size() == image.storages.size()) return;
  for (Image::Value& value : image.values) {
    if (value.storage >= place.size()) continue;
    if (value.failure == Image::kNone) value.failure = failure[value.storage];
    value.storage = place[value.storage];
  }
  for (Image::Download& download : image.downloads) {
    if (download.storage >= place.size()) continue;
    if (const Image::Index lost = failure[download.storage]; lost != Image::kNone) {
      download.status = image.failures[lost].status;
      download.root = image.failures[lost].seq;
    }
    download.storage = place[download.storage];
  }
  for (Image::Upload& upload : image.uploads) {
    if (upload.storage < place.size()) upload.storage = place[upload.storage];
  }
  std::erase_if(image.uploads,
                [](const Image::Upload& upload) { return upload.storage == Image::kNone; });
  image.storages = std::move(kept);
}

// The health of each storage's device. Storages that were moved away from a device outlive it.
std::vector<Status> health_of(const Image& image, const runtime::Devices& devices) {
  std::vector<Status> health;
  for (const Image::Storage& storage : image.storages) {
    const int device = devices.find(storage.device);
    const bool away = static_cast<const memory::Storage&>(*storage.contents).away();
    health.push_back(device < 0 || away
                         ? Status()
                         : devices.at(static_cast<std::size_t>(device)).backend().health());
  }
  return health;
}

// Records for reports the dtype and shape of the tensors that fill a whole storage.
void describe(const Image& image) {
  for (const Image::Handle& handle : image.handles) {
    if (handle.cell >= image.clocks.size()) continue;
    const Image::Index value = image.clocks[handle.cell].value;
    if (value >= image.values.size()) continue;
    const Image::Index storage = image.values[value].storage;
    if (storage >= image.storages.size() || !image.storages[storage].contents) continue;
    auto& contents = static_cast<memory::Storage&>(*image.storages[storage].contents);
    const auto& [dtype, device, geometry] = handle.layout;
    if (runtime::bytes_of(geometry.numel(), dtype) == contents.bytes()) {
      contents.described().set(dtype, geometry.shape);
    }
  }
}

// Sorts the storages of tensors that are kept by name to the front, in case there is not enough
// time for all.
void put_kept_first(Image& image) {
  std::vector<bool> first(image.storages.size(), false);
  for (const auto& [name, handle] : image.kept) {
    for (Image::Index h = handle; h != Image::kNone; h = image.handles[h].grad) {
      const Image::Index value = image.clocks[image.handles[h].cell].value;
      if (value == Image::kNone || image.values[value].storage == Image::kNone) break;
      if (first[image.values[value].storage]) break;
      first[image.values[value].storage] = true;
    }
  }
  std::vector<Image::Index> place(image.storages.size());
  std::vector<Image::Storage> sorted;
  for (const bool now : {true, false}) {
    for (std::size_t i = 0; i < place.size(); ++i) {
      if (first[i] != now) continue;
      place[i] = static_cast<Image::Index>(sorted.size());
      sorted.push_back(std::move(image.storages[i]));
    }
  }
  const auto move = [&](auto& items) {
    for (auto& item : items) {
      if (item.storage != Image::kNone) item.storage = place[item.storage];
    }
  };
  move(image.values);
  move(image.downloads);
  move(image.uploads);
  image.storages = std::move(sorted);
}

Status in_a_group() {
  return Status(Code::kFailedPrecondition,
                "the session has a process group, whose other ranks would wait for it: end the "
                "group first (destroy_process_group)");
}

// While it exists, only the devices' memory limits the session, not its quotas.
class Exempt {
 public:
  Exempt(const runtime::Executor& executor, std::size_t devices)
      : executor_(executor), devices_(devices) {
    set(true);
  }
  ~Exempt() { set(false); }
  Exempt(const Exempt&) = delete;
  Exempt& operator=(const Exempt&) = delete;

 private:
  void set(bool exempt) {
    for (std::size_t i = 0; i < devices_; ++i) executor_.pool(i).exempt(exempt);
  }
  const runtime::Executor& executor_;
  const std::size_t devices_;
};

}  // namespace

void Session::snapshot(bool hold, std::function<void(core::Result<Image>)> done) {
  picture(hold ? After::kHold : After::kGoOn, std::move(done));
}

void Session::rest(std::function<void(core::Result<Image>)> done) {
  if (back_.groups().any()) return done(in_a_group());
  picture(After::kRest, std::move(done));
}

void Session::resume() {
  back_.begin_restored();
  {
    core::MutexLock lock(mu_);
    if (!std::exchange(resting_, false)) return;
  }
  go_on();
}

void Session::picture(After after, std::function<void(core::Result<Image>)> done) {
  Status refused;
  {
    core::MutexLock lock(mu_);
    if (!broken_.ok()) {
      refused = broken_;
    } else if (pending_snapshot_.done || still_) {
      refused = Status(Code::kAborted, "another snapshot of the session is in progress");
    } else {
      pending_snapshot_ = {std::move(done), after, 0};
    }
  }
  if (!refused.ok()) return done(std::move(refused));
  if (after == After::kHold && back_.groups().any()) {
    stops_ = true;
    return;
  }
  if (after == After::kHold) back_.groups().shut_down();
  pause_for_snapshot();
}

engine::Rest Session::come_to_rest(bool push) {
  if (!stops_ && !back_.groups().any()) return engine::Rest::kApart;
  {
    core::MutexLock lock(mu_);
    if (!broken_.ok() || (stops_ && (!pending_snapshot_.done || still_)))
      return engine::Rest::kApart;
    if (!stops_ || (consuming_ && !paused_)) return engine::Rest::kRuns;
  }
  if (!back_.is_quiet()) return engine::Rest::kRuns;
  if (back_.groups().wanted() || (push && back_.groups().busy())) {
    bool goes = false;
    {
      core::MutexLock lock(mu_);
      may_go_ = true;
      goes = std::exchange(paused_, false);
    }
    if (!goes) return engine::Rest::kExpects;
    pump();
    return engine::Rest::kRuns;
  }
  return back_.is_drained() ? engine::Rest::kRests : engine::Rest::kWaits;
}

engine::Rest Session::stop_here() {
  if (!stops_ && !back_.groups().any()) return engine::Rest::kApart;
  {
    core::MutexLock lock(mu_);
    if (!broken_.ok() || (stops_ && (!pending_snapshot_.done || still_)))
      return engine::Rest::kApart;
    may_go_ = false;
    const bool stopped = paused_ || (blocked_ && back_.has_waiter());
    if (!stops_ || (consuming_ && !stopped)) return engine::Rest::kRuns;
  }
  if (!back_.is_quiet()) return engine::Rest::kRuns;
  return back_.is_drained() ? engine::Rest::kRests : engine::Rest::kWaits;
}

bool Session::may_stay() {
  const Status status = core::with_memory("a snapshot", [&] {
    runtime::Back::NotRun parts;
    return back_.entries(nullptr, parts).status();
  });
  return status.ok();
}

void Session::stay_at_rest() {
  {
    core::MutexLock lock(mu_);
    const bool stopped = paused_ || blocked_;
    if (!stops_ || !pending_snapshot_.done || still_ || (consuming_ && !stopped)) return;
    pending_snapshot_.next_seq = consuming_ ? frame_.consumed() + 1 : next_seq_;
    consuming_ = still_ = true;
  }
  take_image();
}

void Session::pause_for_snapshot() {
  {
    core::MutexLock lock(mu_);
    if (consuming_ || !pending_snapshot_.done || stops_) return;
    consuming_ = still_ = true;
    pending_snapshot_.next_seq = next_seq_;
  }
  if (!back_.wait_until_drained()) take_image();
}

void Session::on_continue() {
  bool still = false;
  {
    core::MutexLock lock(mu_);
    still = still_;
  }
  if (still) {
    take_image();
  } else {
    pump();
  }
}

// Precondition: everything has run, or waits for groups that do not change any more, and no other
// thread consumes commands.
void Session::take_image() noexcept {
  if (closing_) return;
  while (!try_take_front()) std::this_thread::yield();
  core::Result<Image> image = core::with_memory("a snapshot", [&] { return make_image(); });
  give_front_back();
  Picture picture;
  {
    core::MutexLock lock(mu_);
    picture.done = std::exchange(pending_snapshot_.done, nullptr);
    picture.after = pending_snapshot_.after;
    if (picture.after == After::kRest) {
      if (image.ok() && back_.groups().any()) image = in_a_group();  // a group was joined meanwhile
      resting_ = image.ok();
      if (!resting_) picture.after = After::kGoOn;
    }
  }
  picture.done(std::move(image));
  if (picture.after == After::kGoOn) go_on();
}

// Ends a pause after a snapshot.
void Session::go_on() {
  bool waiting = false;
  {
    core::MutexLock lock(mu_);
    still_ = false;
    waiting = consuming_ = frame_.done != nullptr;
  }
  if (waiting) return pump();
  forget_completed();
  give_to_successor();
}

// Precondition: this thread owns the front end.
core::Result<Image> Session::make_image() {
  if (back_.failures().open() == 0) forget_upto(back_.completed_upto());
  Image image;
  autograd::ImageIndexer maker(image);
  front_.take_image(maker, image);
  image.owner = owner_;
  image.cancelled_below = back_.cancelled_below();
  image.failed = back_.failures().all();
  if (stops_) image.groups = back_.groups().images();
  runtime::Back::NotRun parts;
  if (!back_.is_drained()) {
    auto entries =
        back_.entries([&](const program::Value& value) { return maker.value(&value); }, parts);
    if (!entries.ok()) return entries.status();
    image.entries = std::move(*entries);
    for (const auto& call : parts.calls) {
      for (const auto& [outcome, value] : call->same) {
        const Image::Index to = maker.value(outcome.get()), from = maker.value(value.get());
        image.values[to].storage = image.values[from].storage;
      }
    }
  }
  {
    core::MutexLock lock(mu_);
    image.next_seq = pending_snapshot_.next_seq;
    image.next_upload = next_upload_;
    image.forsaken_upto = abandoned_upto_;
    image.given_up.assign(given_up_.begin(), given_up_.end());
    for (const auto& [number, upload] : uploads_) {
      core::MutexLock inner(upload->mu);
      if (!upload->finished || !upload->storage) continue;
      image.uploads.push_back({number, maker.storage(upload->storage, upload->storage->device())});
    }
    for (const auto& [seq, download] : downloads_) {
      if (!download.bound) continue;
      const runtime::FetchResult& result = download.result;
      Image::Download item{seq,
                           result.root,
                           result.status,
                           result.dtype,
                           result.device,
                           result.shape,
                           Image::kNone,
                           0,
                           0};
      if (result.status.ok()) {
        item.storage = maker.storage(result.contents.storage.ref(), result.device);
        item.offset = result.contents.offset;
        item.bytes = result.contents.bytes;
      }
      image.downloads.push_back(std::move(item));
    }
  }
  for (Image::Storage& storage : image.storages) {
    const auto& contents = static_cast<const memory::Storage&>(*storage.contents);
    storage.bytes = contents.bytes();
    storage.seq = contents.seq();
    if (const memory::Sharing* sharing = contents.sharing()) storage.common = sharing->order;
  }
  drop_lost(image, health_of(image, devices_));
  put_kept_first(image);
  return image;
}

Status Session::restore_contents(Image image, const engine::Engine::ReadBytes& read,
                                 const RestoredStorages& restored) {
  const Exempt exempt(back_.executor(), devices_.size());
  // The storages of unbound uploads and of downloads stay in memory.
  std::set<const Image::Storage*> stays;
  for (const Image::Upload& item : image.uploads) {
    if (item.storage < image.storages.size()) stays.insert(&image.storages[item.storage]);
  }
  for (const Image::Download& item : image.downloads) {
    if (item.storage < image.storages.size()) stays.insert(&image.storages[item.storage]);
  }
  std::vector<Status> lost;
  for (Image::Storage& storage : image.storages) {
    Status& gone = lost.emplace_back();
    if (storage.common != 0) {
      if (auto found = restored.find(storage); found.ok()) {
        storage.contents = std::move(*found);
      } else {
        gone = found.status();
      }
      continue;
    }
    const int found = devices_.find(storage.device);
    if (found < 0) {
      return Status(Code::kFailedPrecondition, "the session has tensors on " +
                                                   core::to_string(storage.device) +
                                                   ", which this daemon does not have");
    }
    const auto device = static_cast<std::size_t>(found);
    memory::Pool& pool = back_.executor().pool(device);
    const core::Ref<memory::Storage> made = back_.allocate_now(device, storage.bytes, storage.seq);
    if (!made) return pool.refusal("restoring the session", storage.bytes);
    TT_RETURN_IF_ERROR(read_into(*made, devices_.at(device), read, gone));
    if (gone.ok()) storage.contents = made;
    if (!gone.ok() || !stays.contains(&storage)) made->unpin();
  }
  drop_lost(image, lost);
  auto values = autograd::values_of(image);
  if (!values.ok()) return values.status();
  while (!try_take_front()) std::this_thread::yield();
  Status status = front_.restore_image(image, *values);
  handles_ = front_.handles();
  const program::Amounts amounts = front_.amounts();
  (void)charge_bookkeeping();
  give_front_back();
  TT_RETURN_IF_ERROR(status);
  describe(image);
  if (image.next_seq == 0) {
    return core::invalid(
        "the session's snapshot is inconsistent: the number of the next command is missing");
  }
  back_.begin_at(image.next_seq - 1, program::completed_upto(image), image.cancelled_below,
                 std::move(image.failed));
  for (const Image::Group& group : image.groups) back_.groups().restore(user_, who(), group);
  TT_RETURN_IF_ERROR(back_.restore_entries(image.entries, *values));
  forgotten_ = program::completed_upto(image);
  accepted_upto_ = image.next_seq - 1;
  core::MutexLock lock(mu_);
  amounts_ = amounts;
  next_seq_ = restored_at_ = image.next_seq;
  next_id_ = image.next_id;
  next_upload_ = std::max<std::uint64_t>(image.next_upload, 1);
  abandoned_upto_ = image.forsaken_upto;
  given_up_.insert(image.given_up.begin(), image.given_up.end());
  for (const Image::Upload& item : image.uploads) {
    if (item.storage >= image.storages.size()) {
      return core::invalid("the session's snapshot is inconsistent: an upload");
    }
    auto upload = std::make_shared<Upload>();
    core::MutexLock inner(upload->mu);
    upload->storage = core::Ref<memory::Storage>(
        static_cast<memory::Storage*>(image.storages[item.storage].contents.get()));
    upload->received = upload->bytes = upload->storage->bytes();
    staged_ += upload->bytes;
    upload->finished = true;
    uploads_.emplace(item.number, upload);
  }
  for (Image::Download& item : image.downloads) {
    Download& download = downloads_[item.seq];
    download.bound = true;
    runtime::FetchResult& result = download.result;
    result.seq = item.seq;
    result.bulk = true;
    result.status = std::move(item.status);
    result.root = item.root;
    result.dtype = item.dtype;
    result.shape = item.shape;
    result.device = item.device;
    if (!result.status.ok()) continue;
    if (item.storage >= image.storages.size() ||
        !(image.storages[item.storage].device == item.device) ||
        item.offset > image.storages[item.storage].bytes ||
        item.bytes > image.storages[item.storage].bytes - item.offset) {
      return core::invalid("the session's snapshot is inconsistent: a download");
    }
    result.contents.storage = memory::Pinned(core::Ref<memory::Storage>(
        static_cast<memory::Storage*>(image.storages[item.storage].contents.get())));
    result.contents.offset = item.offset;
    result.contents.bytes = item.bytes;
  }
  return {};
}

}  // namespace teletensor::session
