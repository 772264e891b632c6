// Staging: the uploads of a lease that are under way, by the client's own number of them. One whose
// stream was cut stays, with the bytes that have come, until the client goes on with it, gives it
// up, or does neither for a while. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"

namespace teletensor::server {

// One upload, written by one stream at a time.
class Staged {
 public:
  Staged(std::uint64_t upload, core::Device device, std::uint64_t bytes, const void* writer)
      : upload(upload), device(device), bytes(bytes), writer_(writer) {}

  const std::uint64_t upload;
  const core::Device device;
  const std::uint64_t bytes;

  // The next bytes of the stream `writer`. ABORTED where another stream has taken its place.
  core::Status write(const void* writer, engine::Session& session, std::string_view data);
  // All bytes are there: the upload is whole.
  core::Status finish(const void* writer, engine::Session& session);

 private:
  friend class Staging;
  core::Status fenced(const void* writer) const TT_REQUIRES(mutex_);

  mutable core::Mutex mutex_;  // held for the copy of a slice, never longer
  const void* writer_ TT_GUARDED_BY(mutex_);
  std::uint64_t received_ TT_GUARDED_BY(mutex_) = 0;
  core::Clock::time_point left_ TT_GUARDED_BY(mutex_);  // when its stream was cut
};
using StagedRef = std::shared_ptr<Staged>;

class Staging {
 public:
  using Abort = std::function<void(std::uint64_t upload)>;

  // A new upload, of which `writer` sends the bytes. With a key of 0 nobody can come back to it.
  // What was there under that key is fenced and aborted.
  StagedRef begin(std::uint64_t key, std::uint64_t upload, core::Device device, std::uint64_t bytes,
                  const void* writer, const Abort& abort);
  // `writer` goes on at `offset`. FAILED_PRECONDITION where that is not the place.
  core::Result<StagedRef> go_on(std::uint64_t key, core::Device device, std::uint64_t bytes,
                                std::uint64_t offset, const void* writer);
  // How many bytes of it lie here; whoever writes is fenced. 0 also where nothing does.
  std::uint64_t received(std::uint64_t key);
  // The stream is over before its upload was: kept for the client to come back, or aborted.
  void leave(std::uint64_t key, const StagedRef& staged, const void* writer, bool keep,
             const Abort& abort);
  // Whole, or given up.
  void forget(std::uint64_t key, const StagedRef& staged);
  void give_up(std::uint64_t key, const Abort& abort);
  // Aborts those that were cut before then and that nobody has come back to.
  void drop(core::Clock::time_point before, const Abort& abort);

 private:
  StagedRef find(std::uint64_t key) const;

  mutable core::Mutex mutex_;
  std::map<std::uint64_t, StagedRef> entries_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
