// Ref<T>: an intrusive reference-counting pointer, and the two base classes with the counter.
//
// A new object has no reference yet: make_ref() creates it with one, and the object then lives
// until the last Ref is gone. Because the counter is in the object, a Ref can be made from a plain
// pointer at any time, as long as another Ref keeps the object alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace teletensor::core {

// Reference counts for several threads. The thread that drops the last reference deletes the
// object.
class Shared {
 public:
  Shared() = default;
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  virtual ~Shared() = default;

  // Precondition: the caller has a reference, or the object is new.
  void acquire() const { count_.fetch_add(1, std::memory_order_relaxed); }
  // Returns false if the last reference has been dropped. Precondition: the object's memory still
  // exists.
  bool try_acquire() const {
    std::uint32_t count = count_.load(std::memory_order_relaxed);
    while (count != 0) {
      if (count_.compare_exchange_weak(count, count + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  // Everything that other threads did with the object before their release() happens before its
  // destructor.
  void release() const {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Exact only if no other thread can acquire a reference at the same time.
  std::uint32_t references() const { return count_.load(std::memory_order_acquire); }

 private:
  mutable std::atomic<std::uint32_t> count_{0};
};

// Reference counts for one thread at a time (a session's front end, or the client under its session
// lock).
class Counted {
 public:
  Counted() = default;
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  virtual ~Counted() = default;

  void acquire() const { ++count_; }
  void release() const {
    if (--count_ == 0) last_reference_dropped();
  }
  std::uint32_t references() const { return count_; }

 protected:
  // Overridden by objects that form long chains and must not be freed recursively.
  virtual void last_reference_dropped() const { delete this; }

 private:
  mutable std::uint32_t count_ = 0;
};

// T has acquire() and release(), usually from Shared or Counted. A Ref may be null. Like a plain
// pointer it is not thread-safe itself: two threads that use one object need a Ref each.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->acquire();
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class U>
  Ref(const Ref<U>& other) : Ref(other.get()) {}
  ~Ref() {
    if (object_) object_->release();
  }
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }
  friend bool operator==(const Ref& a, std::nullptr_t) { return a.object_ == nullptr; }

 private:
  T* object_ = nullptr;
};

// Creates an object with one reference. Throws std::bad_alloc if memory is lacking.
template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace teletensor::core
