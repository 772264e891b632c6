// Shares: the memory of a session that other processes of this machine have mapped. Any thread.
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
#include "engine/runtime/executor.h"

namespace teletensor::session {

class Shares : public std::enable_shared_from_this<Shares> {
 public:
  static constexpr std::size_t kMax = 256;  // at once: each has a descriptor or two

  // Holds the storage, which is the pool's, as long as `hold` is there. UNIMPLEMENTED where it
  // cannot be shared, RESOURCE_EXHAUSTED where there are too many.
  core::Result<engine::Shared> add(memory::Pool& pool, memory::Pinned storage, std::uint64_t offset,
                                   std::uint64_t bytes);
  // A copy of the contents, which others may write to and nothing here reads.
  core::Result<engine::Shared> copy(memory::Pool& pool, backends::Accelerator& gpu,
                                    const runtime::RowMajor& contents, std::uint64_t seq);
  // New memory that others may write to.
  core::Result<engine::Shared> open(memory::Pool& pool, std::uint64_t bytes, std::uint64_t seq);
  // The memory of open(); null where there is none such.
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
