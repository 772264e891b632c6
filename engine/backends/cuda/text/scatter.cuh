// Writes by index, applied in the order of the indices: the last of several writes to one position
// stays, and sums are added in that order.
namespace tt {

// to += alpha * from in the arithmetic of T, like accumulate() on the CPU.
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

template <class T>
void multiply(T& to, T from) {
  if constexpr (std::is_same_v<T, Bool>) {
    to.byte = to.byte != 0 && from.byte != 0;
  } else if constexpr (std::is_integral_v<T>) {
    to = static_cast<T>(static_cast<std::uint64_t>(to) * static_cast<std::uint64_t>(from));
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    to = T(static_cast<float>(to) * static_cast<float>(from));
  } else {
    to = to * from;
  }
}

// Replaces `to` by the larger (or smaller) of both numbers, or by NaN if either is NaN. Has no effect
// on complex numbers, which have no order.
template <class T>
void keep_extreme(T& to, T from, bool largest) {
  if constexpr (std::is_same_v<T, Bool>) {
    if (largest ? from.byte != 0 : from.byte == 0) to = from;
  } else if constexpr (!std::is_same_v<T, Complex64> && !std::is_same_v<T, Complex128>) {
    using A = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;
    const A a = static_cast<A>(from), b = static_cast<A>(to);
    if (b == b && ((largest ? a > b : a < b) || a != a)) to = from;
  }
}

// Division of integers rounds down, as in PyTorch's mean of a scatter.
template <class T>
void divide(T& to, std::int64_t count) {
  if constexpr (std::is_same_v<T, Bool>) {
    return;
  } else if constexpr (std::is_same_v<T, Complex64> || std::is_same_v<T, Complex128>) {
    to = to / T(static_cast<double>(count));
  } else if constexpr (std::is_floating_point_v<T>) {
    to = to / static_cast<T>(count);
  } else if constexpr (!std::is_integral_v<T>) {
    to = T(static_cast<float>(to) / static_cast<float>(count));
  } else if constexpr (!std::is_signed_v<T>) {
    to = static_cast<T>(to / static_cast<std::uint64_t>(count));
  } else {
    const auto n = static_cast<std::int64_t>(to);
    const std::int64_t quotient = n / count;
    to = static_cast<T>(n % count != 0 && n < 0 ? quotient - 1 : quotient);
  }
}

enum ScatterWrite { kWriteCopy, kWriteAdd, kWriteProduct, kWriteMax, kWriteMin };

template <class T, int kWrite>
void combine(T& to, T from, double alpha) {
  if constexpr (kWrite == kWriteCopy) {
    to = from;
  } else if constexpr (kWrite == kWriteAdd) {
    accumulate(to, from, alpha);
  } else if constexpr (kWrite == kWriteProduct) {
    multiply(to, from);
  } else {
    keep_extreme(to, from, kWrite == kWriteMax);
  }
}

inline void join_places(const calls::JoinCall& p, std::int64_t at) {
  std::int64_t place = 0;
  for (int j = 0; j < p.indices; ++j) {
    const std::int64_t value = p.index[j][at * p.step[j]];
    place = place * p.size[j] + (value < 0 ? value + p.size[j] : value);
  }
  p.to[at] = place;
}

// Links equal indices into chains: next[i] is the position of the next equal index, or count.
// later[i] is 1 if there is an earlier equal index. One thread per index searches for the next one.
inline void chain_links(const calls::ChainCall& p, std::int64_t i) {
  if (*p.flag != 0) return;
  const std::int64_t value = p.index[i];
  // Both the negative and the nonnegative index name the same position.
  const std::int64_t other = value < 0 ? value + p.size : value - p.size;
  std::int64_t j = i + 1;
  while (j < p.count && p.index[j] != value && p.index[j] != other) ++j;
  p.next[i] = j;
  if (j < p.count) p.later[j] = 1;
}

struct ChainPlace {
  std::int64_t i, from, to;
};
// The positions for thread `at`; the dimensions are [before][count][after].
inline ChainPlace chain_place(const calls::ChainCall& p, std::int64_t at) {
  std::int64_t rest = at;
  const std::int64_t column = coordinate(rest, p.after), i = coordinate(rest, p.count);
  const std::int64_t value = p.index[i], place = value < 0 ? value + p.size : value;
  return {i, at, (rest * p.size + place) * p.after + column};
}

// The type in which values of T are accumulated. Sums of 16-bit floats are accumulated in float and
// rounded once.
template <class T>
using Total =
    std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <class T, int kWrite>
void chain_add(const calls::ChainCall& p, std::int64_t at) {
  if (*p.flag != 0) return;
  const ChainPlace place = chain_place(p, at);
  if (p.later[place.i] != 0 || p.index[place.i] == p.skipped) return;
  const T* const x = static_cast<const T*>(p.x);
  T* const y = static_cast<T*>(p.y) + place.to;
  using A = Total<T>;
  A total = static_cast<A>(*y);
  std::int64_t count = 0;
  for (std::int64_t i = place.i; i < p.count; i = p.next[i]) {
    const A value = static_cast<A>(x[p.fill ? 0 : place.from + (i - place.i) * p.after]);
    if (p.fresh && count == 0) {
      total = value;
    } else {
      combine<A, kWrite>(total, value, p.alpha);
    }
    ++count;
  }
  if (p.mean) divide(total, count + !p.fresh);
  *y = static_cast<T>(total);
}

template <class T>
void chain_copy(const calls::ChainCall& p, std::int64_t at) {
  if (*p.flag != 0) return;
  const ChainPlace place = chain_place(p, at);
  if (p.next[place.i] < p.count) return;
  static_cast<T*>(p.y)[place.to] = static_cast<const T*>(p.x)[p.fill ? 0 : place.from];
}

// Writes the elements of one line of the index to one line of y, in order.
template <class T, int kWrite>
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
  const auto place_of = [&](std::int64_t i) {
    return to + p.index[at + i * p.index_strides[p.dim]] * p.y_strides[p.dim];
  };
  const std::int64_t length = p.shape[p.dim];
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t place = place_of(i);
    const T value = x[p.fill ? 0 : from + i * p.x_strides[p.dim]];
    if (p.counts && p.counts[place]++ == 0 && p.fresh) {
      y[place] = value;
    } else {
      combine<T, kWrite>(y[place], value, 1);
    }
  }
  if (!p.mean) return;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t place = place_of(i);
    if (p.counts[place] > 0) divide(y[place], p.counts[place] + !p.fresh);
    p.counts[place] = 0;
  }
}

}  // namespace tt
