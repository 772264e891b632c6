#include "clients/session/session.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "engine/autograd/snapshot/inventory.h"

namespace teletensor::client {

using core::MutexLock;

namespace {

// One object, because finding a variable of the thread costs a function call.
struct Modes {
  bool grad = true, inference = false;
};
constinit thread_local Modes t_modes;
core::DType g_default_dtype = core::DType::kF32;

// Maximum number of commands that have not run, while the daemon is short of memory.
constexpr std::uint64_t kShortAhead = 128;
}  // namespace

bool grad_mode() { return t_modes.grad; }
void set_grad_mode(bool on) { t_modes.grad = on; }
bool inference_mode() { return t_modes.inference; }
void set_inference_mode(bool on) { t_modes.inference = on; }
core::DType default_dtype() { return g_default_dtype; }
void set_default_dtype(core::DType dtype) { g_default_dtype = dtype; }

Session::Session(const SessionLimits& limits)
    : value_reads_(limits.frame.inline_bytes),
      graph_(ops::catalog(), nullptr),
      programs_(limits.most, *this, graph_, commands_),
      errors_(*this, graph_, stream_, value_reads_, commands_),
      forgets_(*this, commands_),
      commands_(limits, *this, graph_, stream_, recorder_, programs_.table(), errors_),
      names_(*this, graph_, commands_),
      stream_(limits, recorder_, [this] {
        if (stream_.held_releases().any()) tick();
      }) {
  graph_.largest_result = limits.quota;
  if (limits.meta) value_reads_.set_most(0);
}

namespace {

autograd::Call call_of(bool record, OpId op, std::span<const Var> arguments,
                       std::span<const std::uint32_t> counts, const core::Attributes& attributes) {
  autograd::Call call;
  call.op = op;
  call.record = record;
  call.default_dtype = g_default_dtype;
  call.arguments = arguments;
  call.counts = counts;
  call.attributes = &attributes;
  return call;
}

}  // namespace

namespace {

constexpr char kInferenceInplace[] =
    "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone "
    "to get a normal tensor before doing inplace update.";

}  // namespace

Status Session::usable(std::span<const Var> arguments, bool inplace) const {
  for (const Var& argument : arguments) {
    if (argument.is_tensor() && autograd::handle_of(argument).id == 0) return outside_its_vmap();
  }
  if (inplace && autograd::handle_of(arguments[0]).inference && !t_modes.inference) {
    return core::invalid(kInferenceInplace);
  }
  return {};
}

Status Session::follow_program(std::span<const Var> arguments, bool writes) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_tensor()) continue;
    TT_RETURN_IF_ERROR(before_use(autograd::handle_of(arguments[i]), writes && i == 0));
  }
  return {};
}

