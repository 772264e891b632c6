// Positions in sorted lines, and sorting of rows.
namespace tt {

template <class A, class I>
void search_place(const calls::SearchCall& p, std::int64_t at) {
  const A* const line = static_cast<const A*>(p.sorted) + (p.width ? at / p.width * p.length : 0);
  const A value = static_cast<const A*>(p.values)[at];
  static_cast<I*>(p.places)[at] =
      static_cast<I>(s::sorted_place<A>(line, p.length, value, p.right));
}

// Merges two sorted runs of `width` rows: each row finds its position in the merged run. The first
// pass (p.from is null) reads the rows in their original order.
template <class A>
void rows_merge(const calls::RowsCall& p, std::int64_t at) {
  const auto row = [&](std::int64_t i) { return p.from ? p.from[i] : i; };
  const std::int64_t mine = row(at), pair = at / (2 * p.width) * (2 * p.width);
  const bool second = at - pair >= p.width;
  const std::int64_t begin = second ? pair : pair + p.width, most = begin + p.width;
  std::int64_t low = begin < p.n ? begin : p.n, high = most < p.n ? most : p.n;
  const std::int64_t first = low;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (s::row_before<A>(static_cast<const A*>(p.x), p.columns, row(middle), mine)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  p.to[(second ? at - p.width : at) + (low - first)] = mine;
}

}  // namespace tt
