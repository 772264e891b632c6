// Elements that are determined by their positions: ranges, triangles, one-hot rows.
namespace tt {

enum RangeKind { kWholeRange, kRealRange, kLinspace };

template <class T, int kKind>
void range(const calls::RangeCall& p, std::int64_t i) {
  T* const y = static_cast<T*>(p.y);
  if constexpr (kKind == kWholeRange) {
    y[i] = s::from_compute<T>(s::Add()(p.whole_start, s::Mul()(p.whole_step, i)));
  } else if constexpr (kKind == kRealRange) {
    y[i] = s::from_compute<T>(p.start + p.step * static_cast<double>(i));
  } else {
    y[i] = s::from_compute<T>(i < p.n / 2 || p.n == 1
                                  ? p.start + p.step * static_cast<double>(i)
                                  : p.end - p.step * static_cast<double>(p.n - 1 - i));
  }
}

template <class T, int kLower>
void triangle(const calls::TriangleCall& p, std::int64_t at) {
  std::int64_t rest = at;
  const std::int64_t column = coordinate(rest, p.columns), row = coordinate(rest, p.rows);
  const bool kept = kLower ? column <= row + p.diagonal : column >= row + p.diagonal;
  static_cast<T*>(p.y)[at] = kept ? static_cast<const T*>(p.x)[at] : T{};
}

inline void one_hot(const calls::OneHotCall& p, std::int64_t at) {
  if (*p.flag != 0) return;
  std::int64_t row = at;
  const std::int64_t c = coordinate(row, p.classes);
  p.y[at] = p.index[row] == c;
}

}  // namespace tt
