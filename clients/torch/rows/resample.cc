// Resampling: to another size, and at the places of a grid.

#include <array>
#include <optional>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::Number;

// ---- To another size, one dimension after the other

struct Resampling {
  std::string_view mode;
  bool aligned = false, smooth = false;  // align_corners, antialias
};
Resampling resampling_of(const Call& c) {
  const std::string_view name = c.name();
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  Resampling how;
  how.mode = has("nearest_exact") ? "nearest-exact"
             : has("nearest")     ? "nearest"
             : has("cubic")       ? "cubic"
                                  : "linear";
  how.aligned = c.flag("align_corners");
  how.smooth = has("_aa");
  return how;
}
// The scale of spatial dimension i of n, where the caller has given one.
std::optional<double> scale_of(const Call& c, int i, int n) {
  constexpr std::array kNames{"scales_d", "scales_h", "scales_w"};
  const std::string_view name = n == 1 ? "scales" : kNames[static_cast<std::size_t>(3 - n + i)];
  if (c.absent(name)) return std::nullopt;
  return c.real(name);
}
Attributes resample_attributes(const Call& c, const Resampling& how, int i, int n,
                               std::int64_t size) {
  const auto scale = scale_of(c, i, n);
  return {Attribute::of(i + 2),      Attribute::of(size),
          Attribute::of(how.mode),   Attribute::of(how.aligned),
          Attribute::of(how.smooth), scale ? Attribute::of(*scale) : Attribute::none()};
}
bool keeps(const Call& c, int i, int n, std::int64_t from, std::int64_t to) {
  return from == to && scale_of(c, i, n).value_or(1) == 1;
}
// The dtype to compute in: sums of halves are rounded once, at the end.
DType working(const Resampling& how, DType dtype) {
  return is_half(dtype) && !how.mode.starts_with("nearest") ? DType::kF32 : dtype;
}

void upsample(Call& c) {
  const Var x = c.var("self");
  const Dims sizes = c.ints("output_size");
  const Resampling how = resampling_of(c);
  const int n = sizes.size();
  if (x.absent()) return;
  if (x.rank() != n + 2) return c.fail(core::unimplemented("an input of this rank"));
  if (!core::is_floating(x.dtype()) && !how.mode.starts_with("nearest")) {
    return c.fail(core::unimplemented("interpolation of integers"));
  }
  Var y = ops::cast(x, working(how, x.dtype()));
  bool same = true;
  for (int i = n - 1; i >= 0; --i) {
    if (keeps(c, i, n, x.shape()[i + 2], sizes[i])) continue;
    y = made("resample", {y}, resample_attributes(c, how, i, n, sizes[i]));
    same = false;
  }
  c.give(same ? ops::unary("clone", x) : ops::cast(y, x.dtype()));
}
void upsample_backward(Call& c) {
  const Var g = c.var("grad_output");
  const Dims sizes = c.ints("output_size"), input = c.ints("input_size");
  const Resampling how = resampling_of(c);
  const int n = sizes.size();
  if (g.absent()) return;
  if (g.rank() != n + 2 || input.size() != n + 2) {
    return c.fail(core::unimplemented("an input of this rank"));
  }
  Var dx = ops::cast(g, working(how, g.dtype()));
  bool same = true;
  for (int i = 0; i < n; ++i) {
    if (keeps(c, i, n, input[i + 2], sizes[i])) continue;
    dx = made("resample_backward", {dx}, resample_attributes(c, how, i, n, input[i + 2]));
    same = false;
  }
  c.give(same ? ops::unary("clone", g) : ops::cast(dx, g.dtype()));
}

// ---- At the places of a grid: sums of taps, each an element of the input times a weight

