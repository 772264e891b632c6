#include "clients/session/value_reads.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "clients/session/session.h"

namespace teletensor::client {

namespace {

// Calls visit(index of the element in row-major order, index in the storage) for each element.
template <class Visit>
void each_element(const core::Geometry& g, Visit visit) {
  const std::int64_t count = g.numel();
  core::Dims index(g.rank(), 0);
  std::int64_t at = g.offset;
  for (std::int64_t i = 0; i < count; ++i) {
    visit(i, at);
    for (int d = g.rank() - 1; d >= 0; --d) {
      at += g.strides[d];
      if (++index[d] < g.shape[d]) break;
      at -= g.strides[d] * g.shape[d];
      index[d] = 0;
    }
  }
}

// Whether an interval of `count` elements of the storage from `begin` on has all elements of g.
bool covers(std::int64_t begin, std::int64_t count, const core::Geometry& g) {
  return g.numel() > 0 && g.offset >= begin && g.storage_end() <= begin + count;
}

}  // namespace

// ---------------------------------------------------------------- KnownValue

KnownValue::~KnownValue() {
  if (listed_) reads_.unlink(*this);
}

bool KnownValue::contains(const core::Layout& layout) const {
  return layout.dtype == dtype_ &&
         covers(begin_, static_cast<std::int64_t>(bytes_.size() / size_of(dtype_)),
                layout.geometry);
}

std::string KnownValue::elements(const core::Layout& layout) const {
  const std::size_t size = size_of(dtype_);
  std::string out(static_cast<std::size_t>(layout.geometry.numel()) * size, '\0');
  each_element(layout.geometry, [&](std::int64_t i, std::int64_t at) {
    std::memcpy(out.data() + static_cast<std::size_t>(i) * size,
                bytes_.data() + static_cast<std::size_t>(at - begin_) * size, size);
  });
  return out;
}

// ---------------------------------------------------------------- ValueReads

ValueReads::ValueReads(std::uint64_t most_inline)
    : largest_(std::min<std::uint64_t>(kLargest, most_inline)),
      comparisons_{ops::OpRef("eq"), ops::OpRef("ne"), ops::OpRef("lt"),
                   ops::OpRef("le"), ops::OpRef("gt"), ops::OpRef("ge")} {}

bool ValueReads::is_small(const core::Layout& layout) const {
  return static_cast<std::size_t>(layout.geometry.numel()) <= largest_ / size_of(layout.dtype);
}

std::optional<wire::FetchedValue> ValueReads::find(Session& session, const autograd::Handle& h) {
  if (h.cell->known == nullptr || h.cell->shared || h.id == 0) return std::nullopt;
  auto& known = static_cast<KnownValue&>(*h.cell->known);
  if (!known.contains(h.layout)) return std::nullopt;
  if (session.stream().origin().is_parents() || session.stream().over() || session.has_pending() ||
      session.following || session.tracer() != nullptr) {
    return std::nullopt;
  }
  if (newest_ != &known) {
    unlink(known);
    link(known);
  }
  wire::FetchedValue value;
  value.dtype = h.layout.dtype;
  value.shape = h.shape();
  value.data = known.elements(h.layout);
  return value;
}

autograd::Handle& ValueReads::fetched_for(autograd::Handle& h) const {
  autograd::Handle& base = h.group();
  const bool better = base.id != 0 && base.cell == h.cell && base.layout.dtype == h.layout.dtype &&
                      is_small(base.layout) && base.geometry().dense() &&
                      covers(base.geometry().offset, base.geometry().numel(), h.geometry());
  return better && h.id != 0 && most_ != 0 ? base : h;
}

core::Result<ValueReads::Asked> ValueReads::ask(Session& session, autograd::Handle& h) {
  autograd::Handle& fetched = fetched_for(h);
  const auto seq = session.fetch(fetched, false);
  if (!seq.ok()) return seq.status();
  Asked asked{*seq, autograd::HandleRef(&h), autograd::HandleRef(&fetched)};
  if (most_ != 0 && is_small(fetched.layout) && fetched.geometry().dense() &&
      !fetched.cell->shared) {
    // A write that is issued before the value is received makes the cell drop this object.
    asked.known =
        core::make_ref<KnownValue>(*this, fetched.layout.dtype, fetched.geometry().offset);
    fetched.cell->known = asked.known;
  }
  return asked;
}

core::Result<wire::FetchedValue> ValueReads::wait(Session& session, const Asked& asked) {
  auto value = session.wait_fetched(asked.seq);
  const autograd::Handle& fetched = *asked.fetched;
  const core::Layout layout = fetched.layout;
  const std::size_t size = size_of(layout.dtype);
  if (!value.ok() || !value->status.ok() || asked.known == nullptr ||
      value->data.size() != static_cast<std::size_t>(layout.geometry.numel()) * size) {
    return value;
  }
  std::string stored(value->data.size(), '\0');
  each_element(layout.geometry, [&](std::int64_t i, std::int64_t at) {
    std::memcpy(stored.data() + static_cast<std::size_t>(at - layout.geometry.offset) * size,
                value->data.data() + static_cast<std::size_t>(i) * size, size);
  });
  asked.known->bytes_ = std::move(stored);
  if (asked.h != asked.fetched) {
    value->shape = asked.h->shape();
    value->data = asked.known->elements(asked.h->layout);
  }
  // Otherwise the tensor was written, or the value was read by another thread, meanwhile.
  if (fetched.cell->known.get() == asked.known.get()) {
    keep(*asked.known, std::exchange(asked.known->bytes_, {}));
  }
  return value;
}

void ValueReads::add(autograd::Handle& h, std::string_view bytes) {
  if (most_ == 0 || bytes.empty() || bytes.size() > largest_) return;
  auto known = core::make_ref<KnownValue>(*this, h.layout.dtype, h.geometry().offset);
  keep(*known, std::string(bytes));
  h.cell->known = std::move(known);
}

// ---------------------------------------------------------------- comparisons

template <class T>
std::optional<T> ValueReads::element(core::DType dtype, const ops::Var& argument) const {
  if (argument.is_number()) {
    const core::Number& number = argument.number();
    if (std::is_floating_point_v<T> && number.kind == core::Number::Kind::kFloat) {
      return static_cast<T>(number.real);
    }
    if (number.kind != core::Number::Kind::kInt) return std::nullopt;
    if constexpr (std::is_floating_point_v<T>) {
      constexpr std::int64_t kExact = std::int64_t{1} << std::numeric_limits<T>::digits;
      if (number.integer < -kExact || number.integer > kExact) return std::nullopt;
    } else if (!std::in_range<T>(number.integer)) {
      return std::nullopt;
    }
    return static_cast<T>(number.integer);
  }
  if (!argument.is_tensor()) return std::nullopt;
  const autograd::Handle& h = autograd::handle_of(argument);
  if (h.layout.dtype != dtype || h.cell->known == nullptr || h.cell->shared ||
      h.geometry().numel() != 1) {
    return std::nullopt;
  }
  const auto& known = static_cast<const KnownValue&>(*h.cell->known);
  if (!known.contains(h.layout)) return std::nullopt;
  T value;
  std::memcpy(&value,
              known.bytes_.data() +
                  static_cast<std::size_t>(h.geometry().offset - known.begin_) * sizeof(T),
              sizeof(T));
  return value;
}

template <class T>
std::optional<bool> ValueReads::compared(std::size_t comparison, core::DType dtype,
                                         std::span<const ops::Var> arguments) const {
  const std::optional<T> a = element<T>(dtype, arguments[0]);
  if (!a) return std::nullopt;
  const std::optional<T> b = element<T>(dtype, arguments[1]);
  if (!b) return std::nullopt;
  switch (comparison) {
    case 0:
      return *a == *b;
    case 1:
      return *a != *b;
    case 2:
      return *a < *b;
    case 3:
      return *a <= *b;
    case 4:
      return *a > *b;
    default:
      return *a >= *b;
  }
}

void ValueReads::compare(const Session& session, ops::OpId op, std::span<const ops::Var> arguments,
                         autograd::Handle& result) {
  if (arguments.size() != 2 || result.geometry().numel() != 1) return;
  const auto found = std::find(comparisons_.begin(), comparisons_.end(), op);
  if (found == comparisons_.end() || session.following) return;
  const auto comparison = static_cast<std::size_t>(found - comparisons_.begin());
  const ops::Var& typed = arguments[arguments[0].is_tensor() ? 0 : 1];
  if (!typed.is_tensor()) return;
  const core::DType dtype = typed.layout().dtype;
  std::optional<bool> value;
  if (dtype == core::DType::kF32) {
    value = compared<float>(comparison, dtype, arguments);
  } else if (dtype == core::DType::kF64) {
    value = compared<double>(comparison, dtype, arguments);
  } else if (dtype == core::DType::kI64) {
    value = compared<std::int64_t>(comparison, dtype, arguments);
  } else if (dtype == core::DType::kI32) {
    value = compared<std::int32_t>(comparison, dtype, arguments);
  }
  if (value) add(result, std::string_view(*value ? "\1" : "\0", 1));
}

// ---------------------------------------------------------------- the bound on the memory

namespace {
// Memory of a value, with its heap blocks.
constexpr std::size_t kOverhead = sizeof(KnownValue) + 32;
}  // namespace

void ValueReads::set_most(std::size_t bytes) {
  most_ = bytes;
  while (used_ > most_) drop(*oldest_);
}

void ValueReads::keep(KnownValue& known, std::string bytes) {
  if (bytes.size() + kOverhead > most_) return;
  while (used_ + bytes.size() + kOverhead > most_) drop(*oldest_);
  known.bytes_ = std::move(bytes);
  link(known);
}

void ValueReads::drop(KnownValue& known) {
  unlink(known);
  known.bytes_ = {};
}

void ValueReads::clear() {
  while (oldest_ != nullptr) drop(*oldest_);
}

void ValueReads::link(KnownValue& known) {
  used_ += known.bytes_.size() + kOverhead;
  known.listed_ = true;
  known.older_ = newest_;
  (newest_ != nullptr ? newest_->newer_ : oldest_) = &known;
  newest_ = &known;
}

void ValueReads::unlink(KnownValue& known) {
  used_ -= known.bytes_.size() + kOverhead;
  known.listed_ = false;
  (known.newer_ != nullptr ? known.newer_->older_ : newest_) = known.older_;
  (known.older_ != nullptr ? known.older_->newer_ : oldest_) = known.newer_;
  known.newer_ = known.older_ = nullptr;
}

}  // namespace teletensor::client
