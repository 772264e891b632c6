// Attributes: the typed, positional constants of an instruction (dims, flags, names of modes).
// Number: a Python scalar operand. Both are compact and comparable, and a few integers need no
// heap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"

namespace teletensor::core {

// A Python scalar. Type promotion considers its category, but never its dtype.
struct Number {
  // kUInt: an int above 2^63 - 1, its bits in `integer`.
  enum class Kind : std::uint8_t { kBool = 0, kInt = 1, kFloat = 2, kComplex = 3, kUInt = 4 };
  Kind kind = Kind::kInt;
  std::int64_t integer = 0;  // also 0 or 1 for a bool
  double real = 0;           // the value of a float, the real part of a complex number
  double imaginary = 0;
  // In a program: 1 + the index of a number of the call that replaces this one; the value here is
  // that of the recording. 0: a constant. Optimizer passes fold only constants.
  std::uint32_t argument = 0;

  static Number of_bool(bool value) { return {Kind::kBool, value, 0, 0, 0}; }
  static Number of_int(std::int64_t value) { return {Kind::kInt, value, 0, 0, 0}; }
  // Numbers below 2^63 become ints, so that equal values are equal Numbers.
  static Number of_uint(std::uint64_t value) {
    const auto bits = static_cast<std::int64_t>(value);
    return {bits < 0 ? Kind::kUInt : Kind::kInt, bits, 0, 0, 0};
  }
  static Number of_float(double value) { return {Kind::kFloat, 0, value, 0, 0}; }
  static Number of_complex(double real, double imaginary) {
    return {Kind::kComplex, 0, real, imaginary, 0};
  }
  bool is_integer() const { return kind == Kind::kInt || kind == Kind::kUInt; }
  bool is_complex() const { return kind == Kind::kComplex; }
  // True only for ints; floats have a sign of their own.
  bool negative() const { return kind == Kind::kInt && integer < 0; }
  // The value as a double: rounded for a large integer, and the real part of a complex number.
  double as_double() const {
    if (kind == Kind::kFloat || kind == Kind::kComplex) return real;
    if (kind == Kind::kUInt) return static_cast<double>(static_cast<std::uint64_t>(integer));
    return static_cast<double>(integer);
  }
  // Compares kind, value and `argument`; so the int 1 differs from the float 1.0, and NaN from NaN.
  friend bool operator==(const Number&, const Number&) = default;
};
// The number as text: True or False for a bool, and 17 digits for a float, which identify it
// exactly.
std::string to_string(const Number& number);

// One attribute. kNone means that an optional attribute was not given. Only the field that `kind`
// names has a value; the others keep their defaults, so that == compares values. Attributes own
// their texts and lists.
struct Attribute {
  enum class Kind : std::uint8_t {
    kNone = 0,
    kBool,
    kInt,
    kFloat,
    kInts,
    kString,
    kDType,
    kDevice
  };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // bool, int, number of a dtype, or device (kind * 256 + index)
  double real = 0;
  InlineVector<std::int64_t, 4> ints;
  std::string text;

  static Attribute none() { return {}; }
  static Attribute of(bool value) { return make(Kind::kBool, value); }
  static Attribute of(std::int64_t value) { return make(Kind::kInt, value); }
  static Attribute of(int value) { return make(Kind::kInt, value); }
  static Attribute of(double value) {
    Attribute a;
    a.kind = Kind::kFloat;
    a.real = value;
    return a;
  }
  static Attribute of(DType value) { return make(Kind::kDType, static_cast<std::int64_t>(value)); }
  static Attribute of(Device value) {
    return make(Kind::kDevice, static_cast<std::int64_t>(value.kind) * 256 + value.index);
  }
  static Attribute of(std::span<const std::int64_t> values) {
    Attribute a;
    a.kind = Kind::kInts;
    a.ints = InlineVector<std::int64_t, 4>(values);
    return a;
  }
  static Attribute of(const Dims& values) { return of(values.span()); }
  static Attribute of(std::string_view value) {
    Attribute a;
    a.kind = Kind::kString;
    a.text = value;
    return a;
  }
  static Attribute of(const char* value) { return of(std::string_view(value)); }

  friend bool operator==(const Attribute&, const Attribute&) = default;

 private:
  static Attribute make(Kind kind, std::int64_t integer) {
    Attribute a;
    a.kind = kind;
    a.integer = integer;
    return a;
  }
};

// The attributes in the order of the op's signature. The catalog checks their kinds, so readers
// need not check again: calling at(i) for the wrong kind is a bug of this program.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<Attribute> items) : items_(items) {}

  // The number of attributes that the instruction has. The last one that the op declares may be
  // missing (ops::left_off in engine/ops/signature.h).
  std::size_t size() const { return items_.size(); }
  // Precondition of the functions with an index: i < size().
  const Attribute& at(std::size_t i) const { return items_[i]; }
  void push_back(Attribute a) { items_.push_back(std::move(a)); }

  // Returns true if attribute i was given. Valid for any i.
  bool has(std::size_t i) const { return i < size() && items_[i].kind != Attribute::Kind::kNone; }
  bool boolean(std::size_t i) const { return items_[i].integer != 0; }
  std::int64_t integer(std::size_t i) const { return items_[i].integer; }
  // A float, or an int or bool as a float.
  double real(std::size_t i) const {
    return items_[i].kind == Attribute::Kind::kFloat ? items_[i].real
                                                     : static_cast<double>(items_[i].integer);
  }
  // Views of the attribute, valid until this object changes. ints() is empty for kNone, and so is
  // text().
  std::span<const std::int64_t> ints(std::size_t i) const {
    return {items_[i].ints.data(), items_[i].ints.size()};
  }
  std::string_view text(std::size_t i) const { return items_[i].text; }
  DType dtype(std::size_t i) const { return static_cast<DType>(items_[i].integer); }
  Device device(std::size_t i) const {
    return {static_cast<DeviceKind>(items_[i].integer / 256),
            static_cast<std::uint8_t>(items_[i].integer % 256)};
  }
  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  InlineVector<Attribute, 3> items_;
};

}  // namespace teletensor::core