enum Interpolation { kLinear = 0, kNearest = 1, kCubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

// A position along one dimension, and its derivative by the grid's coordinate.
struct Position {
  Var place, slope;
};
// One of the elements that a position is interpolated from: its index (an integer in the input's
// dtype), its weight, and the derivative of that by the grid's coordinate. A tap of the mode
// "nearest" has neither.
struct Tap {
  Var index, weight, slope;
};

Position reflected(const Position& at, double low, double span) {
  if (span == 0) return {at.place * 0.0, at.slope * 0.0};
  const Var off = at.place - low;
  const Var distance = ops::unary("abs", off);
  const Var extra = ops::binary("fmod", distance, span);
  const Var flips = ops::unary("floor", distance * (1 / span));
  const Var even = equal_to(ops::binary("remainder", flips, 2.0), 0);
  const Var turn = ops::where(ops::binary("lt", off, 0), -at.slope, at.slope);
  return {ops::where(even, extra + low, (extra - span) * -1.0 + low),
          ops::where(even, turn, -turn)};
}
Position bounded(const Position& at, std::int64_t size, int padding, bool aligned) {
  if (padding == kZeros) return at;
  const double last = static_cast<double>(size - 1);
  Position found = at;
  if (padding == kReflection) {
    found = aligned ? reflected(at, 0, last) : reflected(at, -0.5, last + 1);
  }
  const Var inside =
      both(ops::binary("gt", found.place, 0.0), ops::binary("lt", found.place, last));
  return {clamped(found.place, 0.0, last), ops::where(inside, found.slope, 0)};
}

class GridSampler {
 public:
  GridSampler(Call& call, const Var& input, const Var& grid)
      : c_(call), input_(input), grid_(grid), n_(input.rank() - 2) {}

  bool fits() {
    mode_ = static_cast<int>(c_.integer("interpolation_mode"));
    const bool whole = n_ >= 2 && n_ <= 3 && grid_.rank() == n_ + 2 && size_of(grid_, -1) == n_ &&
                       grid_.dtype() == input_.dtype() && size_of(grid_, 0) == size_of(input_, 0) &&
                       input_.layout().geometry.numel() > 0 && grid_.layout().geometry.numel() > 0;
    if (!whole || (mode_ == kCubic && n_ != 2)) c_.fail(core::unimplemented("this grid"));
    return c_.session.status().ok();
  }

  void prepare() {
    batch_ = input_.shape()[0], channels_ = input_.shape()[1], area_ = 1;
    for (int d = 0; d < n_; ++d) area_ *= input_.shape()[d + 2];
    points_ = grid_.layout().geometry.numel() / (batch_ * n_);
    const Dims plane{batch_, points_};
    for (int d = 0; d < n_; ++d) {
      const Var x = ops::reshape(select(grid_, -1, n_ - 1 - d), plane);
      taps_.push_back(taps_of(x, input_.shape()[d + 2]));
    }
  }

  // Calls `each` with the taps of every combination of dimensions.
  template <class Each>
  void corners(Each each) {
    std::vector<std::size_t> at(static_cast<std::size_t>(n_), 0);
    for (;;) {
      std::vector<const Tap*> corner;
      for (std::size_t d = 0; d < at.size(); ++d) corner.push_back(&taps_[d][at[d]]);
      each(corner);
      std::size_t d = 0;
      while (d < at.size() && ++at[d] == taps_[d].size()) at[d++] = 0;
      if (d == at.size()) return;
    }
  }

  // The channels of each element as a row, and a row of zeros: [N * area + 1, C].
  Var rows() {
    const Var lines =
        ops::reshape(ops::transpose(ops::reshape(input_, Dims{batch_, channels_, area_}), 1, 2),
                     Dims{batch_ * area_, channels_});
    return cat({lines, filled(c_, Dims{1, channels_}, Number::of_int(0), input_.dtype())}, 0);
  }
  // The row of a corner for each point, [N * points]; that of zeros outside of the input.
  Var places(const std::vector<const Tap*>& corner) {
    Var inside, index;
    for (int d = 0; d < n_; ++d) {
      const Var& at = corner[static_cast<std::size_t>(d)]->index;
      const double size = static_cast<double>(input_.shape()[d + 2]);
      const Var fits = both(ops::binary("ge", at, 0.0), ops::binary("lt", at, size));
      const Var whole = ops::cast(ops::where(fits, at, 0), DType::kI64);
      inside = d == 0 ? fits : both(inside, fits);
      index = d == 0 ? whole : index * static_cast<int>(size) + whole;
    }
    const Var first = ops::reshape(range(c_, batch_), Dims{batch_, 1}) * Number::of_int(area_);
    return flat(ops::where(inside, index + first, Number::of_int(batch_ * area_)));
  }
  // The product of the weights, [N * points, 1]; for dimension `by` the derivative instead.
  // Absent where there are no weights.
  Var weight(const std::vector<const Tap*>& corner, int by = -1) {
    Var product;
    for (int d = 0; d < n_; ++d) {
      const Tap& tap = *corner[static_cast<std::size_t>(d)];
      const Var& factor = d == by ? tap.slope : tap.weight;
      if (factor.absent()) return {};
      product = d == 0 ? factor : product * factor;
    }
    return ops::reshape(product, Dims{batch_ * points_, 1});
  }

