#include "engine/core/geometry.h"

#include <algorithm>
#include <array>

namespace teletensor::core {

void Dims::insert(int at, std::int64_t value) {
  std::copy_backward(values_ + at, values_ + size_, values_ + size_ + 1);
  values_[at] = value;
  ++size_;
}

void Dims::erase(int at) {
  std::copy(values_ + at + 1, values_ + size_, values_ + at);
  --size_;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

Result<std::int64_t> checked_numel(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  bool zero = false;
  for (std::int64_t size : shape) {
    if (size < 0) return invalid("negative size " + std::to_string(size) + " in shape");
    zero |= size == 0;
  }
  // A size of 0 does not prevent overflow, because strides are products as well.
  for (std::int64_t size : shape) {
    if (size != 0 && __builtin_mul_overflow(count, size, &count)) {
      return invalid("shape has more elements than 63 bits can count");
    }
  }
  return zero ? 0 : count;
}

std::int64_t numel(const Dims& shape) {
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  return count;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  std::int64_t step = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    strides[d] = step;
    // May overflow for a shape that is refused later, because inference computes layouts before
    // sizes are checked.
    step =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(step) *
                                  static_cast<std::uint64_t>(std::max<std::int64_t>(shape[d], 1)));
  }
  return strides;
}

Result<int> normalize_dim(std::int64_t dim, int rank, std::string_view op) {
  const int span = std::max(rank, 1);
  if (dim < -span || dim >= span) {
    return Status(Code::kOutOfRange, std::string(op) + ": dim " + std::to_string(dim) +
                                         " is out of range for rank " + std::to_string(rank));
  }
  return static_cast<int>(dim < 0 ? dim + span : dim);
}

bool Geometry::contiguous() const {
  std::int64_t step = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] == 1) continue;
    if (strides[d] != step) {
      // An empty tensor is contiguous with any strides.
      return std::find(shape.begin(), shape.end(), 0) != shape.end();
    }
    step *= shape[d];
  }
  return true;
}

