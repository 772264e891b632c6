// ChunkPool: the free chunks of one session's queue. Thread-safe.
//
// A session with an empty queue gives most of its chunks to a store of all sessions, and the next
// burst of any session reuses them.
#pragma once

#include "engine/core/mutex.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

class ChunkPool {
 public:
  ChunkPool() = default;
  ~ChunkPool();
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  // Returns an empty chunk, which the caller owns.
  Chunk* take();
  // Takes back a chunk, and clears it.
  void give(Chunk* chunk);
  // Called when the queue is empty.
  void trim();

 private:
  void trim_to(int most) TT_REQUIRES(mu_);

  core::Mutex mu_;
  Chunk* list_ TT_GUARDED_BY(mu_) = nullptr;
  int count_ TT_GUARDED_BY(mu_) = 0;
};

}  // namespace teletensor::runtime