Status Session::apply(OpId op, std::span<const Var> arguments,
                      std::span<const std::uint32_t> counts, const core::Attributes& attributes,
                      Handles& results) {
  if (transforms::depth != 0) [[unlikely]] {
    Status status;
    if (transforms::apply(*this, {op, arguments, counts, attributes}, results, status)) {
      return status;
    }
  }
  TT_RETURN_IF_ERROR(usable(arguments, false));
  TT_RETURN_IF_ERROR(commands_.fits_frame(op, arguments, attributes));
  const ops::OpDef& def = catalog().at(op);
  const bool mutates = !def.mutates.empty();
  if (def.collective) [[unlikely]]
    commands_.mark_fragile();
  if (following) [[unlikely]]
    TT_RETURN_IF_ERROR(follow_program(arguments, mutates));
  if (mutates && watching) [[unlikely]] {
    for (const Var& each : arguments) {
      if (each.is_tensor()) TT_RETURN_IF_ERROR(before_write(autograd::handle_of(each)));
    }
  }
  // The tensors of refused instructions take memory of the daemon too, which the client must stop
  // creating in time: a session that creates too many ends.
  if (commands_.short_of_memory()) [[unlikely]] {
    TT_RETURN_IF_ERROR(block([&] {
      return stream_.over() || stream_.completed_upto() + kShortAhead >= commands_.last_seq();
    }));
  }
  if (errors_.any()) [[unlikely]]
    TT_RETURN_IF_ERROR(errors_.raise_shortage());
  TT_RETURN_IF_ERROR(commands_.ready(!mutates));
  commands_.begin();
  const Modes modes = t_modes;
  const autograd::Call call = call_of(modes.grad, op, arguments, counts, attributes);
  if (autograd::Tracer* trace = commands_.tracer()) [[unlikely]]
    trace->know(arguments);
  TT_RETURN_IF_ERROR(graph_.apply(call, results));
  // The results get their ids after the arguments were written, because handles in the frame are
  // counted back from the next id.
  const program::HandleId first = commands_.next_id();
  if (!mutates) {
    for (const HandleRef& h : results) commands_.give_id(*h);
  }
  commands_.issue(call, false, static_cast<std::uint32_t>(commands_.next_id() - first));
  if (results.size() == 1 && value_reads_.may_derive(op, results[0]->layout) &&
      !commands_.traced()) {
    Handle& h = *results[0];
    value_reads_.add(h, value_reads_.derived(*this, op, arguments, attributes, h.layout));
  }
  if (modes.inference && !mutates) {
    for (const HandleRef& h : results) h->inference = !h->is_view() || h->base->inference;
  } else if (!results.empty() && results[0]->is_view() && results[0]->base->inference) {
    for (const HandleRef& h : results) h->inference = true;
  }
  if (forgets_.any()) [[unlikely]]
    TT_RETURN_IF_ERROR(forgets_.flush());
  return {};
}

Status Session::apply_inplace(OpId op, std::span<const Var> arguments,
                              std::span<const std::uint32_t> counts,
                              const core::Attributes& attributes) {
  if (transforms::depth != 0) [[unlikely]] {
    Status status;
    if (transforms::apply_inplace(*this, {op, arguments, counts, attributes}, status)) {
      return status;
    }
  }
  TT_RETURN_IF_ERROR(usable(arguments, true));
  TT_RETURN_IF_ERROR(commands_.fits_frame(op, arguments, attributes));
  if (following) [[unlikely]]
    TT_RETURN_IF_ERROR(follow_program(arguments, true));
  if (watching) [[unlikely]]
    TT_RETURN_IF_ERROR(before_write(autograd::handle_of(arguments[0])));
  TT_RETURN_IF_ERROR(commands_.ready());
  commands_.begin();
  const autograd::Call call = call_of(t_modes.grad, op, arguments, counts, attributes);
  if (autograd::Tracer* trace = commands_.tracer()) [[unlikely]]
    trace->know(arguments);
  std::string known;
  if (value_reads_.may_derive(op, autograd::handle_of(arguments[0]).layout) &&
      !commands_.traced()) {
    known = value_reads_.derived_inplace(*this, op, arguments, attributes);
  }
  TT_RETURN_IF_ERROR(graph_.apply_inplace(call));
  commands_.issue(call, true, 0);
  value_reads_.add(autograd::handle_of(arguments[0]), known);
  if (forgets_.any()) [[unlikely]]
    TT_RETURN_IF_ERROR(forgets_.flush());
  return {};
}

core::Result<HandleRef> Session::constant(core::DType dtype, core::Device device,
                                          const core::Dims& shape, std::string bytes) {
  TT_RETURN_IF_ERROR(commands_.ready());
  HandleRef h = graph_.objects().adopt({dtype, device, core::Geometry(shape)}, nullptr);
  commands_.give_id(*h);
  value_reads_.add(*h, bytes);
  commands_.issue(program::Command(program::Constant{dtype, device, shape, std::move(bytes)}), 1);
  return h;
}

