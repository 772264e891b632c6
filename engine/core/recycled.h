// Recycled<T>: memory for objects of one class that are made on one thread and destroyed on
// another, many times a second. Each thread keeps a few freed places; whole batches go back and
// forth between threads by way of a shared list. malloc would take a lock of another thread's arena
// for each object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "engine/core/mutex.h"

namespace teletensor::core {

// A base class of T, which replaces T's operators new and delete. Precondition: T is final, or no
// derived class is larger. The memory that is kept per class is bounded: two batches for each
// thread, and kMaxBatches batches for all of them; further objects go back to malloc. Thread-safe,
// like malloc. Throws std::bad_alloc like the global operator.
template <class T>
class Recycled {
 public:
  static void* operator new(std::size_t bytes) {
    static_assert(sizeof(T) >= sizeof(Free));
    if (kKeeps && bytes == sizeof(T)) {
      if (void* place = take()) return place;
    }
    return ::operator new(bytes);
  }
  static void operator delete(void* place, std::size_t bytes) {
    if (kKeeps && bytes == sizeof(T) && give(place)) return;
    ::operator delete(place);
  }

 private:
  // Under AddressSanitizer nothing is kept, so that it finds uses after the end of an object.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kKeeps = false;
#elif defined(__has_feature)
  static constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
  static constexpr bool kKeeps = true;
#endif
  static constexpr std::size_t kBatch = 32;
  // Maximum number of batches in the shared list; a thread has at most two batches.
  static constexpr std::size_t kMaxBatches = 512;

  struct Free {
    Free* next;
    Free* next_batch;  // of the first place of a batch in the shared list
  };

  class Shared {
   public:
    // Returns null if there is no batch.
    Free* take() {
      MutexLock lock(mutex_);
      Free* const batch = batches_;
      if (batch == nullptr) return nullptr;
      batches_ = batch->next_batch;
      --count_;
      return batch;
    }
    // Returns false if the list is full.
    bool give(Free* batch) {
      MutexLock lock(mutex_);
      if (count_ == kMaxBatches) return false;
      batch->next_batch = std::exchange(batches_, batch);
      ++count_;
      return true;
    }

   private:
    Mutex mutex_;
    Free* batches_ TT_GUARDED_BY(mutex_) = nullptr;
    std::size_t count_ TT_GUARDED_BY(mutex_) = 0;
  };

  // The places of one thread. One variable, because finding a thread's variable in a shared library
  // is a function call.
  struct Cache {
    Free* free = nullptr;
    std::size_t count = 0;
    // After the end of the thread's End object, freed memory goes to malloc.
    enum class State : std::uint8_t { kNew, kOpen, kEnded } state = State::kNew;
  };
  struct End {
    ~End() {
      while (cache_.free != nullptr) {
        ::operator delete(std::exchange(cache_.free, cache_.free->next));
      }
      cache_.state = Cache::State::kEnded;
    }
  };

  static Shared& shared() {
    static Shared* const shared = new Shared;  // never destroyed: threads may outlive main()
    return *shared;
  }
  // Returns null if there is no freed place.
  static void* take() {
    Cache& cache = cache_;
    if (cache.free == nullptr && !refill(cache)) return nullptr;
    --cache.count;
    return std::exchange(cache.free, cache.free->next);
  }
  [[gnu::noinline]] static bool refill(Cache& cache) {
    if (!is_open(cache)) return false;
    cache.free = shared().take();
    if (cache.free == nullptr) return false;
    cache.count = kBatch;
    return true;
  }
  // Returns false if the place must go to malloc.
  static bool give(void* place) {
    Cache& cache = cache_;
    if (cache.state != Cache::State::kOpen && !is_open(cache)) return false;
    cache.free = new (place) Free{cache.free, nullptr};
    if (++cache.count == 2 * kBatch) share_batch(cache);
    return true;
  }
  [[gnu::noinline]] static void share_batch(Cache& cache) {
    Free* const batch = cache.free;
    Free* last = batch;
    for (std::size_t i = 1; i < kBatch; ++i) last = last->next;
    cache.free = std::exchange(last->next, nullptr);
    cache.count -= kBatch;
    if (shared().give(batch)) return;
    for (Free* at = batch; at != nullptr;) ::operator delete(std::exchange(at, at->next));
  }
  // Opens the cache of a thread that uses it for the first time. Returns false if it has ended.
  [[gnu::noinline]] static bool is_open(Cache& cache) {
    if (cache.state == Cache::State::kNew) {
      static thread_local End end;
      cache.state = Cache::State::kOpen;
    }
    return cache.state == Cache::State::kOpen;
  }

  // Hidden in every file, also in those of a library that hides what it does not mark: link-time
  // optimisation refuses a variable of a thread that is found in two ways.
  [[gnu::visibility("hidden")]] static inline constinit thread_local Cache cache_;
};

}  // namespace teletensor::core
