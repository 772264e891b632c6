// ctc_loss and its derivative: forward and backward sums over the alignments of each sample, in
// logarithms.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;

template <class T>
constexpr T kNever = -std::numeric_limits<T>::infinity();

template <class T>
T add_logs(T a, T b) {
  const T high = std::max(a, b);
  if (high == kNever<T>) return high;
  return high + std::log1p(std::exp(std::min(a, b) - high));
}

struct Lengths {
  std::int64_t time, states;  // the states are blank, label, blank, ..., label, blank
  const std::int64_t* labels;
};

// The checked operands; `first` is the index of log_probs.
class Problem {
 public:
  Problem(KernelCall& call, std::size_t first, Status& status)
      : shape_(call.in[first].geometry->shape),
        targets_(call, call.in[first + 1], true, status),
        inputs_(call, call.in[first + 2], true, status),
        sizes_(call, call.in[first + 3], true, status),
        blank_(call.attributes.integer(0)) {
    if (status.ok()) status = check(call, call.in[first + 1].geometry->shape);
  }
  std::int64_t times() const { return shape_[0]; }
  std::int64_t samples() const { return shape_[1]; }
  std::int64_t classes() const { return shape_[2]; }
  const Lengths& of(std::int64_t n) const { return samples_[static_cast<std::size_t>(n)]; }
  // The class that a state stands for: the blank or a label.
  std::int64_t label(const Lengths& l, std::int64_t state) const {
    return state % 2 == 0 ? blank_ : l.labels[state / 2];
  }
  // Returns true if a path may go from state - 2 directly to this state.
  bool skips(const Lengths& l, std::int64_t state) const {
    return state % 2 == 1 && state > 1 && l.labels[state / 2] != l.labels[state / 2 - 1];
  }
  // The number of elements in the largest table of a sample.
  std::int64_t room() const { return room_; }

 private:
  Status check(KernelCall& call, const Dims& targets) {
    const bool joined = targets.size() == 1;
    std::int64_t at = 0;
    const auto refuse = [&](const std::string& why, std::int64_t n, std::int64_t value) {
      return Status(core::Code::kInvalidArgument, std::string(call.op.name) + ": " + why + " " +
                                                      std::to_string(value) + " of sample " +
                                                      std::to_string(n));
    };
    for (std::int64_t n = 0; n < samples(); ++n) {
      const std::int64_t time = inputs_.memory()[n], size = sizes_.memory()[n];
      if (time < 0 || time > times()) return refuse("input_length out of range:", n, time);
      const std::int64_t most = joined ? targets[0] - at : targets[1];
      if (size < 0 || size > most) return refuse("target_length out of range:", n, size);
      const std::int64_t* labels = targets_.memory() + (joined ? at : n * targets[1]);
      for (std::int64_t i = 0; i < size; ++i) {
        if (labels[i] < 0 || labels[i] >= classes()) {
          return refuse("label out of range:", n, labels[i]);
        }
      }
      samples_.push_back({time, 2 * size + 1, labels});
      room_ = std::max(room_, std::max<std::int64_t>(time, 1) * (2 * size + 1));
      at += size;
    }
    return {};
  }

  const Dims shape_;
  const Dense<std::int64_t> targets_, inputs_, sizes_;
  const std::int64_t blank_;
  std::vector<Lengths> samples_;
  std::int64_t room_ = 1;
};

// alpha[t][s]: the logarithm of the sum over all partial paths that are in state s at time t.
template <class T>
T forward(const Problem& p, const Lengths& l, const T* x, std::int64_t step, T* alpha) {
  if (l.time == 0) return l.states == 1 ? T(0) : -kNever<T>;
  for (std::int64_t t = 0; t < l.time; ++t) {
    T* const now = alpha + t * l.states;
    const T* const before = now - l.states;
    for (std::int64_t s = 0; s < l.states; ++s) {
      T total;
      if (t == 0) {
        total = s < 2 ? T(0) : kNever<T>;
      } else {
        total = before[s];
        if (s > 0) total = add_logs(total, before[s - 1]);
        if (p.skips(l, s)) total = add_logs(total, before[s - 2]);
      }
      now[s] = total == kNever<T> ? total : total + x[t * step + p.label(l, s)];
    }
  }
  const T* const last = alpha + (l.time - 1) * l.states + l.states - 1;
  return -(l.states > 1 ? add_logs(last[0], last[-1]) : last[0]);
}

