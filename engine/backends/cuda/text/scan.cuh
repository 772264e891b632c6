// Scans: one thread processes a line in order, as the CPU does, or a piece of a long line. For
// pieces, the total of each piece is computed first, then the total of all pieces before each, and
// then the elements.
namespace tt {

enum ScanKind { kScanSum, kScanReverseSum, kScanProduct, kScanMax, kScanMin, kScanLogSum };

// The result for the elements so far; for an extremum also its position.
template <class A, int kKind>
struct Running {
  static constexpr bool kFinds = kKind == kScanMax || kKind == kScanMin;
  A value = kKind == kScanProduct ? A(1) : A(0);
  std::int64_t best = -1;

  Running() {
    if constexpr (kKind == kScanLogSum) value = -A(__builtin_inf());
  }
  void take(A x, std::int64_t place) {
    if constexpr (kFinds) {
      const bool better = kKind == kScanMax ? x >= value : x <= value;
      if (best < 0 || x != x || (value == value && better)) {
        value = x;
        best = place;
      }
    } else if constexpr (kKind == kScanProduct) {
      value = s::Mul()(value, x);
    } else if constexpr (kKind == kScanLogSum) {
      if (x != x || value != value) {
        value = A(__builtin_nan(""));
      } else {
        const A most = value < x ? x : value, least = value < x ? value : x;
        value = std::isinf(most) ? most : most + s::log1p(s::exp(least - most));
      }
    } else {
      value = s::Add()(value, x);
    }
  }
};

// Piece `at % pieces` of line `at / pieces`; the dimensions are [before, length, step].
template <class T, class A, int kKind>
struct ScanPiece {
  std::int64_t first, from, end;
  ScanPiece(const calls::ScanCall& p, std::int64_t at) {
    const std::int64_t piece = coordinate(at, p.pieces), inner = coordinate(at, p.step);
    first = at * p.length * p.step + inner;
    from = piece * p.piece;
    end = from + p.piece < p.length ? from + p.piece : p.length;
  }
  // Calls f(position in memory) for each element, after `running` has taken the element.
  template <class F>
  void each(const calls::ScanCall& p, Running<A, kKind>& running, F&& f) const {
    const T* const x = static_cast<const T*>(p.x);
    for (std::int64_t i = from; i < end; ++i) {
      const std::int64_t at = first + (kKind == kScanReverseSum ? p.length - 1 - i : i) * p.step;
      running.take(s::to_compute<A>(x[at]), i);
      f(at);
    }
  }
};

template <class T, class A, int kKind>
void scan_line(const calls::ScanCall& p, std::int64_t at) {
  Running<A, kKind> running;
  if (p.pieces > 1) {
    running.value = static_cast<const A*>(p.totals)[at];
    if constexpr (Running<A, kKind>::kFinds) running.best = p.best[at];
  }
  ScanPiece<T, A, kKind>(p, at).each(p, running, [&](std::int64_t to) {
    if constexpr (Running<A, kKind>::kFinds) p.places[to] = running.best;
    static_cast<T*>(p.y)[to] = s::from_compute<T>(running.value);
  });
}

template <class T, class A, int kKind>
void scan_pieces(const calls::ScanCall& p, std::int64_t at) {
  Running<A, kKind> running;
  ScanPiece<T, A, kKind>(p, at).each(p, running, [](std::int64_t) {});
  static_cast<A*>(p.totals)[at] = running.value;
  if constexpr (Running<A, kKind>::kFinds) p.best[at] = running.best;
}

// Replaces the total of each piece of a line by the total of all pieces before it.
template <class A, int kKind>
void scan_carries(const calls::ScanCall& p, std::int64_t line) {
  A* const totals = static_cast<A*>(p.totals) + line * p.pieces;
  std::int64_t* const best = p.best + line * p.pieces;
  Running<A, kKind> running;
  for (std::int64_t i = 0; i < p.pieces; ++i) {
    const Running<A, kKind> before = running;
    if constexpr (Running<A, kKind>::kFinds) {
      running.take(totals[i], best[i]);
      best[i] = before.best;
    } else {
      running.take(totals[i], 0);
    }
    totals[i] = before.value;
  }
}

}  // namespace tt
