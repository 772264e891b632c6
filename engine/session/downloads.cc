#include "engine/session/downloads.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::session {

using core::Code;
using core::Status;
using program::Image;

engine::Fetched description_of(const runtime::FetchResult& result) {
  engine::Fetched fetched;
  fetched.seq = result.seq;
  fetched.status = result.status;
  fetched.root = result.root;
  fetched.dtype = result.dtype;
  fetched.shape = result.shape;
  return fetched;
}

namespace {

Status no_bulk_fetch(std::uint64_t seq) {
  return Status(Code::kNotFound, "download: command " + std::to_string(seq) +
                                     " was no bulk fetch, or there was no memory for it");
}

}  // namespace

void Downloads::bind(runtime::FetchResult result) {
  engine::Fetched fetched = description_of(result);
  Ready ready;
  {
    core::MutexLock lock(mu_);
    // An entry of given_up_ is kept until its command has completed, because a download may come
    // late.
    if (result.seq <= abandoned_upto_ || given_up_.contains(result.seq)) return;
    const Status noted =
        core::with_memory("a download", [&]() TT_ANNOTATION(no_thread_safety_analysis) {
          downloads_.try_emplace(result.seq);
          return Status();
        });
    if (!noted.ok()) return;  // begin() then reports that there is none
    Download& download = downloads_.find(result.seq)->second;
    if (downloads_.size() > kMax && !download.ready) {
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

void Downloads::give_up(std::uint64_t fetch) {
  {
    // A download that waits for the value is ended below; the value itself does not exist yet.
    core::MutexLock lock(mu_);
    const auto found = downloads_.find(fetch);
    const bool bound = found != downloads_.end() && found->second.bound;
    if (!bound && fetch > back_.completed_upto() && fetch <= accepted_upto_) {
      std::erase_if(given_up_, [&](std::uint64_t seq) { return seq <= back_.completed_upto(); });
      given_up_.insert(fetch);
    }
  }
  end(fetch);
}

void Downloads::refuse_upto(std::uint64_t completed) {
  while (true) {
    Ready ready;
    std::uint64_t seq;
    {
      core::MutexLock lock(mu_);
      const auto found = std::find_if(downloads_.begin(), downloads_.end(), [&](const auto& each) {
        return each.first > completed || !each.second.bound;
      });
      if (found == downloads_.end() || found->first > completed) return;
      seq = found->first;
      ready = std::move(found->second.ready);
      downloads_.erase(found);
    }
    if (ready) ready(no_bulk_fetch(seq));
  }
}

void Downloads::abandon_upto(std::uint64_t seq, const Status& why) {
  std::map<std::uint64_t, Download> ended;
  {
    core::MutexLock lock(mu_);
    abandoned_upto_ = seq;
    ended.swap(downloads_);
    given_up_.clear();
  }
  for (auto& [fetch, download] : ended) {
    if (download.ready) download.ready(why);
  }
}

bool Downloads::is_abandoned(std::uint64_t seq) const {
  core::MutexLock lock(mu_);
  return seq <= abandoned_upto_;
}

std::uint64_t Downloads::begin(std::uint64_t seq, Ready ready) {
  Status refused;
  engine::Fetched fetched;
  std::uint64_t wait = 0;
  {
    core::MutexLock lock(mu_);
    auto found = downloads_.find(seq);
    if (found == downloads_.end()) {
      // Read under the lock, because refuse_upto() takes it after the command has completed.
      if (seq <= back_.completed_upto()) {
        refused = no_bulk_fetch(seq);
      } else if (given_up_.contains(seq)) {
        refused = Status(Code::kCancelled, "download: the client no longer needs the value");
      } else if (downloads_.size() >= kMax) {
        refused = Status(Code::kResourceExhausted, "download: too many are waiting");
      } else {
        Download& download = downloads_[seq];
        download.ready = std::move(ready);
        return download.wait = ++waits_;
      }
    } else if (!found->second.bound) {
      std::swap(found->second.ready, ready);
      wait = found->second.wait = ++waits_;
      refused =
          Status(Code::kCancelled, "download: replaced by a later download of the same value");
    } else {
      fetched = description_of(found->second.result);
    }
  }
  if (refused.ok()) {
    ready(std::move(fetched));
  } else {
    ready(std::move(refused));
  }
  return wait;
}

void Downloads::stop_waiting(std::uint64_t seq, std::uint64_t wait, Status why) {
  Ready ready;
  {
    core::MutexLock lock(mu_);
    const auto found = downloads_.find(seq);
    if (found == downloads_.end() || !found->second.ready || found->second.wait != wait) return;
    ready = std::move(found->second.ready);
    downloads_.erase(found);
  }
  ready(std::move(why));
}

core::Result<runtime::FetchResult> Downloads::find(std::uint64_t seq) const {
  core::MutexLock lock(mu_);
  const auto found = downloads_.find(seq);
  if (found == downloads_.end() || !found->second.bound) {
    return Status(Code::kNotFound, "download: nothing is bound to command " + std::to_string(seq));
  }
  TT_RETURN_IF_ERROR(found->second.result.status);
  return found->second.result;
}

Status Downloads::read(std::uint64_t seq, std::uint64_t offset, std::span<char> into) {
  const core::Result<runtime::FetchResult> found = find(seq);
  if (!found.ok()) return found.status();
  const runtime::RowMajor& contents = found->contents;
  if (offset > contents.bytes || into.size() > contents.bytes - offset) {
    return Status(Code::kOutOfRange, "download: " + std::to_string(into.size()) + " bytes from " +
                                         std::to_string(offset) + " of " +
                                         std::to_string(contents.bytes));
  }
  const memory::OnBehalf behalf(contents.storage->owner());
  return devices()
      .at(device_of(*found))
      .backend()
      .copy_out(into.data(),
                static_cast<const char*>(contents.storage->data()) + contents.offset + offset,
                into.size());
}

void Downloads::end(std::uint64_t seq) {
  Download ended;
  {
    core::MutexLock lock(mu_);
    const auto found = downloads_.find(seq);
    if (found == downloads_.end()) return;
    ended = std::move(found->second);
    downloads_.erase(found);
  }
  if (ended.ready) ended.ready(Status(Code::kCancelled, "the download was ended"));
}

core::Result<engine::Shared> Downloads::share(std::uint64_t seq) {
  core::Result<runtime::FetchResult> found = find(seq);
  if (!found.ok()) return found.status();
  return shares_.add(back_.executor().pool(device_of(*found)), found->contents.storage,
                     found->contents.offset, found->contents.bytes);
}

core::Result<engine::Shared> Downloads::share_copy(std::uint64_t seq) {
  const core::Result<runtime::FetchResult> found = find(seq);
  if (!found.ok()) return found.status();
  const std::size_t device = device_of(*found);
  backends::Accelerator* const gpu = devices().at(device).accelerator();
  if (gpu == nullptr || gpu->open_unit() == 0) {
    return Status(Code::kUnimplemented, "share: " + core::to_string(found->device) +
                                            " cannot copy into memory for other processes");
  }
  return shares_.copy(back_.executor().pool(device), *gpu, found->contents, seq);
}

void Downloads::save(Image& image, autograd::ImageIndexer& indexer) const {
  core::MutexLock lock(mu_);
  image.forsaken_upto = abandoned_upto_;
  image.given_up.assign(given_up_.begin(), given_up_.end());
  for (const auto& [seq, download] : downloads_) {
    if (!download.bound) continue;
    const runtime::FetchResult& result = download.result;
    Image::Download item{
        seq, result.root, result.status, result.dtype, result.device, result.shape, Image::kNone, 0,
        0};
    if (result.status.ok()) {
      item.storage = indexer.storage(result.contents.storage.ref(), result.device);
      item.offset = result.contents.offset;
      item.bytes = result.contents.bytes;
    }
    image.downloads.push_back(std::move(item));
  }
}

Status Downloads::restore(Image& image) {
  core::MutexLock lock(mu_);
  abandoned_upto_ = image.forsaken_upto;
  given_up_.insert(image.given_up.begin(), image.given_up.end());
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
