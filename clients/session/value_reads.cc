#include "clients/session/value_reads.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
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
      derives_(ops::catalog().size(), Derive::kNothing) {
  const std::pair<const char*, Derive> known[] = {
      {"eq", Derive::kEq},   {"ne", Derive::kNe},     {"lt", Derive::kLt},
      {"le", Derive::kLe},   {"gt", Derive::kGt},     {"ge", Derive::kGe},
      {"add", Derive::kAdd}, {"sub", Derive::kSub},   {"mul", Derive::kMul},
      {"neg", Derive::kNeg}, {"full", Derive::kFull}, {"arange", Derive::kArange}};
  for (const auto& [name, derive] : known) derives_[ops::OpRef(name)] = derive;
}

bool ValueReads::is_small(const core::Layout& layout) const {
  return static_cast<std::size_t>(layout.geometry.numel()) <= largest_ / size_of(layout.dtype);
}

std::optional<wire::FetchedValue> ValueReads::find(Session& session, const autograd::Handle& h) {
  if (h.cell->known == nullptr || h.cell->shared || h.id == 0) return std::nullopt;
  auto& known = static_cast<KnownValue&>(*h.cell->known);
  if (!known.contains(h.layout)) return std::nullopt;
  if (session.stream().origin().is_parents() || session.stream().over() || session.errors().any() ||
      session.following || session.commands().tracer() != nullptr) {
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

// ------------------------------------------------------- values that follow from other values

namespace {

template <class T>
std::string bytes_of(const std::optional<T>& value) {
  if (!value) return {};
  return std::string(reinterpret_cast<const char*>(&*value), sizeof(T));
}

}  // namespace

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
std::optional<bool> ValueReads::compared(Derive comparison, core::DType dtype,
                                         std::span<const ops::Var> arguments) const {
  const std::optional<T> a = element<T>(dtype, arguments[0]);
  if (!a) return std::nullopt;
  const std::optional<T> b = element<T>(dtype, arguments[1]);
  if (!b) return std::nullopt;
  switch (comparison) {
    case Derive::kEq:
      return *a == *b;
    case Derive::kNe:
      return *a != *b;
    case Derive::kLt:
      return *a < *b;
    case Derive::kLe:
      return *a <= *b;
    case Derive::kGt:
      return *a > *b;
    default:
      return *a >= *b;
  }
}

std::string ValueReads::comparison(Derive comparison, std::span<const ops::Var> arguments) const {
  const ops::Var& typed = arguments[arguments[0].is_tensor() ? 0 : 1];
  if (!typed.is_tensor()) return {};
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
  return value ? std::string(1, *value ? '\1' : '\0') : std::string();
}

template <class T>
std::string ValueReads::computed(Derive operation, core::DType dtype,
                                 std::span<const ops::Var> arguments) const {
  const std::optional<T> a = element<T>(dtype, arguments[0]);
  if (!a) return {};
  std::optional<T> b = T(0);
  if (operation != Derive::kNeg) b = element<T>(dtype, arguments[1]);
  if (!b) return {};
  // The arithmetic of integers is that of their bits, without overflow.
  using Number = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  const auto x = static_cast<Number>(*a), y = static_cast<Number>(*b);
  Number result = x + y;
  if (operation == Derive::kSub) result = x - y;
  if (operation == Derive::kMul) result = x * y;
  if (operation == Derive::kNeg) result = std::is_integral_v<T> ? Number(0) - x : -x;
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(result)) return {};  // Processors differ in the sign and the bits of a NaN.
  }
  return bytes_of(std::optional<T>(static_cast<T>(result)));
}

// Sums, differences and products of integers are exact modulo a power of two; the results for
// floating-point numbers have exactly one correctly rounded result (IEEE 754), which the kernels of
// the CPU compute for each op, alone or fused with other ops. A GPU may contract fused ops.
std::string ValueReads::arithmetic(Derive operation, std::span<const ops::Var> arguments,
                                   const core::Attributes& attributes,
                                   const core::Layout& result) const {
  const bool has_factor = operation == Derive::kAdd || operation == Derive::kSub;
  if (has_factor && (attributes.size() != 1 || attributes.real(0) != 1)) return {};
  if (core::is_floating(result.dtype) && result.device.kind != core::DeviceKind::kCpu) return {};
  switch (result.dtype) {
    case core::DType::kF32:
      return computed<float>(operation, result.dtype, arguments);
    case core::DType::kF64:
      return computed<double>(operation, result.dtype, arguments);
    case core::DType::kI64:
      return computed<std::int64_t>(operation, result.dtype, arguments);
    case core::DType::kI32:
      return computed<std::int32_t>(operation, result.dtype, arguments);
    default:
      return {};
  }
}

