// Downloads: the values of one session's bulk fetches, from their Fetch until the client has read
// them. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <span>

#include "engine/autograd/snapshot/image.h"
#include "engine/core/mutex.h"
#include "engine/runtime/back/back.h"
#include "engine/session/shares.h"
#include "engine/transfers.h"

namespace teletensor::session {

class Downloads final : public engine::Downloads {
 public:
  // Maximum number of downloads, whether or not their Fetch has run.
  static constexpr std::size_t kMax = 1024;

  // `accepted_upto` is the seq of the session's last accepted command.
  Downloads(const runtime::Back& back, Shares& shares,
            const std::atomic<std::uint64_t>& accepted_upto)
      : back_(back), shares_(shares), accepted_upto_(accepted_upto) {}

  std::uint64_t begin(std::uint64_t seq, Ready ready) override;
  void stop_waiting(std::uint64_t seq, std::uint64_t wait, core::Status why) override;
  core::Status read(std::uint64_t seq, std::uint64_t offset, std::span<char> into) override;
  void end(std::uint64_t seq) override;
  core::Result<engine::Shared> share(std::uint64_t seq) override;
  core::Result<engine::Shared> share_copy(std::uint64_t seq) override;

  // Keeps the result of a bulk Fetch for its download, unless the client has given it up.
  void bind(runtime::FetchResult result);
  // The client no longer needs the value of this Fetch, which may not have run yet.
  void give_up(std::uint64_t fetch);
  // Refuses the downloads that wait for commands up to `completed`, which were no bulk fetches.
  void refuse_upto(std::uint64_t completed);
  // Ends all downloads with this error. The commands up to `seq` belong to former clients, whose
  // fetches are never downloaded.
  void abandon_upto(std::uint64_t seq, const core::Status& why);
  bool is_abandoned(std::uint64_t seq) const;
  // Writes the downloads to the image, or reads them from it into a new session.
  void save(program::Image& image, autograd::ImageIndexer& indexer) const;
  core::Status restore(program::Image& image);

 private:
  struct Download {
    bool bound = false;  // its Fetch was executed
    runtime::FetchResult result;
    Ready ready;             // called when the Fetch was executed
    std::uint64_t wait = 0;  // the number of the wait that `ready` ends
  };

  core::Result<runtime::FetchResult> find(std::uint64_t seq) const;
  runtime::Devices& devices() const { return back_.executor().devices(); }
  std::size_t device_of(const runtime::FetchResult& result) const {
    return static_cast<std::size_t>(devices().find(result.device));
  }

  const runtime::Back& back_;
  Shares& shares_;
  const std::atomic<std::uint64_t>& accepted_upto_;
  mutable core::Mutex mu_;
  std::uint64_t abandoned_upto_ TT_GUARDED_BY(mu_) = 0;
  std::uint64_t waits_ TT_GUARDED_BY(mu_) = 0;  // number of the last wait
  std::map<std::uint64_t, Download> downloads_ TT_GUARDED_BY(mu_);
  // Fetches that the client has given up before they ran.
  std::set<std::uint64_t> given_up_ TT_GUARDED_BY(mu_);
};

// Returns what the client is told of a fetch, without its bytes.
engine::Fetched description_of(const runtime::FetchResult& result);

}  // namespace teletensor::session
