#include "engine/ops/windows/windows.h"

#include "engine/ops/functions.h"

namespace teletensor::ops {

core::Status window_attribute(const InferContext& c, std::size_t index, std::string_view name,
                              int count, std::int64_t least, core::Dims& to) {
  const auto values = c.attributes.ints(index);
  const auto fail = [&](const std::string& why) {
    std::string text = std::string(name) + " [";
    for (std::size_t i = 0; i < values.size(); ++i) {
      text += (i ? ", " : "") + std::to_string(values[i]);
    }
    return c.fail(text + "] " + why);
  };
  if (values.size() != static_cast<std::size_t>(count)) {
    return fail("needs " + std::to_string(count) + (count == 1 ? " number" : " numbers") +
                ", one for each spatial dimension");
  }
  for (const std::int64_t value : values) {
    if (value < least) return fail("has a number below " + std::to_string(least));
    if (value >= std::int64_t{1} << 31) return fail("has a number of 2^31 or more");
  }
  to = core::Dims(values);
  return {};
}

std::int64_t window_count(const Windows& w, int d, std::int64_t size, bool ceil) {
  const std::int64_t room = size + 2 * w.padding[d] - window_span(w, d);
  if (room < 0 && !ceil) return 0;
  if (room < 0) return room + w.stride[d] > 0 ? 1 : 0;
  std::int64_t count = room / w.stride[d] + 1;
  // One more window fits if it begins in the input or in the padding before it.
  if (ceil && room % w.stride[d] != 0 && count * w.stride[d] < size + w.padding[d]) ++count;
  return count;
}

namespace {

// Merges dimensions 0 and 1.
Var merged_batch(const Var& x) {
  if (!x.is_tensor()) return x;
  core::Dims shape{x.shape()[0] * x.shape()[1]};
  for (int d = 2; d < x.rank(); ++d) shape.push_back(x.shape()[d]);
  return reshape(x, shape);
}

}  // namespace

void merge_batch(BatchContext& c, OpId op, std::size_t tensors) {
  core::InlineVector<Var, 4> arguments;
  for (std::size_t i = 0; i < c.operands(); ++i) {
    if (i >= tensors && c.batched(i)) return c.slices();
    arguments.push_back(i < tensors ? merged_batch(c.front(i)) : c.own(i));
  }
  for (const Var& result : apply_all(op, arguments, c.attributes())) {
    if (!result.is_tensor()) return c.give(result);
    core::Dims shape{c.size(), c.size() > 0 ? result.shape()[0] / c.size() : 0};
    for (int d = 1; d < result.rank(); ++d) shape.push_back(result.shape()[d]);
    c.give(reshape(result, shape));
  }
}

}  // namespace teletensor::ops
