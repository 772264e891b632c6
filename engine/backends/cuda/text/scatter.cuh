// Elements written where indices say, each in the order of the indices: of equal places the last
// stays, sums have one order.
namespace tt {

// to += alpha * from in T's own arithmetic, as accumulate() of the CPU.
template <class T>
void accumulate(T& to, T from, double alpha) {
  if constexpr (std::is_same_v<T, Bool>) {
    to.byte = to.byte != 0 || (from.byte != 0 && alpha != 0);
  } else if constexpr (std::is_same_v<T, Complex64> || std::is_same_v<T, Complex128>) {
    to = alpha == 1 ? to + from : to + T(alpha) * from;
  } else if constexpr (std::is_floating_point_v<T>) {
    to = to + (alpha == 1 ? from : static_cast<T>(alpha) * from);
  } else if constexpr (std::is_integral_v<T>) {
    const std::uint64_t factor =
        alpha == 1 ? 1u : static_cast<std::uint64_t>(static_cast<std::int64_t>(alpha));
    to = static_cast<T>(static_cast<std::uint64_t>(to) + factor * static_cast<std::uint64_t>(from));
  } else {
    to = T(static_cast<float>(to) + static_cast<float>(alpha) * static_cast<float>(from));
  }
}

// Chains of equal indices: next[i] is the place of the next one, or count; first[i] tells whether
// there is none before. A thread for each looks for its next.
inline void chain_links(const calls::ChainCall& p, std::int64_t i) {
  if (*p.flag != 0) return;
  const std::int64_t value = p.index[i];
  const std::int64_t other = value < 0 ? value + p.size : value - p.size;  // the same place
  std::int64_t j = i + 1;
  while (j < p.count && p.index[j] != value && p.index[j] != other) ++j;
  p.next[i] = j;
  if (j < p.count) p.later[j] = 1;
}

struct ChainPlace {
  std::int64_t i, from, to;
};
// Of thread `at` of [before][count][after].
inline ChainPlace chain_place(const calls::ChainCall& p, std::int64_t at) {
  std::int64_t rest = at;
  const std::int64_t column = coordinate(rest, p.after), i = coordinate(rest, p.count);
  const std::int64_t value = p.index[i], place = value < 0 ? value + p.size : value;
  return {i, at, (rest * p.size + place) * p.after + column};
}

template <class T>
void chain_add(const calls::ChainCall& p, std::int64_t at) {
  if (*p.flag != 0) return;
  const ChainPlace place = chain_place(p, at);
  if (p.later[place.i] != 0 || p.index[place.i] == p.skipped) return;
  const T* const x = static_cast<const T*>(p.x);
  T* const y = static_cast<T*>(p.y) + place.to;
  T total = *y;
  for (std::int64_t i = place.i; i < p.count; i = p.next[i]) {
    accumulate(total, x[p.fill ? 0 : place.from + (i - place.i) * p.after], p.alpha);
  }
  *y = total;
}

template <class T>
void chain_copy(const calls::ChainCall& p, std::int64_t at) {
  if (*p.flag != 0) return;
  const ChainPlace place = chain_place(p, at);
  if (p.next[place.i] < p.count) return;
  static_cast<T*>(p.y)[place.to] = static_cast<const T*>(p.x)[p.fill ? 0 : place.from];
}

// A line of the index: its elements go to one line of y, one after the other.
template <class T, int kAdd>
void scatter_line(const calls::ScatterCall& p, std::int64_t line) {
  if (*p.flag != 0) return;
  std::int64_t rest = line, at = 0, to = 0, from = 0;
  for (int d = p.rank - 1; d >= 0; --d) {
    if (d == p.dim) continue;
    const std::int64_t c = coordinate(rest, p.shape[d]);
    at += c * p.index_strides[d];
    to += c * p.y_strides[d];
    from += c * p.x_strides[d];
  }
  const T* const x = static_cast<const T*>(p.x);
  T* const y = static_cast<T*>(p.y);
  for (std::int64_t i = 0; i < p.shape[p.dim]; ++i) {
    T& place = y[to + p.index[at + i * p.index_strides[p.dim]] * p.y_strides[p.dim]];
    const T value = x[p.fill ? 0 : from + i * p.x_strides[p.dim]];
    if (kAdd) {
      accumulate(place, value, 1);
    } else {
      place = value;
    }
  }
}

}  // namespace tt
