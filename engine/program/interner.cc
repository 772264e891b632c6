#include "engine/program/interner.h"

#include <atomic>
#include <bit>
#include <random>

namespace teletensor::program {
namespace {

std::uint64_t random_word() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}
// Random, because clients choose the data that is hashed: with known constants a client could
// produce many items with the same hash.
const std::uint64_t kStart = random_word(), kFactor = random_word() | 1;

class Hash {
 public:
  void add(std::uint64_t x) {
    const auto product = static_cast<unsigned __int128>(state_ ^ x) * kFactor;
    state_ = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = kStart;
};

// Compares bits, because 0.0 == -0.0 although they compute different results.
bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same(const core::Attributes& a, const core::Attributes& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const core::Attribute &x = a.at(i), &y = b.at(i);
    if (x.kind != y.kind || x.integer != y.integer || !same_bits(x.real, y.real) ||
        !(x.ints == y.ints) || x.text != y.text) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::uint64_t Interner::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

template <class T>
template <class Same>
const T* Interner::Table<T>::find_or_add(std::uint64_t hash, const T& item, Same&& same) {
  if ((items.size() + 1) * 2 > places.size()) {
    places.assign(places.empty() ? 64 : places.size() * 2, 0);
    for (std::uint32_t i = 0; i < hashes.size(); ++i) {
      std::size_t at = hashes[i] & (places.size() - 1);
      while (places[at] != 0) at = (at + 1) & (places.size() - 1);
      places[at] = i + 1;
    }
  }
  std::size_t at = hash & (places.size() - 1);
  for (; places[at] != 0; at = (at + 1) & (places.size() - 1)) {
    const std::uint32_t i = places[at] - 1;
    if (hashes[i] == hash && same(items[i], item)) return last = &items[i];
  }
  items.push_back(item);
  hashes.push_back(hash);
  places[at] = static_cast<std::uint32_t>(items.size());
  return last = &items.back();
}

const core::Geometry* Interner::geometry(const core::Geometry& geometry) {
  if (geometries_.last != nullptr && *geometries_.last == geometry) return geometries_.last;
  Hash hash;
  hash.add(static_cast<std::uint64_t>(geometry.offset));
  for (int d = 0; d < geometry.rank(); ++d) {
    hash.add(static_cast<std::uint64_t>(geometry.shape[d]));
    hash.add(static_cast<std::uint64_t>(geometry.strides[d]));
  }
  return geometries_.find_or_add(
      hash.value(), geometry,
      [](const core::Geometry& a, const core::Geometry& b) { return a == b; });
}

const core::Attributes* Interner::attributes(const core::Attributes& attributes) {
  if (attributes.size() == 0) return &none_;
  if (attributes_.last != nullptr && same(*attributes_.last, attributes)) return attributes_.last;
  Hash hash;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const core::Attribute& a = attributes.at(i);
    hash.add(static_cast<std::uint64_t>(a.kind) << 56 ^ static_cast<std::uint64_t>(a.integer));
    if (a.real != 0) hash.add(std::bit_cast<std::uint64_t>(a.real));
    for (const std::int64_t x : a.ints) hash.add(static_cast<std::uint64_t>(x));
    for (const char c : a.text) hash.add(static_cast<unsigned char>(c));
  }
  return attributes_.find_or_add(
      hash.value(), attributes,
      [](const core::Attributes& a, const core::Attributes& b) { return same(a, b); });
}

}  // namespace teletensor::program