  // Rows at points as [N, C, ...], and back.
  Var as_channels(const Var& found) {
    Dims shape{batch_, channels_};
    for (int d = 0; d < n_; ++d) shape.push_back(grid_.shape()[d + 1]);
    return ops::reshape(ops::transpose(ops::reshape(found, Dims{batch_, points_, channels_}), 1, 2),
                        shape);
  }
  Var as_rows(const Var& g) {
    return ops::reshape(ops::transpose(ops::reshape(g, Dims{batch_, channels_, points_}), 1, 2),
                        Dims{batch_ * points_, channels_});
  }
  Var as_input(const Var& summed) {
    return ops::reshape(ops::transpose(ops::reshape(slice(summed, 0, 0, batch_ * area_),
                                                    Dims{batch_, area_, channels_}),
                                       1, 2),
                        input_.shape());
  }
  int spatial() const { return n_; }

 private:
  std::vector<Tap> taps_of(const Var& x, std::int64_t size) {
    const bool aligned = c_.flag("align_corners");
    const int padding = static_cast<int>(c_.integer("padding_mode"));
    const double scale = static_cast<double>(aligned ? size - 1 : size) / 2;
    // Where 1 element has the aligned places, the scale is 0; its slope must have a shape still.
    Position at{(x + 1.0) * scale - (aligned ? 0.0 : 0.5),
                filled(c_, x.shape(), Number::of_float(scale), x.dtype())};
    if (mode_ != kCubic) at = bounded(at, size, padding, aligned);
    if (mode_ == kNearest) return {{ops::unary("round", at.place), {}, {}}};
    const Var low = ops::unary("floor", at.place), t = at.place - low;
    if (mode_ == kLinear) {
      return {{low, t * -1.0 + 1.0, -at.slope}, {low + 1.0, t, at.slope}};
    }
    std::vector<Tap> taps;
    for (int i = 0; i < 4; ++i) {
      const Position tap =
          bounded({low + static_cast<double>(i - 1), at.slope}, size, padding, aligned);
      const auto [weight, slope] = cubic(t, i);
      taps.push_back({ops::unary("floor", tap.place), weight, slope * at.slope});
    }
    return taps;
  }
  // The weight of tap i of 4 at t in [0, 1), and its derivative (Keys 1981, a = -0.75).
  static std::pair<Var, Var> cubic(const Var& t, int i) {
    constexpr double a = -0.75;
    const bool near = i == 1 || i == 2;
    const double sign = i < 2 ? 1 : -1;
    const double offset = i == 0 ? 1 : i == 1 ? 0 : i == 2 ? 1 : 2;
    const Var x = t * sign + offset;  // the distance from the tap
    if (near) {
      return {(x * (a + 2) - (a + 3)) * x * x + 1.0, (x * (3 * (a + 2)) - 2 * (a + 3)) * x * sign};
    }
    return {((x * a - 5 * a) * x + 8 * a) * x - 4 * a, ((x * (3 * a) - 10 * a) * x + 8 * a) * sign};
  }

