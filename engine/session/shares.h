// Shares: the memory of a session that other processes have mapped. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/backends/accelerator.h"
#include "engine/core/mutex.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/memory/pool.h"
#include "engine/memory/storage.h"
#include "engine/runtime/execute/executor.h"

namespace teletensor::session {

class Shares : public std::enable_shared_from_this<Shares> {
 public:
  static constexpr std::size_t kMax = 256;  // at the same time; each has one or two descriptors

  // Shares a part of a storage of `pool` and keeps the storage as long as the result's `hold`
  // exists. Returns UNIMPLEMENTED if it cannot be shared and RESOURCE_EXHAUSTED if too many
  // storages are shared.
  core::Result<engine::Shared> add(memory::Pool& pool, memory::Pinned storage, std::uint64_t offset,
                                   std::uint64_t bytes);
  // Shares a copy of the contents, which other processes may write to and this process never reads.
  core::Result<engine::Shared> copy(memory::Pool& pool, backends::Accelerator& gpu,
                                    const runtime::RowMajor& contents, std::uint64_t seq);
  // Shares new memory that other processes may write to.
  core::Result<engine::Shared> open(memory::Pool& pool, std::uint64_t bytes, std::uint64_t seq);
  // Returns the memory of open(), or null if `id` does not refer to such memory.
  core::Ref<memory::Storage> opened(std::uint64_t id) const;
  void end_open();
  void clear();

 private:
  core::Result<engine::Shared> keep(memory::Pinned storage, int descriptor, bool open,
                                    std::uint64_t offset, std::uint64_t bytes);
  void end(std::uint64_t id);
  core::Status full() const;

  struct Share {
    memory::Pinned storage;
    bool open = false;
  };
  mutable core::Mutex mu_;
  std::uint64_t last_ TT_GUARDED_BY(mu_) = 0;
  std::map<std::uint64_t, Share> shares_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::session