std::string ValueReads::element_of(core::DType dtype, const ops::Var& number) const {
  const core::Number& n = number.number();
  const bool whole = n.kind == core::Number::Kind::kBool || n.kind == core::Number::Kind::kInt;
  if (whole && n.integer == 0) return std::string(size_of(dtype), '\0');
  switch (dtype) {
    case core::DType::kF32:
      return bytes_of(element<float>(dtype, number));
    case core::DType::kF64:
      return bytes_of(element<double>(dtype, number));
    case core::DType::kI64:
      return bytes_of(element<std::int64_t>(dtype, number));
    case core::DType::kI32:
      return bytes_of(element<std::int32_t>(dtype, number));
    case core::DType::kBool:
      return whole ? std::string(1, '\1') : std::string();
    default:
      return {};
  }
}

std::string ValueReads::filled(const ops::Var& number, const core::Layout& result) const {
  if (!number.is_number()) return {};
  std::string bytes = element_of(result.dtype, number);
  const std::size_t size = static_cast<std::size_t>(result.geometry.numel()) * bytes.size();
  while (bytes.size() < size) bytes.append(bytes, 0, size - bytes.size());
  bytes.resize(size);
  return bytes;
}

// Small integers are represented exactly in each of these dtypes, so nothing is rounded.
std::string ValueReads::counted(const ops::Var& start, const ops::Var& step,
                                const core::Layout& result) const {
  constexpr double kExact = 1 << 24;
  const auto whole = [](const core::Number& n) {
    const double value = n.as_double();
    return (n.kind == core::Number::Kind::kInt || n.kind == core::Number::Kind::kFloat) &&
           std::fabs(value) <= kExact && value == std::trunc(value) &&
           (value != 0 || !std::signbit(value));
  };
  if (!start.is_number() || !step.is_number() || !whole(start.number()) || !whole(step.number())) {
    return {};
  }
  const auto first = static_cast<std::int64_t>(start.number().as_double());
  const auto by = static_cast<std::int64_t>(step.number().as_double());
  const std::int64_t count = result.geometry.numel();
  if (count == 0 || std::abs(first + by * (count - 1)) > static_cast<std::int64_t>(kExact)) {
    return {};
  }
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string each =
        element_of(result.dtype, ops::Var(core::Number::of_int(first + by * i)));
    if (each.empty()) return {};
    bytes += each;
  }
  return bytes;
}

std::string ValueReads::derived(const Session& session, ops::OpId op,
                                std::span<const ops::Var> arguments,
                                const core::Attributes& attributes,
                                const core::Layout& result) const {
  const Derive derive = derives_[op];
  if (!constructs(derive) && !is_single(result)) return {};
  if (most_ == 0 || session.following || !is_small(result) || !result.geometry.contiguous()) {
    return {};
  }
  switch (derive) {
    case Derive::kNothing:
      return {};
    case Derive::kFull:
      return filled(arguments[0], result);
    case Derive::kArange:
      return counted(arguments[0], arguments[2], result);
    case Derive::kAdd:
    case Derive::kSub:
    case Derive::kMul:
    case Derive::kNeg:
      return arithmetic(derive, arguments, attributes, result);
    default:
      return comparison(derive, arguments);
  }
}

std::string ValueReads::derived_inplace(const Session& session, ops::OpId op,
                                        std::span<const ops::Var> arguments,
                                        const core::Attributes& attributes) const {
  const autograd::Handle& written = autograd::handle_of(arguments[0]);
  const core::Layout& layout = written.layout;
  const bool whole = written.cell->bytes == static_cast<std::int64_t>(size_of(layout.dtype));
  switch (derives_[op]) {
    case Derive::kAdd:
    case Derive::kSub:
    case Derive::kMul:
    case Derive::kNeg:
      return whole && !written.cell->shared ? derived(session, op, arguments, attributes, layout)
                                            : std::string();
    default:
      return {};
  }
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
