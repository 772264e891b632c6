// Uploads: the uploads of one session, from their begin until a command binds their storages.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "engine/autograd/snapshot/image.h"
#include "engine/core/mutex.h"
#include "engine/runtime/back/back.h"
#include "engine/session/shares.h"
#include "engine/transfers.h"

namespace teletensor::session {

class Uploads final : public engine::Uploads {
 public:
  static constexpr std::size_t kMax = 256;  // maximum number of uploads at the same time

  // `accepted_upto` is the seq of the session's last accepted command. `limit` is the maximum of
  // the bytes of all uploads together, including those that wait for memory; 0: no limit.
  Uploads(runtime::Back& back, memory::Pool& host, Shares& shares,
          const std::atomic<std::uint64_t>& accepted_upto, std::uint64_t limit)
      : back_(back), host_(host), shares_(shares), accepted_upto_(accepted_upto), limit_(limit) {}

  core::Result<std::uint64_t> begin(core::Device device, std::uint64_t bytes) override;
  void admit(core::Device device, std::uint64_t bytes,
             std::function<void(core::Result<std::uint64_t>)> done) override;
  core::Status write(std::uint64_t upload, std::uint64_t offset, std::string_view bytes) override;
  core::Status finish(std::uint64_t upload) override;
  void abort(std::uint64_t upload) override;
  core::Result<engine::Shared> share_new(std::uint64_t bytes) override;
  core::Status write_shared(std::uint64_t upload, std::uint64_t offset, std::uint64_t share,
                            std::uint64_t from, std::uint64_t bytes) override;

  // Takes the storage of a finished upload, of `bytes` bytes, and removes the upload.
  core::Result<core::Ref<memory::Storage>> take(const program::Uploaded& uploaded,
                                                std::uint64_t bytes);
  std::uint64_t bytes() const;  // of all uploads
  // Refuses every later begin with this error, because the session is broken.
  void refuse(const core::Status& broken);
  // Removes all uploads. Uploads that the former client waits for fail with ABORTED.
  void clear();
  // While frozen, no upload can be finished: the session may continue elsewhere from an image that
  // contains only the uploads finished earlier.
  void freeze(bool frozen);
  // Writes the finished uploads to the image, or reads them from it into a new session.
  void save(program::Image& image, autograd::ImageIndexer& indexer) const;
  core::Status restore(const program::Image& image);

 private:
  struct Upload {
    core::Mutex mu;
    core::Ref<memory::Storage> storage TT_GUARDED_BY(mu);
    std::uint64_t received TT_GUARDED_BY(mu) = 0;
    bool finished TT_GUARDED_BY(mu) = false;
    std::uint64_t bytes = 0;  // size of the storage
  };
  // An upload that has been counted but not begun.
  struct Claim {
    std::size_t device = 0;
    std::uint64_t bytes = 0;
    std::uint64_t client = 0;  // clients_ when it was counted
  };

  core::Result<Claim> claim(core::Device device, std::uint64_t bytes);
  // Begins the upload with this storage (null: there is no memory), or gives up the claim.
  core::Result<std::uint64_t> begin_claimed(const Claim& claim, core::Ref<memory::Storage> storage);
  std::shared_ptr<Upload> find(std::uint64_t id) const;
  runtime::Devices& devices() const { return back_.executor().devices(); }

  runtime::Back& back_;
  memory::Pool& host_;
  Shares& shares_;
  const std::atomic<std::uint64_t>& accepted_upto_;
  const std::uint64_t limit_;
  mutable core::Mutex mu_;
  core::Status broken_ TT_GUARDED_BY(mu_);
  std::uint64_t clients_ TT_GUARDED_BY(mu_) = 0;  // number of calls of clear()
  std::uint64_t next_ TT_GUARDED_BY(mu_) = 1;
  std::uint64_t bytes_ TT_GUARDED_BY(mu_) = 0;
  bool frozen_ TT_GUARDED_BY(mu_) = false;
  std::map<std::uint64_t, std::shared_ptr<Upload>> uploads_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::session
