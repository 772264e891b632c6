// Geometry of the specification: views of views compose into one geometry on the storage.
#include <algorithm>

#include "model.h"

namespace teletensor::fuzz::model {

std::int64_t count(const Sizes& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

Sizes contiguous_strides(const Sizes& shape) {
  Sizes strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0; step *= shape[d]) strides[d] = step;
  return strides;
}

Geo::Geo(Sizes shape) : shape(std::move(shape)), strides(contiguous_strides(this->shape)) {}
Geo::Geo(Sizes shape, Sizes strides, std::int64_t offset)
    : shape(std::move(shape)), strides(std::move(strides)), offset(offset) {}

bool Geo::contiguous() const {
  const Sizes want = contiguous_strides(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1 && strides[d] != want[d]) return false;
  }
  return true;
}

bool Geo::dense() const {
  if (shape.size() == 1) return shape[0] < 2 || strides[0] == 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> order;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) order.emplace_back(strides[d], shape[d]);
  }
  std::sort(order.begin(), order.end());
  std::int64_t step = 1;
  for (const auto& [stride, size] : order) {
    if (stride != step) return false;
    step *= size;
  }
  return true;
}

bool Geo::overlaps_itself() const {
  bool zero = false;
  for (std::size_t d = 0; d < shape.size(); ++d) zero |= shape[d] > 1 && strides[d] == 0;
  return zero && !dense();
}

Sizes Geo::positions() const {
  Sizes out(static_cast<std::size_t>(count(shape)));
  Sizes at(shape.size(), 0);
  for (std::int64_t& place : out) {
    place = offset;
    for (std::size_t d = 0; d < shape.size(); ++d) place += at[d] * strides[d];
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
  return out;
}

Geo Geo::select(int dim, std::int64_t i) const {
  Geo out = *this;
  out.offset += i * strides[static_cast<std::size_t>(dim)];
  out.shape.erase(out.shape.begin() + dim);
  out.strides.erase(out.strides.begin() + dim);
  return out;
}

Geo Geo::slice(int dim, std::int64_t start, std::int64_t stop, std::int64_t step) const {
  Geo out = *this;
  const auto d = static_cast<std::size_t>(dim);
  out.shape[d] = (stop - start + step - 1) / step;
  out.strides[d] *= step;
  out.offset += start * strides[d];
  return out;
}

Geo Geo::transpose(int a, int b) const {
  Geo out = *this;
  std::swap(out.shape[static_cast<std::size_t>(a)], out.shape[static_cast<std::size_t>(b)]);
  std::swap(out.strides[static_cast<std::size_t>(a)], out.strides[static_cast<std::size_t>(b)]);
  return out;
}

Geo Geo::expand(const Sizes& to) const {
  if (to.size() < shape.size()) throw Refused("shape");
  const std::size_t lead = to.size() - shape.size();
  Geo out(to, Sizes(to.size()), offset);
  for (std::size_t d = to.size(); d-- > 0;) {
    const std::int64_t had = d >= lead ? shape[d - lead] : 1;
    const std::int64_t step = d >= lead           ? strides[d - lead]
                              : d + 1 < to.size() ? to[d + 1] * out.strides[d + 1]
                                                  : 1;
    if (had != to[d] && had != 1) throw Refused("shape");
    out.strides[d] = had == to[d] ? step : 0;
  }
  return out;
}

bool Geo::view(const Sizes& to, Geo* out) const {
  if (count(to) != count(shape)) throw Refused("shape");
  *out = Geo(to, Sizes(to.size(), 1), offset);
  if (shape.empty()) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // innermost first: size, stride
  std::int64_t size = 1, base = strides.back();
  for (std::size_t d = shape.size(); d-- > 0;) {
    size *= shape[d];
    if (d == 0 || (shape[d - 1] != 1 && strides[d - 1] != size * base)) {
      runs.emplace_back(size, base);
      size = 1;
      if (d > 0) base = strides[d - 1];
    }
  }
  std::size_t d = to.size();
  std::fill(out->strides.begin(), out->strides.end(), 0);
  for (const auto& [run, stride] : runs) {
    std::int64_t done = 1;
    while (d > 0 && (done < run || to[d - 1] == 1)) {
      --d;
      out->strides[d] = done * stride;
      done *= to[d];
    }
    if (done != run) return false;
  }
  return true;
}

}  // namespace teletensor::fuzz::model
