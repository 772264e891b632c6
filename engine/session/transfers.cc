// Session's transfers of large values: uploads, which a command binds, and downloads of fetched
// values.
#include <algorithm>
#include <utility>

#include "engine/core/with_memory.h"
#include "engine/session/session.h"

namespace teletensor::session {

using core::Code;
using core::Status;

// ---------------------------------------------------------------- uploads

core::Result<memory::Pool*> Session::upload_pool(core::Device device) {
  const int found = devices_.find(device);
  if (found < 0) return devices_.missing("upload", device);
  core::MutexLock lock(mu_);
  if (!broken_.ok()) return broken_;
  if (uploads_.size() >= kMaxUploads) {
    return Status(Code::kResourceExhausted, "upload: " + std::to_string(kMaxUploads) +
                                                " uploads are unfinished or unbound already");
  }
  return &back_.executor().pool(static_cast<std::size_t>(found));
}

core::Result<std::uint64_t> Session::stage(std::uint64_t bytes) {
  core::MutexLock lock(mu_);
  const std::uint64_t limit = limits_.staged_bytes;
  if (limit != 0 && (bytes > limit || staged_ > limit - bytes)) {
    return program::over_limit("upload", &program::Amounts::staged_bytes, staged_, bytes, limit,
                               "upload less at a time, with a synchronize() in between");
  }
  staged_ += bytes;
  return takeovers_;
}

core::Result<std::uint64_t> Session::begin_upload(core::Device device, std::uint64_t bytes) {
  const core::Result<memory::Pool*> pool = upload_pool(device);
  if (!pool.ok()) return pool.status();
  const core::Result<std::uint64_t> client = stage(bytes);
  if (!client.ok()) return client;
  return begin_staged(**pool, bytes, *client, (*pool)->allocate_shared(bytes, accepted_upto_ + 1));
}

core::Result<std::uint64_t> Session::begin_staged(memory::Pool& pool, std::uint64_t bytes,
                                                  std::uint64_t client,
                                                  core::Ref<memory::Storage> storage) {
  runtime::Device& device = devices_.at(static_cast<std::size_t>(devices_.find(pool.device_id())));
  Status status;
  if (!storage) {
    status = device.backend().health();  // a lost device refuses memory as well
    if (status.ok()) status = pool.refusal("upload", bytes);
  } else if (auto* const accelerator = device.accelerator()) {
    // The memory may have been freed just now by the session itself.
    status = accelerator->begin_beside(storage->owner());
  }
  const auto upload = std::make_shared<Upload>();
  upload->bytes = bytes;
  {
    core::MutexLock lock(upload->mu);
    upload->storage = std::move(storage);
  }
  core::MutexLock lock(mu_);
  if (status.ok() && client != takeovers_) {
    status = Status(Code::kAborted, "upload: the session was taken over");
  }
  if (!status.ok()) {
    staged_ -= bytes;
    return status;
  }
  uploads_[next_upload_] = upload;
  return next_upload_++;
}

void Session::admit_upload(core::Device device, std::uint64_t bytes,
                           std::function<void(core::Result<std::uint64_t>)> done) {
  const core::Result<memory::Pool*> pool = upload_pool(device);
  if (!pool.ok()) return done(pool.status());
  const core::Result<std::uint64_t> client = stage(bytes);
  if (!client.ok()) return done(client.status());
  back_.allocate(
      static_cast<std::size_t>(devices_.find(device)), bytes, accepted_upto_ + 1,
      [this, bytes, pool = *pool, client = *client, done](core::Ref<memory::Storage> storage) {
        done(begin_staged(*pool, bytes, client, std::move(storage)));
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
  const std::string name = "upload " + std::to_string(id);
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  if (found == uploads_.end()) return Status(Code::kNotFound, name + " is unknown");
  Upload& upload = *found->second;
  core::MutexLock inner(upload.mu);
  if (!upload.storage) return Status(Code::kFailedPrecondition, name + " is bound already");
  if (upload.received != upload.storage->bytes()) {
    return core::invalid(name + ": " + std::to_string(upload.received) + " of the declared " +
                         std::to_string(upload.storage->bytes()) + " bytes were received");
  }
  // The session may continue elsewhere from an image that contains only uploads finished earlier.
  if (still_ && pending_snapshot_.after != After::kGoOn) {
    return Status(Code::kUnavailable, name + ": the session is paused for a snapshot");
  }
  upload.finished = true;
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

core::Result<core::Ref<memory::Storage>> Session::take_upload(const program::Uploaded& uploaded,
                                                              std::uint64_t bytes) {
  std::shared_ptr<Upload> upload = find_upload(uploaded.upload);
  const std::string name = "upload " + std::to_string(uploaded.upload);
  if (!upload) return Status(Code::kNotFound, name + " is unknown");
  core::Ref<memory::Storage> storage;
  {
    core::MutexLock lock(upload->mu);
    if (!upload->finished) return Status(Code::kFailedPrecondition, name + " is not finished");
    if (!upload->storage) return Status(Code::kFailedPrecondition, name + " is bound already");
    if (upload->received != bytes || !(upload->storage->device() == uploaded.device)) {
      return core::invalid(name + " has " + std::to_string(upload->received) + " bytes on " +
                           core::to_string(upload->storage->device()) + ", not a tensor " +
                           core::to_string(uploaded.shape) + " on " +
                           core::to_string(uploaded.device));
    }
    storage = std::move(upload->storage);
  }
  core::MutexLock lock(mu_);
  if (uploads_.erase(uploaded.upload) != 0) staged_ -= upload->bytes;
  return storage;
}

// An upload that is missing or does not match fails only this command: the session's other values
// do not depend on it.
Status Session::uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                         program::ValueRef value) {
  if (devices_.find(uploaded.device) < 0) {
    return devices_.missing("upload", uploaded.device);
  }
  auto storage = take_upload(uploaded, runtime::bytes_of(value->elements, uploaded.dtype));
  if (storage.ok()) {
    (*storage)->described().set(uploaded.dtype, uploaded.shape);
    back_.queue().uploaded(seq, std::move(*storage), std::move(value));
  } else {
    back_.queue().failed(seq, storage.status(), std::move(value));
  }
  return {};
}

// ---------------------------------------------------------------- what is fetched

void Session::taken(std::uint64_t fetch) {
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
  end_download(fetch);
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

Status no_bulk_fetch(std::uint64_t seq) {
  return Status(Code::kNotFound, "download: command " + std::to_string(seq) +
                                     " was no bulk fetch, or there was no memory for it");
}

}  // namespace

namespace {

// Returns an error if a value would wait for the client to read it although the session has too
// little memory for all `unread` bytes that wait with it.
Status room_for_unread(const memory::Pool& host, std::uint64_t unread) {
  const std::uint64_t more = unread - std::min(unread, Session::kFreeUnread);
  if (more == 0 || host.room_for(more) == memory::Pool::Short::kNothing) return {};
  return host.refusal("fetch (" + std::to_string(unread) + " bytes that the client has not read)",
                      more);
}

}  // namespace

void Session::on_fetched(runtime::FetchResult result) {
  {
    core::MutexLock lock(mu_);
    if (result.seq <= abandoned_upto_) return;
  }
  engine::Fetched fetched = description(result);
  if (!result.bulk) {
    if (fetched.status.ok()) {
      fetched.status =
          room_for_unread(host_pool(), listener_->unread_bytes() + result.contents.bytes);
      if (!fetched.status.ok()) fetched.root = fetched.seq;
    }
    if (fetched.status.ok()) {
      const runtime::RowMajor& contents = result.contents;
      runtime::Device& device = devices_.at(static_cast<std::size_t>(devices_.find(result.device)));
      fetched.status = core::with_memory("a fetch", [&] {
        fetched.bytes.resize(contents.bytes);
        return device.backend().copy_out(
            fetched.bytes.data(),
            static_cast<const char*>(contents.storage->data()) + contents.offset, contents.bytes);
      });
      if (!fetched.status.ok()) fetched.root = fetched.seq;
    }
    result.contents.storage = nullptr;
    listener_->on_fetched(std::move(fetched));
    return;
  }
  Ready ready;
  {
    core::MutexLock lock(mu_);
    // An entry of given_up_ is kept until its command has completed, because a download may come
    // late.
    if (given_up_.contains(result.seq)) return;
    const Status noted =
        core::with_memory("a download", [&]() TT_ANNOTATION(no_thread_safety_analysis) {
          downloads_.try_emplace(result.seq);
          return Status();
        });
    if (!noted.ok()) return;  // begin_download() then reports that there is none
    Download& download = downloads_.find(result.seq)->second;
    if (downloads_.size() > kMaxDownloads && !download.ready) {
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

void Session::refuse_downloads(std::uint64_t completed) {
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

void Session::begin_download(std::uint64_t seq, Ready ready) {
  Status refused;
  engine::Fetched fetched;
  {
    core::MutexLock lock(mu_);
    auto found = downloads_.find(seq);
    if (found == downloads_.end()) {
      if (seq <= completed_upto()) {  // read under the lock; refuse_downloads() takes it afterwards
        refused = no_bulk_fetch(seq);
      } else if (given_up_.contains(seq)) {
        refused = Status(Code::kCancelled, "download: the client no longer needs the value");
      } else if (downloads_.size() >= kMaxDownloads) {
        refused = Status(Code::kResourceExhausted, "download: too many are waiting");
      } else {
        downloads_[seq].ready = std::move(ready);
        return;
      }
    } else if (!found->second.bound) {
      std::swap(found->second.ready, ready);
      refused =
          Status(Code::kCancelled, "download: replaced by a later download of the same value");
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
  return shares_->add(pool, found->contents.storage, found->contents.offset, found->contents.bytes);
}

core::Result<engine::Shared> Session::share_copy(std::uint64_t seq) {
  const core::Result<runtime::FetchResult> found = find_download(seq);
  if (!found.ok()) return found.status();
  const auto index = static_cast<std::size_t>(devices_.find(found->device));
  backends::Accelerator* const gpu = devices_.at(index).accelerator();
  if (gpu == nullptr || gpu->open_unit() == 0) {
    return Status(Code::kUnimplemented, "share: " + core::to_string(found->device) +
                                            " cannot copy into memory for other processes");
  }
  return shares_->copy(back_.executor().pool(index), *gpu, found->contents, seq);
}

core::Result<engine::Shared> Session::share_new(std::uint64_t bytes) {
  return shares_->open(host_pool(), bytes, accepted_upto_ + 1);
}

Status Session::upload_shared(std::uint64_t upload, std::uint64_t offset, std::uint64_t share,
                              std::uint64_t from, std::uint64_t bytes) {
  const core::Ref<memory::Storage> memory = shares_->opened(share);
  if (!memory) return Status(Code::kNotFound, "upload: there is no such shared memory");
  if (from > memory->bytes() || bytes > memory->bytes() - from) {
    return Status(Code::kOutOfRange, "upload: the range lies outside the shared memory");
  }
  // Another process may write there concurrently: each byte is read only once.
  return upload_chunk(upload, offset, {static_cast<const char*>(memory->data()) + from, bytes});
}

Status Session::download_chunk(std::uint64_t seq, std::uint64_t offset, std::span<char> into) {
  const core::Result<runtime::FetchResult> found = find_download(seq);
  if (!found.ok()) return found.status();
  const runtime::RowMajor& contents = found->contents;
  if (offset > contents.bytes || into.size() > contents.bytes - offset) {
    return Status(Code::kOutOfRange, "download: " + std::to_string(into.size()) + " bytes from " +
                                         std::to_string(offset) + " of " +
                                         std::to_string(contents.bytes));
  }
  const memory::OnBehalf behalf(contents.storage->owner());
  runtime::Device& device = devices_.at(static_cast<std::size_t>(devices_.find(found->device)));
  return device.backend().copy_out(
      into.data(), static_cast<const char*>(contents.storage->data()) + contents.offset + offset,
      into.size());
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

}  // namespace teletensor::session
