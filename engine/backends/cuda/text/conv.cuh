// Convolutions as products of tiles. The elements of the tiles are located by index arithmetic, so
// the matrix of windows is never stored. cpu/conv.h describes the three passes.
namespace tt {

enum ConvPass { kConvOutput, kConvInput, kConvWeight };

struct ConvPlace {
  std::int64_t image, at[3];
};
// The image and the coordinates of pixel number n.
inline ConvPlace conv_place(const std::int64_t (&size)[3], std::int64_t n) {
  ConvPlace place;
#pragma unroll
  for (int d = 2; d >= 0; --d) place.at[d] = coordinate(n, size[d]);
  place.image = n;
  return place;
}
// The offset within a channel of the element that `tap` reads in the window `place`; negative if it
// is in the padding.
inline std::int64_t seen_by(const calls::ConvCall& p, const ConvPlace& place, std::int64_t tap) {
  std::int64_t offset = 0, step = 1;
  bool inside = true;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const std::int64_t k = coordinate(tap, p.kernel[d]);
    const std::int64_t at = place.at[d] * p.stride[d] - p.padding[d] + k * p.dilation[d];
    inside = inside && at >= 0 && at < p.in[d];
    offset += at * step;
    step *= p.in[d];
  }
  return inside ? offset : -1;
}
// The offset within a channel of y of the window that reads the element `place` by `tap`, or -1.
inline std::int64_t window_seeing(const calls::ConvCall& p, const ConvPlace& place,
                                  std::int64_t tap) {
  std::int64_t offset = 0, step = 1;
  bool inside = true;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const std::int64_t k = coordinate(tap, p.kernel[d]);
    const std::int64_t from = place.at[d] + p.padding[d] - k * p.dilation[d];
    const std::int64_t window = from < 0 ? 0 : over(from, p.stride[d]);
    inside = inside && from >= 0 && window * p.stride[d] == from && window < p.out[d];
    offset += window * step;
    step *= p.out[d];
  }
  return inside ? offset : -1;
}