// Adds to `joint` the logarithm of the sum over all paths from state s at time t to the end.
// Afterwards it is the logarithm for all paths through (t, s), with the element at (t, s) counted
// twice.
template <class T>
void backward(const Problem& p, const Lengths& l, const T* x, std::int64_t step, T* joint,
              T* beta) {
  T *now = beta, *next = beta + l.states;
  for (std::int64_t t = l.time - 1; t >= 0; --t) {
    for (std::int64_t s = l.states - 1; s >= 0; --s) {
      T total;
      if (t == l.time - 1) {
        total = s + 2 >= l.states ? T(0) : kNever<T>;
      } else {
        total = next[s];
        if (s + 1 < l.states) total = add_logs(total, next[s + 1]);
        if (s + 2 < l.states && p.skips(l, s + 2)) total = add_logs(total, next[s + 2]);
      }
      now[s] = total == kNever<T> ? total : total + x[t * step + p.label(l, s)];
      T& j = joint[t * l.states + s];
      j = j == kNever<T> || now[s] == kNever<T> ? kNever<T> : j + now[s];
    }
    std::swap(now, next);
  }
}

double work(const Problem& p) {
  return 30.0 * static_cast<double>(p.samples()) * static_cast<double>(p.room());
}

template <class T>
T* rooms(KernelCall& call, std::int64_t parts, std::int64_t each, Status& status) {
  const std::size_t bytes = scratch_bytes(parts, each, sizeof(T));
  void* const memory = call.scratch.allocate(bytes);
  if (!memory) status = out_of_scratch(call.op.name, bytes);
  return static_cast<T*>(memory);
}

Status ctc_loss(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  return with_float_type(call.out[0].dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> x(call, call.in[0], true, status), loss(call, call.out[0], false, status);
    TT_RETURN_IF_ERROR(status);
    const Problem p(call, 0, status);
    TT_RETURN_IF_ERROR(status);
    const std::int64_t parts = parts_of(work(p), p.samples());
    T* const room = rooms<T>(call, parts, p.room(), status);
    TT_RETURN_IF_ERROR(status);
    share(call.parallel, p.samples(), parts, [&](std::int64_t n, std::int64_t part) {
      loss.memory()[n] = forward(p, p.of(n), x.memory() + n * p.classes(),
                                 p.samples() * p.classes(), room + part * p.room());
    });
    loss.store();
    return {};
  });
}

Status ctc_loss_backward(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  return with_float_type(call.out[0].dtype, [&](auto a) -> Status {
    using T = decltype(a);
    Status status;
    const Dense<T> g(call, call.in[0], true, status), x(call, call.in[1], true, status),
        dx(call, call.out[0], false, status);
    TT_RETURN_IF_ERROR(status);
    const Problem p(call, 1, status);
    TT_RETURN_IF_ERROR(status);
    const std::int64_t parts = parts_of(2 * work(p), p.samples());
    const std::int64_t each = 3 * p.room() + p.classes(), step = p.samples() * p.classes();
    T* const room = rooms<T>(call, parts, each, status);
    TT_RETURN_IF_ERROR(status);
    share(call.parallel, p.samples(), parts, [&](std::int64_t n, std::int64_t part) {
      const Lengths& l = p.of(n);
      T *const joint = room + part * each, *const beta = joint + p.room(),
               *const sums = beta + 2 * p.room();
      const T* const from = x.memory() + n * p.classes();
      T* const to = dx.memory() + n * p.classes();
      const T gradient = g.memory()[n];
      const T loss = forward(p, l, from, step, joint);
      if (l.time > 0) backward(p, l, from, step, joint, beta);
      for (std::int64_t t = 0; t < p.times(); ++t) {
        T* const row = to + t * step;
        if (t >= l.time || gradient == 0) {
          std::fill_n(row, p.classes(), T(0));
          continue;
        }
        std::fill_n(sums, p.classes(), kNever<T>);
        for (std::int64_t s = 0; s < l.states; ++s) {
          T& sum = sums[p.label(l, s)];
          sum = add_logs(sum, joint[t * l.states + s]);
        }
        for (std::int64_t c = 0; c < p.classes(); ++c) {
          const T probability = from[t * step + c];
          row[c] = (std::exp(probability) - std::exp(sums[c] + loss - probability)) * gradient;
        }
      }
    });
    dx.store();
    return {};
  });
}

}  // namespace

void add_ctc_kernels(KernelTable& table) {
  table.add("ctc_loss", ctc_loss);
  table.add("ctc_loss_backward", ctc_loss_backward);
}

}  // namespace teletensor::backends::cpu