bool Geometry::dense() const {
  if (rank() == 1) return shape[0] < 2 || strides[0] == 1;
  std::array<int, kMaxRank> order;
  int count = 0;
  for (int d = 0; d < rank(); ++d) {
    if (shape[d] == 0) return true;
    if (shape[d] == 1) continue;
    int at = count++;
    for (; at > 0; --at) {
      const int before = order[static_cast<std::size_t>(at - 1)];
      const bool after = strides[before] < strides[d] ||
                         (strides[before] == strides[d] && shape[before] <= shape[d]);
      if (after) break;
      order[static_cast<std::size_t>(at)] = before;
    }
    order[static_cast<std::size_t>(at)] = d;
  }
  std::int64_t step = 1;
  for (int i = 0; i < count; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    if (strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

bool Geometry::overlaps_itself() const {
  int order[kMaxRank], count = 0;  // dimensions by ascending stride
  bool zero = false;
  for (int d = 0; d < rank(); ++d) {
    if (shape[d] == 0) return false;
    if (shape[d] == 1) continue;
    zero |= strides[d] == 0;
    int at = count++;
    for (; at > 0 && strides[order[at - 1]] > strides[d]; --at) order[at] = order[at - 1];
    order[at] = d;
  }
  if (zero) return !dense();
  // If each stride exceeds the extent of all smaller ones, the elements are distinct.
  std::int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (strides[order[i]] <= reach) return true;
    reach += (shape[order[i]] - 1) * strides[order[i]];
  }
  return false;
}

std::int64_t Geometry::storage_end() const {
  // Checked first, because other sizes of an empty tensor may be arbitrary.
  for (int d = 0; d < rank(); ++d) {
    if (shape[d] == 0) return offset;
  }
  std::int64_t last = offset;
  for (int d = 0; d < rank(); ++d) last += (shape[d] - 1) * strides[d];
  return last + 1;
}

Geometry Geometry::select(int dim, std::int64_t index) const {
  Geometry out = *this;
  out.offset += index * strides[dim];
  out.shape.erase(dim);
  out.strides.erase(dim);
  return out;
}

Geometry Geometry::slice(int dim, std::int64_t start, std::int64_t length,
                         std::int64_t step) const {
  Geometry out = *this;
  out.offset += start * strides[dim];
  out.shape[dim] = length;
  out.strides[dim] *= step;
  return out;
}

Geometry Geometry::transpose(int a, int b) const {
  Geometry out = *this;
  if (rank() == 0) return out;
  std::swap(out.shape[a], out.shape[b]);
  std::swap(out.strides[a], out.strides[b]);
  return out;
}

Geometry Geometry::permute(const Dims& order) const {
  Geometry out = *this;
  for (int d = 0; d < rank(); ++d) {
    out.shape[d] = shape[static_cast<int>(order[d])];
    out.strides[d] = strides[static_cast<int>(order[d])];
  }
  return out;
}

Result<Geometry> Geometry::expand(const Dims& target) const {
  const int lead = target.size() - rank();
  const auto refuse = [&] {
    return invalid("expand: " + to_string(shape) + " does not expand to " + to_string(target));
  };
  if (lead < 0) return refuse();
  Geometry out(target, target, offset);
  for (int d = target.size() - 1; d >= 0; --d) {
    const std::int64_t had = d >= lead ? shape[d - lead] : 1;
    const std::int64_t next =
        d + 1 < target.size() ? target[d + 1] * out.strides[d + 1] : std::int64_t{1};
    const std::int64_t step = d >= lead ? strides[d - lead] : next;
    if (had != target[d] && had != 1) return refuse();
    out.strides[d] = had == target[d] ? step : 0;
  }
  return out;
}

std::optional<Geometry> Geometry::view(const Dims& target) const {
  if (numel() == 0) {
    if (target == shape) return *this;
    return Geometry(target, contiguous_strides(target), offset);
  }
  if (rank() == 0) return Geometry(target, Dims(target.size(), 1), offset);
  Geometry out(target, Dims(target.size(), 0), offset);
  int at = target.size() - 1;
  std::int64_t size = 1, base = strides.back();
  for (int d = rank() - 1; d >= 0; --d) {
    size *= shape[d];
    // The end of a run of dimensions that are contiguous with each other.
    if (d == 0 || (shape[d - 1] != 1 && strides[d - 1] != size * base)) {
      std::int64_t done = 1;
      while (at >= 0 && (done < size || target[at] == 1)) {
        out.strides[at] = done * base;
        done *= target[at];
        --at;
      }
      if (done != size) return std::nullopt;
      if (d > 0) {
        size = 1;
        base = strides[d - 1];
      }
    }
  }
  return out;
}

Result<Dims> broadcast_shapes(const Dims& a, const Dims& b, std::string_view op) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  const int lead = longer.size() - shorter.size();
  Dims out = longer;
  for (int d = lead; d < longer.size(); ++d) {
    const std::int64_t other = shorter[d - lead];
    if (out[d] == other || other == 1) continue;
    if (out[d] != 1) {
      return invalid(std::string(op) + ": shapes do not broadcast: " + to_string(a) + " and " +
                     to_string(b));
    }
    out[d] = other;
  }
  return out;
}

namespace {

// The order of a result's dimensions in memory, from innermost to outermost, determined from the
// operands' strides. This is the sort of PyTorch's TensorIterator, in which "either" is not
// transitive.
class DimensionOrder {
 public:
  DimensionOrder(const Dims& shape, std::span<const Geometry* const> inputs)
      : shape_(shape), inputs_(inputs) {
    for (int d = shape.size() - 1, i = 0; d >= 0; --d, ++i) order_[static_cast<std::size_t>(i)] = d;
    for (int i = 1; i < shape.size(); ++i) {
      int at = i;
      for (int j = i - 1; j >= 0; --j) {
        const int swap = inside(order(j), order(at));
        if (swap > 0) {
          std::swap(order_[static_cast<std::size_t>(j)], order_[static_cast<std::size_t>(at)]);
          at = j;
        } else if (swap < 0) {
          break;
        }
      }
    }
  }

  int order(int i) const { return order_[static_cast<std::size_t>(i)]; }

 private:
  // Returns +1 if dimension a must be outside b (swap), -1 if it must be inside, and 0 if either is
  // possible.
  int inside(int a, int b) const {
    for (const Geometry* input : inputs_) {
      const std::int64_t sa = stride(*input, a), sb = stride(*input, b);
      if (sa != 0 && sb != 0) {
        if (sa != sb) return sa < sb ? -1 : 1;
        if (shape_[a] > shape_[b]) return 1;
      }
    }
    return 0;
  }
  std::int64_t stride(const Geometry& input, int d) const {
    const int own = d - (shape_.size() - input.rank());
    if (own < 0 || (input.shape[own] == 1 && shape_[d] != 1)) return 0;
    return input.strides[own];
  }

  const Dims& shape_;
  std::span<const Geometry* const> inputs_;
  std::array<int, kMaxRank> order_;
};

}  // namespace

Geometry elementwise_layout(const Dims& shape, std::span<const Geometry* const> inputs) {
  bool same = true, contiguous = true, equal_strides = true;
  for (const Geometry* input : inputs) {
    same = same && input->shape == shape;
    contiguous = contiguous && same && input->contiguous();
    equal_strides = equal_strides && input->strides == inputs[0]->strides;
  }
  if (inputs.empty() || contiguous) return Geometry(shape);
  if (same && equal_strides && inputs[0]->dense()) return Geometry(shape, inputs[0]->strides);
  const DimensionOrder order(shape, inputs);
  Geometry out(shape);
  std::int64_t step = 1;
  bool row_major = true;
  for (int i = 0; i < shape.size(); ++i) {
    const int d = order.order(i);
    row_major = row_major && d == shape.size() - 1 - i;
    out.strides[d] = step;
    step =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(step) *
                                  static_cast<std::uint64_t>(std::max<std::int64_t>(shape[d], 1)));
  }
  return row_major ? Geometry(shape) : out;
}

}  // namespace teletensor::core
