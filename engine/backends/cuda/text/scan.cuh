// Scans: a thread goes along a line, as the CPU does.
namespace tt {

enum ScanKind { kScanSum, kScanReverseSum, kScanProduct, kScanMax, kScanMin };

// Of [before, length, step].
template <class T, class A, int kKind>
void scan_line(const calls::ScanCall& p, std::int64_t line) {
  std::int64_t before = line;
  const std::int64_t inner = coordinate(before, p.step);
  const std::int64_t first = before * p.length * p.step + inner;
  const T* const x = static_cast<const T*>(p.x);
  T* const y = static_cast<T*>(p.y);
  A running = kKind == kScanProduct ? A(1) : A(0);
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < p.length; ++i) {
    const std::int64_t at = first + (kKind == kScanReverseSum ? p.length - 1 - i : i) * p.step;
    const A value = s::to_compute<A>(x[at]);
    if constexpr (kKind == kScanMax || kKind == kScanMin) {
      const bool better = kKind == kScanMax ? value >= running : value <= running;
      if (i == 0 || value != value || (running == running && better)) {
        running = value;
        best = i;
      }
      p.places[at] = best;
    } else if constexpr (kKind == kScanProduct) {
      running = s::Mul()(running, value);
    } else {
      running = s::Add()(running, value);
    }
    y[at] = s::from_compute<T>(running);
  }
}

}  // namespace tt