// One block: a tile of the results of one group, over one slice of the sum.
template <class T, class A, int kPass>
void conv_tile(const calls::ConvCall& p) {
  __shared__ A as[16][65];
  __shared__ A bs[16][65];
  std::int64_t rest = blockIdx.x;
  const std::int64_t j0 = coordinate(rest, (p.columns + 63) / 64) * 64;
  const std::int64_t i0 = coordinate(rest, (p.rows + 63) / 64) * 64;
  const std::int64_t slice = coordinate(rest, p.slices), group = rest;
  const std::int64_t k0 = slice * p.slice;
  const std::int64_t depth = p.depth - k0 < p.slice ? p.depth - k0 : p.slice;
  const T *const x = static_cast<const T*>(p.x), *const w = static_cast<const T*>(p.weight),
          *const y = static_cast<const T*>(p.y);
  const std::int64_t in_area = p.in[0] * p.in[1] * p.in[2], out_area = p.out[0] * p.out[1] * p.out[2];
  const std::int64_t first_in = group * p.group_in, first_out = group * p.group_out;
  A acc[4][4] = {};
  const auto value = [](const T& v) { return s::to_compute<A>(v); };
  // The element in column `column` of row `row` (a tap and a channel) of the matrix of windows. The
  // windows are over x, or over y if the gradient of the input is computed.
  const auto seen = [&](std::int64_t row, std::int64_t column) {
    constexpr bool kOfY = kPass == kConvInput;
    const ConvPlace place = conv_place(kOfY ? p.in : p.out, column);
    const std::int64_t tap = coordinate(row, p.taps);
    const std::int64_t at = kOfY ? window_seeing(p, place, tap) : seen_by(p, place, tap);
    if (at < 0) return A(0);
    if constexpr (kOfY) {
      return value(y[(place.image * p.out_channels + first_out + row) * out_area + at]);
    } else {
      return value(x[(place.image * p.in_channels + first_in + row) * in_area + at]);
    }
  };
  if constexpr (kPass == kConvWeight) {
    tile_product<A, false, true>(
        acc, as, bs, p.rows - i0, p.columns - j0, depth,
        [&](std::int64_t m, std::int64_t k) {
          std::int64_t image = k0 + k;
          const std::int64_t pixel = coordinate(image, out_area);
          return value(y[(image * p.out_channels + first_out + i0 + m) * out_area + pixel]);
        },
        [&](std::int64_t k, std::int64_t n) { return seen(j0 + n, k0 + k); });
  } else {
    tile_product<A, false, false>(
        acc, as, bs, p.rows - i0, p.columns - j0, depth,
        [&](std::int64_t m, std::int64_t k) {
          if constexpr (kPass == kConvOutput) {
            return value(w[(first_out + i0 + m) * p.depth + k0 + k]);
          } else {
            std::int64_t channel = k0 + k;
            const std::int64_t tap = coordinate(channel, p.taps);
            return value(w[((first_out + channel) * p.group_in + i0 + m) * p.taps + tap]);
          }
        },
        [&](std::int64_t k, std::int64_t n) { return seen(k0 + k, j0 + n); });
  }
  const A* const bias = static_cast<const A*>(p.bias);
  each_of_tile(acc, p.rows - i0, p.columns - j0, [&](int i, int j, A sum) {
    const std::int64_t row = i0 + i;
    std::int64_t column = j0 + j;
    if constexpr (kPass == kConvWeight) {
      const std::int64_t size = p.groups * p.rows * p.columns;
      static_cast<A*>(p.result)[slice * size + (group * p.rows + row) * p.columns + column] = sum;
    } else {
      constexpr bool kOutput = kPass == kConvOutput;
      const std::int64_t channel = (kOutput ? first_out : first_in) + row;
      if (bias != nullptr) sum = s::Add()(sum, bias[channel]);
      const std::int64_t pixel = coordinate(column, kOutput ? out_area : in_area);
      const std::int64_t channels = kOutput ? p.out_channels : p.in_channels;
      static_cast<T*>(p.result)[(column * channels + channel) * (kOutput ? out_area : in_area) +
                                pixel] = s::from_compute<T>(sum);
    }
  });
}

// Adds the sums of the slices in order; x has the dimensions [slices][n].
template <class T, class A>
void slice_sums(const calls::ConvCall& p, std::int64_t at) {
  const A* const from = static_cast<const A*>(p.x);
  A total = from[at];
  for (std::int64_t i = 1; i < p.slices; ++i) total = s::Add()(total, from[i * p.n + at]);
  static_cast<T*>(p.result)[at] = s::from_compute<T>(total);
}

// ---------------------------------------------------------------- im2col and col2im

// im2col: y[channel, tap, window] from x[channel, pixel].
template <class T>
void image_columns(const calls::ConvCall& p, std::int64_t at) {
  std::int64_t rest = at;
  const std::int64_t area = p.out[0] * p.out[1] * p.out[2], window = coordinate(rest, area);
  const std::int64_t tap = coordinate(rest, p.taps);
  const std::int64_t from = seen_by(p, conv_place(p.out, window), tap);
  static_cast<T*>(p.result)[at] =
      from < 0 ? T{} : static_cast<const T*>(p.x)[rest * p.in[0] * p.in[1] * p.in[2] + from];
}
// col2im, the adjoint: for each pixel, the sum over all windows that read it, tap by tap.
template <class T, class A>
void columns_image(const calls::ConvCall& p, std::int64_t at) {
  const std::int64_t area = p.out[0] * p.out[1] * p.out[2];
  const ConvPlace place = conv_place(p.in, at);
  const T* const x = static_cast<const T*>(p.x) + place.image * p.taps * area;
  A total = 0;
  for (std::int64_t tap = 0; tap < p.taps; ++tap) {
    const std::int64_t window = window_seeing(p, place, tap);
    if (window >= 0) total = s::Add()(total, s::to_compute<A>(x[tap * area + window]));
  }
  static_cast<T*>(p.result)[at] = s::from_compute<T>(total);
}

}  // namespace tt
