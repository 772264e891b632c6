// Staging knows the uploads of a lease by the client's own numbers, the keys. If the stream of an
// upload is lost, the received bytes are kept until the client resumes the upload or discards it,
// or does neither for a while. The last complete uploads are remembered for a client whose answer
// was lost. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "proto/wire/bulk.h"
#include "server/session/lease/held_session.h"

namespace teletensor::v1 {
class SavedBody;
}  // namespace teletensor::v1

namespace teletensor::server {

// One upload. One stream at a time writes to it.
class Staged {
 public:
  Staged(std::uint64_t upload, core::Device device, std::uint64_t bytes, const void* writer)
      : upload(upload), device(device), bytes(bytes), writer_(writer) {}

  const std::uint64_t upload;
  const core::Device device;
  const std::uint64_t bytes;

  // Appends bytes from the stream `writer`. ABORTED if another stream has replaced it.
  core::Status write(const void* writer, engine::Session& session, std::string_view data);
  // Marks the upload as complete.
  core::Status finish(const void* writer, engine::Session& session);

 private:
  friend class Staging;
  core::Status fenced(const void* writer) const TT_REQUIRES(mutex_);

  mutable core::Mutex mutex_;  // Locked only for the copy of one slice.
  const void* writer_ TT_GUARDED_BY(mutex_);
  std::uint64_t received_ TT_GUARDED_BY(mutex_) = 0;
  core::Clock::time_point left_ TT_GUARDED_BY(mutex_);  // Time when its stream was lost.
};
using StagedRef = std::shared_ptr<Staged>;

class Staging {
 public:
  // `session` is that of the lease.
  explicit Staging(HeldSession& session) : session_(session) {}

  // Starts an upload whose bytes the stream `writer` sends. With key 0 it cannot be resumed. An
  // earlier upload with the same key is aborted and its stream is replaced.
  StagedRef begin(std::uint64_t key, std::uint64_t upload, core::Device device, std::uint64_t bytes,
                  const void* writer);
  // Resumes an upload at `offset` with the stream `writer`. FAILED_PRECONDITION if `offset` is not
  // the next position.
  core::Result<StagedRef> go_on(std::uint64_t key, core::Device device, std::uint64_t bytes,
                                std::uint64_t offset, const void* writer);
  // Reports that a stream ended before its upload was complete. The upload is kept for the client
  // to resume, or aborted.
  void leave(std::uint64_t key, const StagedRef& staged, const void* writer, bool keep);
  // Reports that an upload is complete. An earlier complete upload with the same key, whose answer
  // was lost, is aborted.
  void finished(std::uint64_t key, const StagedRef& staged);
  // Tells a client that was disconnected how much of an upload was received, and the number of a
  // complete one; the current stream of the upload is replaced. With `give_up`, aborts the upload
  // and answers nothing.
  wire::StagedAnswer answer(std::uint64_t key, bool give_up);
  // Aborts uploads whose stream was lost before `before` and that were not resumed.
  void drop(core::Clock::time_point before);
  // Frees the memory of an upload of the session that no command has bound.
  void abort(std::uint64_t upload);

  // Writes the numbers of the complete uploads into a snapshot, and restores them.
  void save(v1::SavedBody& body) const;
  void restore(const v1::SavedBody& body);

 private:
  static constexpr std::size_t kMaxComplete = 64;  // Complete uploads that are remembered.

  StagedRef find(std::uint64_t key) const;
  // Returns the number of bytes received, and replaces the current stream. Returns 0 for an unknown
  // upload.
  std::uint64_t received(std::uint64_t key);
  // Removes an upload that is complete or discarded.
  void forget(std::uint64_t key, const StagedRef& staged);
  void give_up(std::uint64_t key);

  HeldSession& session_;
  mutable core::Mutex mutex_;
  std::map<std::uint64_t, StagedRef> entries_ TT_GUARDED_BY(mutex_);
  // Key and number of each complete upload.
  std::deque<std::pair<std::uint64_t, std::uint64_t>> complete_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