core::Result<HandleRef> Session::uploaded(std::uint64_t upload, core::DType dtype,
                                          core::Device device, const core::Dims& shape) {
  TT_RETURN_IF_ERROR(commands_.ready());
  HandleRef h = graph_.objects().adopt({dtype, device, core::Geometry(shape)}, nullptr);
  // A trace treats the tensor as an input from outside, because its contents are not part of the
  // program.
  std::unique_ptr<autograd::Tracer> trace = commands_.end_trace();
  commands_.give_id(*h);
  uploads_upto_ = std::max(uploads_upto_.load(), upload);
  commands_.mark_fragile();
  commands_.issue(program::Command(program::Uploaded{upload, dtype, device, shape}), 1);
  commands_.set_trace(std::move(trace));
  return h;
}

core::Result<std::vector<HandleRef>> Session::resume(std::uint64_t next_seq,
                                                     program::HandleId next_id,
                                                     std::uint64_t completed_upto,
                                                     const program::Inventory& inventory) {
  if (commands_.last_seq() != 0 || next_seq == 0 || next_id == 0) {
    return core::invalid("resume: the session has already issued commands");
  }
  auto handles = autograd::restore(graph_, inventory);
  if (!handles.ok()) return handles;
  // The inventory does not tell which of the tensors are published. Other sessions may write those.
  for (const HandleRef& h : *handles) h->cell->shared = true;
  names_.restore(inventory);
  commands_.start_at(next_seq, next_id, completed_upto, inventory.items.size());
  return handles;
}

