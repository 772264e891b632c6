// Recycled<T>: memory for objects of one class that are made on one thread and destroyed on
// another, many times a second. Each thread keeps a few freed places; whole batches go back and
// forth between threads by way of a shared list. malloc would take a lock of another thread's arena
// for each object.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "engine/core/mutex.h"

namespace teletensor::core {

// A base class. Precondition: T is final, or no derived class is larger.
template <class T>
class Recycled {
 public:
  static void* operator new(std::size_t bytes) {
    static_assert(sizeof(T) >= sizeof(Free));
    if (bytes == sizeof(T)) {
      if (void* place = Cache::take()) return place;
    }
    return ::operator new(bytes);
  }
  static void operator delete(void* place, std::size_t bytes) {
    if (bytes == sizeof(T) && Cache::give(place)) return;
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

  // The places of one thread. Objects of other threads may be destroyed after the end of a thread's
  // cache; their memory then goes to malloc.
  class Cache {
   public:
    ~Cache() {
      while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
      ended_ = true;
    }
    static void* take() { return kKeeps && !ended_ ? of_thread().take_place() : nullptr; }
    static bool give(void* place) {
      if (!kKeeps || ended_) return false;
      of_thread().give_place(place);
      return true;
    }

   private:
    static Cache& of_thread() {
      static thread_local Cache cache;
      return cache;
    }
    static Shared& shared() {
      static Shared* const shared = new Shared;  // never destroyed: threads may outlive main()
      return *shared;
    }
    void* take_place() {
      if (free_ == nullptr) {
        free_ = shared().take();
        if (free_ == nullptr) return nullptr;
        count_ = kBatch;
      }
      --count_;
      return std::exchange(free_, free_->next);
    }
    void give_place(void* place) {
      free_ = new (place) Free{free_, nullptr};
      if (++count_ < 2 * kBatch) return;
      Free* const batch = free_;
      Free* last = batch;
      for (std::size_t i = 1; i < kBatch; ++i) last = last->next;
      free_ = std::exchange(last->next, nullptr);
      count_ -= kBatch;
      if (shared().give(batch)) return;
      for (Free* at = batch; at != nullptr;) ::operator delete(std::exchange(at, at->next));
    }

    static inline thread_local bool ended_ = false;
    Free* free_ = nullptr;
    std::size_t count_ = 0;
  };
};

}  // namespace teletensor::core
