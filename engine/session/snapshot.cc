// Session's snapshots: taking an image at a moment when nothing runs, and restoring a session from
// an image.
#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "engine/autograd/snapshot/image.h"
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
    if (pause_ != Pause::kResting) return;
    pause_ = Pause::kSnapshot;  // Only one caller ends the pause.
  }
  go_on();
}

void Session::picture(After after, std::function<void(core::Result<Image>)> done) {
  Status refused;
  {
    core::MutexLock lock(mu_);
    if (!broken_.ok()) {
      refused = broken_;
    } else if (pending_snapshot_.done || pause_ != Pause::kNone) {
      refused = Status(Code::kAborted, "another snapshot of the session is in progress");
    } else {
      pending_snapshot_ = {std::move(done), after, 0};
    }
  }
  if (!refused.ok()) return done(std::move(refused));
  if (after == After::kHold && back_.groups().any()) {
    consumer_.stop_at_each_command();
    return;
  }
  if (after == After::kHold) back_.groups().shut_down();
  pause_for_snapshot();
}

// Returns true if the session is not being brought to rest for a snapshot of all groups.
bool Session::stays_apart() const {
  return !broken_.ok() ||
         (consumer_.stops() && (!pending_snapshot_.done || pause_ != Pause::kNone));
}

engine::Rest Session::come_to_rest(bool push) {
  if (!consumer_.stops() && !back_.groups().any()) return engine::Rest::kApart;
  {
    core::MutexLock lock(mu_);
    if (stays_apart()) return engine::Rest::kApart;
    if (!consumer_.stops() || (consuming_ && !consumer_.is_paused())) return engine::Rest::kRuns;
  }
  if (!back_.state().is_quiet()) return engine::Rest::kRuns;
  if (back_.groups().wanted() || (push && back_.groups().busy())) {
    if (!consumer_.allow_collective()) return engine::Rest::kExpects;
    consumer_.pump();
    return engine::Rest::kRuns;
  }
  return back_.state().is_drained() ? engine::Rest::kRests : engine::Rest::kWaits;
}

engine::Rest Session::stop_here() {
  if (!consumer_.stops() && !back_.groups().any()) return engine::Rest::kApart;
  {
    core::MutexLock lock(mu_);
    if (stays_apart()) return engine::Rest::kApart;
    const bool stopped = consumer_.forbid_collective();
    if (!consumer_.stops() || (consuming_ && !stopped)) return engine::Rest::kRuns;
  }
  if (!back_.state().is_quiet()) return engine::Rest::kRuns;
  return back_.state().is_drained() ? engine::Rest::kRests : engine::Rest::kWaits;
}

bool Session::may_stay() {
  const Status status = core::with_memory("a snapshot", [&] {
    runtime::QueueImage::NotRun parts;
    return back_.entries(nullptr, parts).status();
  });
  return status.ok();
}

void Session::stay_at_rest() {
  {
    core::MutexLock lock(mu_);
    if (!consumer_.stops() || !pending_snapshot_.done || pause_ != Pause::kNone ||
        (consuming_ && !consumer_.is_stopped())) {
      return;
    }
    pending_snapshot_.next_seq = consuming_ ? consumer_.next_seq() : next_.seq;
    consuming_ = true;
    pause_ = Pause::kSnapshot;
  }
  take_image();
}

void Session::pause_for_snapshot() {
  {
    core::MutexLock lock(mu_);
    if (consuming_ || !pending_snapshot_.done || consumer_.stops()) return;
    consuming_ = true;
    pause_ = Pause::kSnapshot;
    pending_snapshot_.next_seq = next_.seq;
  }
  if (!back_.wait_until_drained()) take_image();
}

void Session::on_continue() {
  bool paused = false;
  {
    core::MutexLock lock(mu_);
    paused = pause_ != Pause::kNone;
  }
  if (paused) {
    take_image();
  } else {
    consumer_.pump();
  }
}

