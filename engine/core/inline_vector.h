// InlineVector<T, N>: a vector that stores its first N elements without heap memory. Not
// thread-safe.
//
// Indices are not checked. Pointers to elements, and iterators, are valid until the vector grows
// beyond its capacity, is moved or is destroyed; unlike those of std::vector, they may not stay
// valid if the vector is moved. A vector that was moved from is empty. If push_back(),
// emplace_back() or resize() throws std::bad_alloc, the vector is unchanged (with_memory.h turns
// the exception into a Status). Moves of T must not throw.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace teletensor::core {

template <class T, std::size_t N>
class InlineVector {
 public:
  InlineVector() {}  // not = default: a member `InlineVector v{}` would then clear bytes_ first
  InlineVector(std::initializer_list<T> items) {
    for (const T& item : items) push_back(item);
  }
  explicit InlineVector(std::span<const T> items) {
    for (const T& item : items) push_back(item);
  }
  InlineVector(const InlineVector& other) : InlineVector(std::span<const T>(other)) {}
  InlineVector(InlineVector&& other) noexcept { take(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) {
      clear();
      for (const T& item : other) push_back(item);
    }
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~InlineVector() { reset(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

  void push_back(T item) { emplace_back(std::move(item)); }
  // Returns the new element. The arguments must not refer to elements of this vector, which may
  // move first; push_back() has no such condition.
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) grow(capacity_ * 2);
    return *make(data_ + size_++, std::forward<Args>(args)...);
  }
  void pop_back() { data_[--size_].~T(); }
  // New elements are zero if T is a number, and default-initialised if it is a class. The memory of
  // removed elements is kept for later ones, also by clear().
  void resize(std::size_t n) {
    if (n > capacity_) grow(n);
    while (size_ > n) pop_back();
    while (size_ < n) make(data_ + size_++);
  }
  void clear() {
    while (size_ > 0) pop_back();
  }
  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i) {
      if (!(a[i] == b[i])) return false;
    }
    return true;
  }

 private:
  // A class is default-initialised: T() would first clear all its bytes, which for rows of Dims
  // costs more than the rest.
  template <class... Args>
  static T* make(T* at, Args&&... args) {
    if constexpr (sizeof...(Args) == 0 && std::is_class_v<T>) {
      return new (at) T;
    } else {
      return new (at) T(std::forward<Args>(args)...);
    }
  }
  // Where the elements are while they need no heap memory.
  T* inline_data() { return std::launder(reinterpret_cast<T*>(bytes_)); }
  // Moves the elements to heap memory with room for `capacity` elements.
  void grow(std::size_t capacity) {
    T* bigger = std::allocator<T>().allocate(capacity);
    for (std::size_t i = 0; i < size_; ++i) {
      new (bigger + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    if (capacity_ > N) std::allocator<T>().deallocate(data_, capacity_);
    data_ = bigger;
    capacity_ = capacity;
  }
  // Destroys the elements and returns the heap memory.
  void reset() {
    clear();
    if (capacity_ > N) std::allocator<T>().deallocate(data_, capacity_);
    data_ = inline_data();
    capacity_ = N;
  }
  // Precondition: *this is empty and inline.
  void take(InlineVector& other) {
    if (other.capacity_ > N) {
      data_ = std::exchange(other.data_, other.inline_data());
      capacity_ = std::exchange(other.capacity_, N);
      size_ = std::exchange(other.size_, 0);
    } else {
      for (T& item : other) push_back(std::move(item));
      other.clear();
    }
  }

  alignas(T) std::byte bytes_[N * sizeof(T)];
  T* data_ = inline_data();
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
};

}  // namespace teletensor::core
