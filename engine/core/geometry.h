// Geometry: shape, strides and offset of a view of flat storage. Layout: a geometry with dtype and
// device. This file also computes the layout of new results; it contains no data.
//
// Strides and offsets count elements, and are never negative. Ported from the executable
// specification (shared spec, geometry.py) and fuzzed against PyTorch through engine/autograd.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "engine/core/dtype.h"
#include "engine/core/status.h"

namespace teletensor::core {

inline constexpr int kMaxRank = 12;

// Up to kMaxRank numbers without heap: sizes, strides or indices of dimensions. Copies touch only
// the used part. Indices are not checked, and neither are numbers: checked_numel() does that for a
// shape.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span(values.begin(), values.size())) {}
  // Precondition of the constructors: at most kMaxRank numbers.
  explicit Dims(std::span<const std::int64_t> values) : size_(static_cast<int>(values.size())) {
    std::copy(values.begin(), values.end(), values_);
  }
  Dims(int size, std::int64_t fill) : size_(size) { std::fill_n(values_, size, fill); }
  Dims(const Dims& other) : size_(other.size_) { copy(other); }
  Dims& operator=(const Dims& other) {
    size_ = other.size_;
    copy(other);
    return *this;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[i]; }
  std::int64_t operator[](int i) const { return values_[i]; }
  // Precondition: not empty.
  std::int64_t back() const { return values_[size_ - 1]; }
  // Precondition: size() < kMaxRank; every caller that takes input checks the rank first.
  void push_back(std::int64_t value) { values_[size_++] = value; }
  // Inserts before index `at`, or at the end. Precondition: 0 <= at <= size() < kMaxRank.
  void insert(int at, std::int64_t value);
  // Precondition: 0 <= at < size().
  void erase(int at);
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + size_; }
  std::int64_t* begin() { return values_; }
  std::int64_t* end() { return values_ + size_; }
  std::span<const std::int64_t> span() const { return {values_, static_cast<std::size_t>(size_)}; }
  // For usual ranks a loop avoids a call of memcmp, which costs more than the comparison.
  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int d = 0; d < a.size_; ++d) {
      if (a.values_[d] != b.values_[d]) return false;
    }
    return true;
  }

 private:
  // For usual ranks this avoids a call of memmove, which costs more than the copy.
  void copy(const Dims& other) {
    switch (size_) {
      case 4:
        values_[3] = other.values_[3];
        [[fallthrough]];
      case 3:
        values_[2] = other.values_[2];
        [[fallthrough]];
      case 2:
        values_[1] = other.values_[1];
        [[fallthrough]];
      case 1:
        values_[0] = other.values_[0];
        [[fallthrough]];
      case 0:
        break;
      default:
        std::copy_n(other.values_, size_, values_);
    }
  }

  int size_ = 0;
  std::int64_t values_[kMaxRank];
};

// "[2, 3]".
std::string to_string(const Dims& dims);

// The number of elements, for sizes from a peer. Fails for negative sizes and for products that
// exceed 63 bits, even if another size is 0, because strides are products of sizes as well. Says
// nothing about memory: the bytes must be checked too.
Result<std::int64_t> checked_numel(std::span<const std::int64_t> shape);
// The number of elements; 1 for a 0-d tensor. Precondition: the sizes were checked.
std::int64_t numel(const Dims& shape);
// The strides of a row-major tensor. A size of 0 counts as 1, as in PyTorch. For sizes that were
// not checked yet the strides may wrap around, which is harmless, because the shape is refused
// later.
Dims contiguous_strides(const Dims& shape);
// Checks -rank <= dim < rank and returns the non-negative index; otherwise the error "op: dim 5 is
// out of range for rank 2". A 0-d tensor accepts 0 and -1.
Result<int> normalize_dim(std::int64_t dim, int rank, std::string_view op);

// Which elements of a storage a tensor shows. shape and strides have the same number of dimensions.
struct Geometry {
  Dims shape;
  Dims strides;
  std::int64_t offset = 0;

  Geometry() = default;
  // Row-major layout.
  explicit Geometry(const Dims& shape_) : shape(shape_), strides(contiguous_strides(shape_)) {}
  Geometry(const Dims& shape_, const Dims& strides_, std::int64_t offset_ = 0)
      : shape(shape_), strides(strides_), offset(offset_) {}

  int rank() const { return shape.size(); }
  std::int64_t numel() const { return core::numel(shape); }
  // Returns true if the elements are adjacent in row-major order. Sizes of 1 may have any strides;
  // an empty tensor is always contiguous.
  bool contiguous() const;
  // Returns true if some permutation is contiguous (PyTorch: non-overlapping and dense).
  bool dense() const;
  // Returns true if several elements may share a memory location; never false if they do.
  bool overlaps_itself() const;
  // One past the largest storage index that the view reads; the offset if it is empty.
  std::int64_t storage_end() const;

  // Views. The caller checks the arguments: dims and indices are in range and not negative, and
  // sizes match. select() removes the dimension; slice() keeps it with `length` indices from
  // `start` on, `step` apart; permute() has dimension order[d] of this geometry as its dimension d.
  Geometry select(int dim, std::int64_t index) const;
  Geometry slice(int dim, std::int64_t start, std::int64_t length, std::int64_t step) const;
  Geometry transpose(int a, int b) const;
  Geometry permute(const Dims& order) const;
  // Broadcasts to `target`: dimensions of size 1 and new leading dimensions get stride 0. Fails
  // unless `target` has at least this rank and each size is equal or expands a size of 1.
  Result<Geometry> expand(const Dims& target) const;
  // The same elements in row-major order with another shape; nothing if that needs a copy.
  // Precondition: equal numel.
  std::optional<Geometry> view(const Dims& target) const;

  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// PyTorch's right-aligned broadcasting: returns the shape of an elementwise result, or an error
// with both shapes and the name of the op.
Result<Dims> broadcast_shapes(const Dims& a, const Dims& b, std::string_view op);

// RULE: the strides of a new elementwise result follow the order of the inputs' strides (as in
// PyTorch). Its offset is 0. `inputs` contains tensors only; numbers have no influence.
Geometry elementwise_layout(const Dims& shape, std::span<const Geometry* const> inputs);

// The properties of a tensor except its data.
struct Layout {
  DType dtype = DType::kF32;
  Device device;
  Geometry geometry;
  friend bool operator==(const Layout&, const Layout&) = default;
};

}  // namespace teletensor::core