// Precondition: everything has run, or waits for groups that do not change any more, and no other
// thread consumes commands.
void Session::take_image() noexcept {
  const core::UsesReserve reserve;
  if (consumer_.closing()) return;
  bool continues = false;
  {
    core::MutexLock lock(mu_);
    continues = pending_snapshot_.after == After::kGoOn;
  }
  if (!continues) uploads_.freeze(true);
  consumer_.take_front();
  core::Result<Image> image = core::with_memory("a snapshot", [&] { return make_image(); });
  consumer_.give_front_back();
  Picture picture;
  {
    core::MutexLock lock(mu_);
    picture.done = std::exchange(pending_snapshot_.done, nullptr);
    picture.after = pending_snapshot_.after;
    if (picture.after == After::kRest) {
      if (image.ok() && back_.groups().any()) image = in_a_group();  // a group was joined meanwhile
      if (image.ok()) {
        pause_ = Pause::kResting;
      } else {
        picture.after = After::kGoOn;
      }
    }
  }
  picture.done(std::move(image));
  if (picture.after == After::kGoOn) go_on();
}

// Ends a pause after a snapshot.
void Session::go_on() {
  uploads_.freeze(false);
  bool waiting = false;
  {
    core::MutexLock lock(mu_);
    pause_ = Pause::kNone;
    waiting = consuming_ = consumer_.has_frame();
  }
  if (waiting) return consumer_.pump();
  consumer_.forget_completed();
  give_to_successor();
}

// Precondition: this thread owns the front end.
core::Result<Image> Session::make_image() {
  if (back_.failures().open() == 0) consumer_.forget_upto(back_.completed_upto());
  Image image;
  autograd::ImageIndexer maker(image);
  front_.take_image(maker, image);
  image.owner = owner_;
  image.cancelled_below = back_.cancelled_below();
  image.failed = back_.failures().all();
  if (consumer_.stops()) image.groups = back_.groups().images();
  runtime::QueueImage::NotRun parts;
  if (!back_.state().is_drained()) {
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
  }
  uploads_.save(image, maker);
  downloads_.save(image, maker);
  for (Image::Storage& storage : image.storages) {
    const auto& contents = static_cast<const memory::Storage&>(*storage.contents);
    storage.bytes = contents.bytes();
    storage.seq = contents.seq();
    if (const memory::Sharing* sharing = contents.sharing()) storage.common = sharing->order;
  }
  drop_lost(image, health_of(image, devices()));
  put_kept_first(image);
  return image;
}

Status Session::restore_contents(Image image, const engine::Engine::ReadBytes& read,
                                 const RestoredStorages& restored) {
  const Exempt exempt(back_.executor(), devices().size());
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
    const int found = devices().find(storage.device);
    if (found < 0) {
      return Status(Code::kFailedPrecondition, "the session has tensors on " +
                                                   core::to_string(storage.device) +
                                                   ", which this daemon does not have");
    }
    const auto device = static_cast<std::size_t>(found);
    memory::Pool& pool = back_.executor().pool(device);
    const core::Ref<memory::Storage> made =
        back_.tiers().allocate_now(device, storage.bytes, storage.seq);
    if (!made) return pool.refusal("restoring the session", storage.bytes);
    TT_RETURN_IF_ERROR(read_into(*made, devices().at(device), read, gone));
    if (gone.ok()) storage.contents = made;
    if (!gone.ok() || !stays.contains(&storage)) made->unpin();
  }
  drop_lost(image, lost);
  auto values = autograd::values_of(image);
  if (!values.ok()) return values.status();
  consumer_.take_front();
  Status status = front_.restore_image(image, *values);
  consumer_.publish_counts();
  (void)bookkeeping_.charge();
  consumer_.give_front_back();
  TT_RETURN_IF_ERROR(status);
  describe(image);
  if (image.next_seq == 0) {
    return core::invalid(
        "the session's snapshot is inconsistent: the number of the next command is missing");
  }
  back_.begin_at(image.next_seq - 1, program::completed_upto(image), image.cancelled_below,
                 std::move(image.failed));
  for (const Image::Group& group : image.groups) sink_.restore_group(group);
  if (!image.groups.empty()) consumer_.forbid_templates();
  TT_RETURN_IF_ERROR(back_.restore_entries(image.entries, *values));
  consumer_.begin_at(program::completed_upto(image));
  accepted_upto_ = image.next_seq - 1;
  {
    core::MutexLock lock(mu_);
    next_ = {image.next_seq, image.next_id, image.next_seq};
  }
  TT_RETURN_IF_ERROR(uploads_.restore(image));
  return downloads_.restore(image);
}

}  // namespace teletensor::session
