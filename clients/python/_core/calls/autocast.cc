#include "calls/autocast.h"

#include <array>
#include <unordered_map>

namespace teletensor::client {
namespace {

using core::DType;

enum class Policy : std::uint8_t { kNone, kLower, kF32, kWidest };

// The policy of each operator by id: [0] on a CPU, [1] on other devices. Written once, at import.
std::vector<std::array<Policy, 2>> g_policies;

struct State {
  bool enabled[2] = {false, false};
  DType lower[2] = {DType::kBF16, DType::kF16};
  bool cache = true;
  int depth = 0;  // Number of nested regions. Casts are cached until the outermost region ends.
  // The cast of a leaf: a weight is cast once, however often it is used. The session is destroyed
  // last.
  struct Cast {
    nb::object session;
    Var leaf, result;
  };
  std::unordered_map<const void*, Cast> casts;
};
// Never destroyed, because a thread may end without the GIL.
State& state() {
  thread_local State* own = new State();
  return *own;
}

struct Region {
  std::size_t where;
  bool enabled;
  DType lower;
  // Whether casts are cached. None means the same as outside the region.
  std::optional<bool> cache;
  struct Outer {
    bool enabled;
    DType lower;
    bool cache;
  };
  std::vector<Outer> outer;

  void enter() {
    State& own = state();
    outer.push_back({own.enabled[where], own.lower[where], own.cache});
    own.enabled[where] = enabled;
    own.lower[where] = lower;
    own.cache = cache.value_or(own.cache);
    ++own.depth;
  }
  void leave() {
    if (outer.empty()) throw nb::value_error("a scope is left that was not entered");
    State& own = state();
    own.enabled[where] = outer.back().enabled;
    own.lower[where] = outer.back().lower;
    own.cache = outer.back().cache;
    outer.pop_back();
    if (--own.depth == 0) std::exchange(own.casts, {}).clear();
  }
};

// The simulated device is treated like a CPU.
std::size_t place(const Var& var) {
  return var.layout().device.kind == core::DeviceKind::kCuda ? 1 : 0;
}

bool castable(const Var& var) {
  return var.is_tensor() && core::is_floating(var.dtype()) && var.dtype() != DType::kF64;
}

Status cast_to(PySession& session, DType dtype, Var& var) {
  static const ops::OpRef op("cast");
  if (var.dtype() == dtype) return {};
  State& own = state();
  auto& handle = static_cast<autograd::Handle&>(*var.named());
  // A weight that requires a gradient, whose cast is kept so that the gradient reaches it.
  const bool keep = own.cache && own.depth > 0 && dtype != DType::kF32 &&
                    var.dtype() == DType::kF32 && handle.flag && grad_mode();
  if (keep) {
    const auto known = own.casts.find(&handle);
    if (known != own.casts.end()) {
      var = known->second.result;
      return {};
    }
  }
  core::Attributes attributes;
  attributes.push_back(core::Attribute::of(dtype));
  Handles results;
  const Var argument = var;
  TT_RETURN_IF_ERROR(session.apply(op, {&argument, 1}, {}, attributes, results));
  var = Var(&session, results[0]);
  if (keep) own.casts.emplace(&handle, State::Cast{nb::borrow(session.self), argument, var});
  return {};
}

}  // namespace

bool autocasting() {
  const State& own = state();
  return own.enabled[0] || own.enabled[1];
}

std::string_view autocast_key() {
  if (!autocasting()) return {};
  static thread_local std::string key;
  key.clear();
  const State& own = state();
  for (const std::size_t where : {0, 1}) {
    key.push_back(own.enabled[where] ? static_cast<char>(own.lower[where]) : '\xff');
  }
  return key;
}

Status autocast(PySession& session, OpId id, Arguments& arguments) {
  if (id >= g_policies.size()) return {};
  std::size_t where = 2;
  DType widest = DType::kF16;
  for (const Var& var : arguments) {
    if (!var.is_tensor()) continue;
    if (is_meta(var.layout().device)) return {};
    if (where == 2) where = place(var);
    if (var.dtype() == DType::kF32) widest = DType::kF32;
  }
  if (where == 2 || !state().enabled[where]) return {};
  const Policy policy = g_policies[id][where];
  if (policy == Policy::kNone) return {};
  const DType lower = state().lower[where];
  if (policy == Policy::kWidest && widest != DType::kF32) return {};
  const DType dtype = policy == Policy::kLower ? lower : DType::kF32;
  for (Var& var : arguments) {
    if (castable(var)) TT_RETURN_IF_ERROR(cast_to(session, dtype, var));
  }
  return {};
}

void bind_autocast(nb::module_& m) {
  // Names that are not operators are ignored: composed functions call operators that have a policy.
  m.def("set_autocast_policies",
        [](int where, const std::vector<std::string>& lower, const std::vector<std::string>& f32,
           const std::vector<std::string>& widest) {
          g_policies.resize(ops::catalog().size());
          const auto fill = [&](const std::vector<std::string>& names, Policy policy) {
            for (const std::string& name : names) {
              const ops::OpDef* op = ops::catalog().find(name);
              if (op) g_policies[ops::catalog().id(*op)][where ? 1 : 0] = policy;
            }
          };
          fill(lower, Policy::kLower);
          fill(f32, Policy::kF32);
          fill(widest, Policy::kWidest);
        });
  m.def("autocast_state", [](int where) {
    const std::size_t i = where ? 1 : 0;
    return std::make_tuple(state().enabled[i], nb::steal(wrap_dtype(state().lower[i])),
                           state().cache);
  });
  nb::class_<Region>(m, "AutocastScope", "A region of autocast in this thread.")
      .def(
          "__init__",
          [](Region* self, int where, bool enabled, nb::handle dtype, std::optional<bool> cache) {
            const auto lower = dtype_of(dtype.ptr());
            if (!lower) throw nb::type_error("AutocastScope: expected a dtype");
            new (self) Region{where ? 1u : 0u, enabled, *lower, cache, {}};
          },
          nb::arg("where"), nb::arg("enabled"), nb::arg("dtype"), nb::arg("cache").none())
      .def("__enter__",
           [](nb::pointer_and_handle<Region> self) {
             self.p->enter();
             return nb::borrow(self.h);
           })
      .def(
          "__exit__", [](Region& self, nb::handle, nb::handle, nb::handle) { self.leave(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("trace").none());
  m.def("clear_autocast_cache", [] { state().casts.clear(); });
}

}  // namespace teletensor::client
