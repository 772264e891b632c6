// Sorting of lines. Elements are converted to unsigned keys whose order is the wanted one (NaN is
// the largest, -0 equals 0), and each key is paired with its position, which decides ties. So no
// two items are equal, and every sorting algorithm gives the same result. A block sorts a run in
// shared memory (Batcher's bitonic network, 1968). Runs are merged in pairs: each item finds its
// position in the other run by bisection.
namespace tt {

// An item for elements of up to 4 bytes.
struct PackedItem {
  std::uint64_t word;  // key << 32 | position
  static PackedItem of(std::uint64_t key, std::int64_t place) {
    return {key << 32 | static_cast<std::uint64_t>(place)};
  }
  static PackedItem last() { return {~std::uint64_t{0}}; }
  std::int64_t place() const { return static_cast<std::int64_t>(word & 0xffffffffu); }
  bool before(const PackedItem& other) const { return word < other.word; }
};
struct WideItem {
  std::uint64_t key;
  std::int64_t at;
  static WideItem of(std::uint64_t key, std::int64_t place) { return {key, place}; }
  static WideItem last() { return {~std::uint64_t{0}, INT64_MAX}; }
  std::int64_t place() const { return at; }
  bool before(const WideItem& other) const {
    return key != other.key ? key < other.key : at < other.at;
  }
};
template <int kWide>
using SortItem = std::conditional_t<kWide != 0, WideItem, PackedItem>;

template <class T, class A>
SortItem<(sizeof(T) > 4)> sort_item(T element, bool descending, std::int64_t place) {
  constexpr bool kWide = sizeof(T) > 4;
  using Bits = std::conditional_t<kWide, std::uint64_t, std::uint32_t>;
  constexpr Bits kSign = Bits{1} << (sizeof(Bits) * 8 - 1);
  const A value = s::to_compute<A>(element);
  Bits key;
  if constexpr (std::is_floating_point_v<A>) {
    const Bits bits = std::bit_cast<Bits>(value + A(0));  // turns -0 into 0
    key = value != value ? ~Bits{0} : bits & kSign ? ~bits : bits | kSign;
  } else {
    constexpr bool kUnsigned = std::is_same_v<T, Bits>;
    key = static_cast<Bits>(value) ^ (kUnsigned ? Bits{0} : kSign);
  }
  return SortItem<kWide>::of(descending ? static_cast<Bits>(~key) : key, place);
}

// One block sorts one run of 512 of a line. With kFirst the run consists of elements, otherwise of
// items that earlier runs have kept. The first `keep` items are stored after those of the previous
// run.
template <class T, class A, int kFirst>
void sort_runs(const calls::SortCall& p) {
  using Item = SortItem<(sizeof(T) > 4)>;
  __shared__ Item items[512];
  std::int64_t line = blockIdx.x;
  const std::int64_t runs = (p.length + 511) / 512, run = coordinate(line, runs), start = run * 512;
  const std::int64_t left = p.length - start, count = left < 512 ? left : 512;
  for (int i = threadIdx.x; i < 512; i += 256) {
    Item item = Item::last();
    if (i < count) {
      if constexpr (kFirst) {
        std::int64_t before = line;
        const std::int64_t inner = coordinate(before, p.step);
        const std::int64_t at = (before * p.length + start + i) * p.step + inner;
        item = sort_item<T, A>(static_cast<const T*>(p.x)[at], p.descending, start + i);
      } else {
        item = static_cast<const Item*>(p.from)[line * p.length + start + i];
      }
    }
    items[i] = item;
  }
  // Items after the run's end are already in order.
  for (int size = 2; size < 2 * count; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();
      const int t = threadIdx.x, i = 2 * t - (t & (apart - 1)), j = i + apart;
      const Item a = items[i], b = items[j];
      if (((i & size) == 0) == b.before(a)) {
        items[i] = b;
        items[j] = a;
      }
    }
  }
  __syncthreads();
  const std::int64_t last = p.length - (runs - 1) * 512;
  const std::int64_t kept = (runs - 1) * p.keep + (last < p.keep ? last : p.keep);
  Item* const to = static_cast<Item*>(p.to) + line * kept + run * p.keep;
  for (int i = threadIdx.x; i < count && i < p.keep; i += 256) to[i] = items[i];
}

// Each item of two sorted runs of `width` finds its position in the merged run.
template <class T>
void sort_merge(const calls::SortCall& p, std::int64_t at) {
  using Item = SortItem<(sizeof(T) > 4)>;
  std::int64_t line = at;
  const std::int64_t i = coordinate(line, p.length), pair = i / (2 * p.width) * (2 * p.width);
  const Item* const from = static_cast<const Item*>(p.from) + line * p.length;
  const Item item = from[i];
  const bool second = i - pair >= p.width;
  // Counts the items of the other run that come before this item.
  const std::int64_t begin = second ? pair : pair + p.width, most = begin + p.width;
  std::int64_t low = begin < p.length ? begin : p.length, high = most < p.length ? most : p.length;
  const std::int64_t first = low;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (from[middle].before(item)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const std::int64_t own = second ? i - p.width : i;
  static_cast<Item*>(p.to)[line * p.length + own + (low - first)] = item;
}

// One of the `taken` results of a line, which begin at position `first` of the order. If NaN wins,
// the result is the line's first NaN, if it has any.
template <class T, class A>
void sort_take(const calls::SortCall& p, std::int64_t at) {
  using Item = SortItem<(sizeof(T) > 4)>;
  std::int64_t line = at;
  const std::int64_t j = coordinate(line, p.taken);
  const Item* const items = static_cast<const Item*>(p.from) + line * p.kept;
  std::int64_t before = line;
  const std::int64_t inner = coordinate(before, p.step);
  const T* const x = static_cast<const T*>(p.x) + before * p.length * p.step + inner;
  const auto nan = [&](std::int64_t i) {
    const A value = s::to_compute<A>(x[items[i].place() * p.step]);
    return value != value;
  };
  std::int64_t found = p.first + j;
  if (p.nan_wins && nan(p.kept - 1)) {
    std::int64_t low = 0, high = p.kept - 1;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (nan(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    found = low;
  }
  const std::int64_t place = items[found].place();
  const std::int64_t to = (before * p.taken + j) * p.step + inner;
  if (p.places) p.places[to] = place;
  if (p.y) static_cast<T*>(p.y)[to] = x[place * p.step];
}

}  // namespace tt