Status Session::set_requires_grad(Handle& h, bool on) {
  if (h.id == 0) return outside_its_vmap();
  if (on && h.inference && !t_modes.inference) {
    return core::invalid(
        "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
  }
  if (watching) TT_RETURN_IF_ERROR(before_write(h));
  TT_RETURN_IF_ERROR(commands_.ready());
  if (autograd::Tracer* trace = commands_.tracer()) trace->know(h);
  TT_RETURN_IF_ERROR(graph_.tape().set_requires_grad(h, on));
  commands_.issue(
      program::Command(program::SetFlag{program::SetFlag::What::kRequiresGrad, h.id, on}), 0);
  return {};
}

Status Session::retain_grad(Handle& h) {
  if (h.id == 0) return outside_its_vmap();
  TT_RETURN_IF_ERROR(commands_.ready());
  if (autograd::Tracer* trace = commands_.tracer()) trace->know(h);
  TT_RETURN_IF_ERROR(graph_.tape().retain_grad(h));
  commands_.issue(
      program::Command(program::SetFlag{program::SetFlag::What::kRetainGrad, h.id, true}), 0);
  return {};
}

core::Result<autograd::Node*> Session::node_of(Handle& h) {
  autograd::Node* const before = h.node.get();
  auto node = graph_.tape().node_of(h);
  if (!node.ok() || *node == before || h.id == 0) return node;
  // The view's node was created again, and the daemon must do the same: a backward runs nodes in
  // the order of their creation, and names gradients in that order.
  if (h.retains) {
    TT_RETURN_IF_ERROR(retain_grad(h));
    return node;
  }
  TT_RETURN_IF_ERROR(commands_.ready());
  commands_.issue(program::Command(program::SetFlag{program::SetFlag::What::kNode, h.id}), 0);
  return node;
}

Status Session::register_hook(Handle& h, autograd::HookId hook) {
  TT_RETURN_IF_ERROR(node_of(h).status());
  return graph_.tape().register_hook(h, hook);
}

Status Session::assign_grad(Handle& h, Handle* grad) {
  // Refuses the use of an invalid view. A gradient that a backward retains is not affected.
  if (grad != nullptr && grad != &h) TT_RETURN_IF_ERROR(node_of(h).status());
  return set_grad(h, HandleRef(grad));
}

Status Session::set_grad(Handle& h, const HandleRef& grad) {
  TT_RETURN_IF_ERROR(nameable(graph_, h));
  if (grad) TT_RETURN_IF_ERROR(nameable(graph_, *grad));
  TT_RETURN_IF_ERROR(commands_.ready());
  if (autograd::Tracer* trace = commands_.tracer()) {
    trace->know(h);
    if (grad) trace->know(*grad);
  }
  TT_RETURN_IF_ERROR(h.set_grad(grad.get()));
  commands_.issue(program::Command(program::SetGrad{h.id, grad ? grad->id : 0}), 0);
  return {};
}

Status Session::set_data(Handle& h, Handle& other) {
  TT_RETURN_IF_ERROR(nameable(graph_, h));
  TT_RETURN_IF_ERROR(nameable(graph_, other));
  if (watching) TT_RETURN_IF_ERROR(before_write(h));
  TT_RETURN_IF_ERROR(commands_.ready());
  if (autograd::Tracer* trace = commands_.tracer()) {
    trace->know(h);
    trace->know(other);
  }
  // Refused by the client only, because the daemon learns later that a view was released.
  if (h.views > 0) return core::invalid("data: cannot be assigned while views of the tensor live");
  TT_RETURN_IF_ERROR(graph_.set_data(h, other));
  commands_.issue(program::Command(program::SetData{h.id, other.id}), 0);
  return {};
}

core::Result<std::uint64_t> Session::fetch(Handle& h, bool bulk) {
  if (h.id == 0) {
    return core::invalid(
        "vmap: It looks like you're calling .item() on a Tensor (or reading its values). We don't "
        "support vmap over calling .item() on a Tensor, please try to rewrite what you're doing "
        "with other operations.");
  }
  if (commands_.tracer() != nullptr) {
    const std::string line = here();
    return core::Result<std::uint64_t>(Status(
        core::Code::kFailedPrecondition,
        (line.empty() ? "" : line + ": ") +
            "a captured function cannot read a tensor's value on the way (.item(), .numpy(), "
            "bool(), "
            "print): return it, or use tensor operations (tt.where) or tt.jit.script instead"));
  }
  if (commands_.limits().meta) return no_data();
  if (following) TT_RETURN_IF_ERROR(before_use(h, false));
  {
    const AwaitsValue awaits;
    TT_RETURN_IF_ERROR(commands_.ready(true));
  }
  const std::uint64_t seq = commands_.last_seq() + 1;
  if (commands_.limits().keeps && !bulk) {
    MutexLock lock(stream_.mutex());
    stream_.received().fetches.expect(seq);
  }
  commands_.issue(program::Command(program::Fetch{h.id, bulk}), 0);
  return seq;
}

// ---------------------------------------------------------------- waiting

core::Result<wire::FetchedValue> Session::wait_fetched(std::uint64_t seq) {
  value_reads_.count_wait();
  const AwaitsValue awaits;
  const Status waited = block(
      [&] { return stream_.received().fetches.received(seq) || !stream_.lost_status().ok(); });
  MutexLock lock(stream_.mutex());
  if (!waited.ok()) {
    stream_.received().fetches.drop(seq);
    return waited;
  }
  if (std::optional<wire::FetchedValue> value = stream_.received().fetches.take(seq))
    return std::move(*value);
  return stream_.lost_status().ok()
             ? core::internal("the value of command " + std::to_string(seq) + " was read twice")
             : stream_.lost_status();
}

Status Session::synchronize() {
  const AwaitsValue awaits;
  if (errors_.unsettled()) TT_RETURN_IF_ERROR(errors_.settle());
  // Sends pending releases, so that memory of tensors that were deleted before synchronize() is
  // free after it.
  commands_.idle();
  const std::uint64_t upto = commands_.last_seq();
  value_reads_.count_wait();
  TT_RETURN_IF_ERROR(
      block([&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); }));
  MutexLock lock(stream_.mutex());
  return stream_.completed_upto() >= upto ? Status() : stream_.lost_status();
}

}  // namespace teletensor::client