  Call& c_;
  const Var input_, grid_;
  const int n_;
  int mode_ = 0;
  std::int64_t batch_ = 0, channels_ = 0, area_ = 0, points_ = 0;
  std::vector<std::vector<Tap>> taps_;
};

void grid_sampler(Call& c) {
  const Var input = c.var("input"), grid = c.var("grid");
  if (input.absent() || grid.absent()) return;
  GridSampler sampler(c, input, grid);
  if (!sampler.fits()) return;
  sampler.prepare();
  const Var rows = sampler.rows();
  Var total;
  sampler.corners([&](const auto& corner) {
    const Var found = rows_at(rows, sampler.places(corner)), weight = sampler.weight(corner);
    const Var term = weight.absent() ? found : found * weight;
    total = total.absent() ? term : total + term;
  });
  c.give(sampler.as_channels(total));
}

void grid_sampler_backward(Call& c) {
  const Var input = c.var("input"), grid = c.var("grid"), given = c.var("grad_output");
  if (input.absent() || grid.absent() || given.absent()) return;
  GridSampler sampler(c, input, grid);
  if (!sampler.fits()) return;
  sampler.prepare();
  const Var rows = sampler.rows(), g = sampler.as_rows(given);
  Var dinput = rows.absent() ? Var() : ops::zeros(c.session, rows.layout());
  std::vector<Var> dplaces(static_cast<std::size_t>(sampler.spatial()));
  sampler.corners([&](const auto& corner) {
    const Var places = sampler.places(corner);
    if (c.wanted(0)) {
      const Var weight = sampler.weight(corner);
      dinput =
          made("index_add", {dinput, places, weight.absent() ? g : g * weight}, {Attribute::of(0)});
    }
    if (!c.wanted(1)) return;
    const Var product =
        made("sum", {rows_at(rows, places) * g}, {Attribute::of(Dims{1}), Attribute::of(true)});
    for (int d = 0; d < sampler.spatial(); ++d) {
      const Var slope = sampler.weight(corner, d);
      if (slope.absent()) continue;  // the mode "nearest"
      Var& sum = dplaces[static_cast<std::size_t>(d)];
      sum = sum.absent() ? product * slope : sum + product * slope;
    }
  });
  c.wanted(0) ? c.give(sampler.as_input(dinput)) : c.give_nothing();
  if (!c.wanted(1)) return c.give_nothing();
  if (dplaces[0].absent()) return c.give(ops::zeros(c.session, grid.layout()));
  const Var dgrid = sampler.spatial() == 2 ? cat({dplaces[1], dplaces[0]}, 1)
                                           : cat({dplaces[2], dplaces[1], dplaces[0]}, 1);
  c.give(ops::reshape(dgrid, grid.shape()));
}

constexpr Row kResampleRows[] = {
    {"upsample_nearest1d _upsample_nearest_exact1d", "(self, output_size, scales)", upsample},
    {"upsample_nearest2d _upsample_nearest_exact2d", "(self, output_size, scales_h, scales_w)",
     upsample},
    {"upsample_nearest3d _upsample_nearest_exact3d",
     "(self, output_size, scales_d, scales_h, scales_w)", upsample},
    {"upsample_linear1d", "(self, output_size, align_corners, scales)", upsample},
    {"upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
     "(self, output_size, align_corners, scales_h, scales_w)", upsample},
    {"upsample_trilinear3d", "(self, output_size, align_corners, scales_d, scales_h, scales_w)",
     upsample},
    {"upsample_nearest1d_backward _upsample_nearest_exact1d_backward",
     "(grad_output, output_size, input_size, scales)", upsample_backward},
    {"upsample_nearest2d_backward _upsample_nearest_exact2d_backward",
     "(grad_output, output_size, input_size, scales_h, scales_w)", upsample_backward},
    {"upsample_nearest3d_backward _upsample_nearest_exact3d_backward",
     "(grad_output, output_size, input_size, scales_d, scales_h, scales_w)", upsample_backward},
    {"upsample_linear1d_backward", "(grad_output, output_size, input_size, align_corners, scales)",
     upsample_backward},
    {"upsample_bilinear2d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward "
     "_upsample_bicubic2d_aa_backward",
     "(grad_output, output_size, input_size, align_corners, scales_h, scales_w)",
     upsample_backward},
    {"upsample_trilinear3d_backward",
     "(grad_output, output_size, input_size, align_corners, scales_d, scales_h, scales_w)",
     upsample_backward},
    {"grid_sampler_2d grid_sampler_3d",
     "(input, grid, interpolation_mode, padding_mode, align_corners)", grid_sampler},
    {"grid_sampler_2d_backward grid_sampler_3d_backward",
     "(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)",
     grid_sampler_backward},
};

}  // namespace

std::span<const Row> resample_rows() { return kResampleRows; }

}  // namespace teletensor::torch
