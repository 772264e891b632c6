#include "engine/runtime/queue/chunk_pool.h"

#include <utility>

namespace teletensor::runtime {
namespace {

constexpr int kFreeChunks = 512;    // kept while the queue is not empty
constexpr int kFreeChunksIdle = 4;  // kept when it is empty
constexpr int kSpareChunks = 256;   // maximum of all sessions together

// Free chunks that belong to no session.
class SpareChunks {
 public:
  static SpareChunks& all() {
    static SpareChunks& spare = *new SpareChunks;
    return spare;
  }
  Chunk* take() {
    {
      core::MutexLock lock(mu_);
      if (list_ != nullptr) {
        --count_;
        return std::exchange(list_, list_->next);
      }
    }
    return new Chunk;  // no (): that would clear the chunk first
  }
  // Precondition: the chunk is cleared.
  void give(Chunk* chunk) {
    {
      core::MutexLock lock(mu_);
      if (count_ < kSpareChunks) {
        ++count_;
        chunk->next = std::exchange(list_, chunk);
        return;
      }
    }
    delete chunk;
  }

 private:
  core::Mutex mu_;
  Chunk* list_ TT_GUARDED_BY(mu_) = nullptr;
  int count_ TT_GUARDED_BY(mu_) = 0;
};

}  // namespace

ChunkPool::~ChunkPool() {
  core::MutexLock lock(mu_);
  while (list_ != nullptr) delete std::exchange(list_, list_->next);
}

Chunk* ChunkPool::take() {
  {
    core::MutexLock lock(mu_);
    if (list_ != nullptr) {
      --count_;
      return std::exchange(list_, list_->next);
    }
  }
  return SpareChunks::all().take();
}

void ChunkPool::give(Chunk* chunk) {
  chunk->clear();
  core::MutexLock lock(mu_);
  chunk->next = std::exchange(list_, chunk);
  ++count_;
  trim_to(kFreeChunks);
}

void ChunkPool::trim() {
  core::MutexLock lock(mu_);
  trim_to(kFreeChunksIdle);
}

void ChunkPool::trim_to(int most) {
  while (count_ > most) {
    SpareChunks::all().give(std::exchange(list_, list_->next));
    --count_;
  }
}

}  // namespace teletensor::runtime
