#include "clients/session/session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "clients/session/error_text.h"

namespace teletensor::client {

using core::MutexLock;

namespace {

// One object, because finding a variable of the thread costs a function call.
struct Modes {
  bool grad = true, inference = false;
};
constinit thread_local Modes t_modes;
thread_local int t_awaits_value = 0;
core::DType g_default_dtype = core::DType::kF32;

// Items of a command that are reserved for counts and single numbers.
constexpr std::size_t kOtherItems = 64;
// Number of releases that are collected before they are sent.
constexpr std::size_t kReleaseBatch = 8;
// Number of commands after an out-of-memory error for which releases are sent at once.
constexpr std::uint64_t kShort = 4096;
// Maximum number of these commands that have not run.
constexpr std::uint64_t kShortAhead = 128;
// Number of commands after one that failed for lack of memory at which the next operation raises
// the error, although nothing was read.
constexpr std::uint64_t kUnraised = 1024;

// Raises the oldest pending error if a command failed for lack of memory more than `most` commands
// before the last one. The oldest error need not be the error of that command, whose turn comes at
// the next call.
Status raise_shortage(Session& session, std::uint64_t most) {
  std::uint64_t root = 0;
  {
    MutexLock lock(session.stream().mutex());
    root = session.stream().received().errors.first_shortage();
  }
  if (root == 0 || session.last_seq() <= root + most) return {};
  const LateError error = session.raise_pending();
  return error.status.ok() ? Status() : Status(error.status.code(), explained(session, error));
}

}  // namespace

Status nameable(const autograd::Graph& graph, const Handle& h) {
  if (h.id == 0) return outside_its_vmap();
  if (h.objects() == &graph.objects()) return {};
  if (h.layout.device.kind == core::DeviceKind::kMeta) return no_data();
  return core::invalid(
      "a tensor of another session cannot be used here; copy it into this session: with "
      "session.as_current(): y = teletensor.tensor(x.numpy())");
}

AwaitsValue::AwaitsValue() { ++t_awaits_value; }
AwaitsValue::~AwaitsValue() { --t_awaits_value; }

bool grad_mode() { return t_modes.grad; }
void set_grad_mode(bool on) { t_modes.grad = on; }
bool inference_mode() { return t_modes.inference; }
void set_inference_mode(bool on) { t_modes.inference = on; }
core::DType default_dtype() { return g_default_dtype; }
void set_default_dtype(core::DType dtype) { g_default_dtype = dtype; }

Session::Session(const SessionLimits& limits)
    : value_reads_(limits.frame.inline_bytes),
      graph_(ops::catalog(), nullptr),
      limits_(limits),
      programs_(limits.most),
      stream_(limits, recorder_, [this] {
        if (stream_.holds_releases()) tick();
      }) {
  graph_.largest_result = limits.quota;
  if (limits.meta) value_reads_.set_most(0);
  graph_.objects().on_death = [this](program::HandleId id) {
    releases_.push_back(id);
    stream_.hold_releases();
    if (tracer_) tracer_->died(id);
  };
}

Session::~Session() {
  tracer_ = nullptr;
  graph_.objects().on_death = nullptr;
}

// ---------------------------------------------------------------- issuing

Status Session::ready_to_issue(bool reads) {
  if (stream_.origin().is_parents()) [[unlikely]]
    return stream_.origin().check();
  if (!frozen_.ok() && !reads) [[unlikely]]
    return frozen_;
  if (unsettled()) TT_RETURN_IF_ERROR(settle());
  const std::uint64_t completed = stream_.completed_upto();
  if (completed > trimmed_ + 256 && !stream_.received().errors.any()) {
    graph_.undo().completed(trimmed_ = completed);
  }
  if (short_of_room() && !releases_.empty()) [[unlikely]]
    flush_releases();
  if (stream_.takes_after(seq_)) return {};
  TT_RETURN_IF_ERROR(block([&] { return stream_.over() || stream_.takes_after(seq_); }));
  return stream_.status();
}

void Session::begin_command() { graph_.tape().set_seq(seq_ + 1); }

namespace {

std::vector<core::Dims> shapes_of(const autograd::Call& call) {
  std::vector<core::Dims> shapes;
  for (const Var& argument : call.arguments) {
    shapes.push_back(argument.is_tensor() ? autograd::handle_of(argument).layout.geometry.shape
                                          : core::Dims());
  }
  return shapes;
}

}  // namespace

void Session::issue(const autograd::Call& call, bool inplace, std::uint32_t made) {
  core::InlineVector<program::Argument, 4> arguments;
  for (const Var& argument : call.arguments) {
    if (argument.is_tensor()) {
      arguments.push_back(program::Argument::of(autograd::handle_of(argument).id));
    } else if (argument.is_number()) {
      arguments.push_back(program::Argument::of(argument.number()));
    } else {
      arguments.push_back(program::Argument::absent());
    }
  }
  const wire::ApplyView view{call.op,
                             call.record,
                             inplace,
                             call.default_dtype,
                             {arguments.data(), arguments.size()},
                             call.counts,
                             *call.attributes};
  stream_.append(view, made);
  note_site(++seq_);
  if (recorder_.shapes()) [[unlikely]]
    recorder_.add(Recorder::Shapes{seq_, shapes_of(call)});
  if (autograd::Tracer* trace = tracer()) [[unlikely]] {
    program::Apply apply;
    apply.op = call.op;
    apply.record = call.record;
    apply.inplace = inplace;
    apply.default_dtype = call.default_dtype;
    for (const program::Argument& argument : arguments) apply.arguments.push_back(argument);
    for (const std::uint32_t count : call.counts) apply.counts.push_back(count);
    apply.attributes = *call.attributes;
    trace->record(std::move(apply), seq_, next_id_ - made, made);
  }
  if (releases_.size() >= kReleaseBatch) flush_releases();
}

void Session::issue(const program::Command& command, std::uint32_t made) {
  stream_.append(command, made);
  note_site(++seq_);
  if (autograd::Tracer* trace = tracer()) [[unlikely]]
    trace->record(command, seq_, next_id_ - made, made);
}

void Session::flush_releases() {
  stream_.let_releases_go();
  for (const std::uint64_t fetch : std::exchange(takens_, {})) {
    begin_command();
    issue(program::Command(program::Taken{fetch}), 0);
  }
  while (programs_.has_released() && !tracer_) {
    const std::uint64_t number = programs_.take_released();
    begin_command();
    issue(program::Command(program::Undefine{number}), 0);
  }
  while (!releases_.empty()) {
    program::Release release;
    const std::size_t count = std::min<std::size_t>(releases_.size(), 512);
    release.handles.assign(releases_.begin(),
                           releases_.begin() + static_cast<std::ptrdiff_t>(count));
    releases_.erase(releases_.begin(), releases_.begin() + static_cast<std::ptrdiff_t>(count));
    handles_ -= count;
    begin_command();
    issue(program::Command(std::move(release)), 0);
  }
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

// A command that does not fit into any frame would end the session, so it is refused here.
Status Session::fits_frame(OpId op, std::span<const Var> arguments,
                           const core::Attributes& attributes) const {
  const std::size_t items = arguments.size() + wire::items_of(attributes);
  if (items + kOtherItems <= limits_.frame.items) return {};
  return fits_frame(catalog().at(op).name, items);
}

Status Session::fits_frame(std::string_view what, std::size_t items) const {
  if (items + kOtherItems <= limits_.frame.items) return {};
  return core::invalid(std::string(what) + ": " + std::to_string(items) +
                       " tensors and numbers in one call, at most " +
                       std::to_string(limits_.frame.items - kOtherItems) + " can be sent");
}

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

Status Session::flush_forgets() {
  std::vector<core::Ref<autograd::Node>> nodes;
  nodes.swap(forgets_);
  for (const core::Ref<autograd::Node>& node : nodes) {
    TT_RETURN_IF_ERROR(before_forget(*node));
    node->forget_saved();
    begin_command();
    issue(program::Command(program::Forget{node->seq}), 0);
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
  TT_RETURN_IF_ERROR(fits_frame(op, arguments, attributes));
  const ops::OpDef& def = catalog().at(op);
  const bool mutates = !def.mutates.empty();
  if (def.collective) [[unlikely]]
    stream_.mark_fragile(seq_ + 1);
  if (following) [[unlikely]]
    TT_RETURN_IF_ERROR(follow_program(arguments, mutates));
  if (mutates && watching) [[unlikely]] {
    for (const Var& each : arguments) {
      if (each.is_tensor()) TT_RETURN_IF_ERROR(before_write(autograd::handle_of(each)));
    }
  }
  // The tensors of refused instructions take memory of the daemon too, which the client must stop
  // creating in time: a session that creates too many ends.
  const bool is_short = seq_ < short_until_;
  if (is_short) [[unlikely]] {
    TT_RETURN_IF_ERROR(
        block([&] { return stream_.over() || stream_.completed_upto() + kShortAhead >= seq_; }));
  }
  if (has_pending()) [[unlikely]]
    TT_RETURN_IF_ERROR(raise_shortage(*this, is_short ? 0 : kUnraised));
  TT_RETURN_IF_ERROR(ready_to_issue(!mutates));
  begin_command();
  const Modes modes = t_modes;
  const autograd::Call call = call_of(modes.grad, op, arguments, counts, attributes);
  if (autograd::Tracer* trace = tracer()) [[unlikely]]
    trace->know(arguments);
  TT_RETURN_IF_ERROR(graph_.apply(call, results));
  // The results get their ids after the arguments were written, because handles in the frame are
  // counted back from the next id.
  const program::HandleId first = next_id_;
  if (!mutates) {
    for (const HandleRef& h : results) give_id(*h);
  }
  issue(call, false, static_cast<std::uint32_t>(next_id_ - first));
  if (results.size() == 1 && value_reads_.may_derive(op, results[0]->layout) && !tracer_) {
    Handle& h = *results[0];
    value_reads_.add(h, value_reads_.derived(*this, op, arguments, attributes, h.layout));
  }
  if (modes.inference && !mutates) {
    for (const HandleRef& h : results) h->inference = !h->is_view() || h->base->inference;
  } else if (!results.empty() && results[0]->is_view() && results[0]->base->inference) {
    for (const HandleRef& h : results) h->inference = true;
  }
  if (!forgets_.empty()) [[unlikely]]
    TT_RETURN_IF_ERROR(flush_forgets());
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
  TT_RETURN_IF_ERROR(fits_frame(op, arguments, attributes));
  if (following) [[unlikely]]
    TT_RETURN_IF_ERROR(follow_program(arguments, true));
  if (watching) [[unlikely]]
    TT_RETURN_IF_ERROR(before_write(autograd::handle_of(arguments[0])));
  TT_RETURN_IF_ERROR(ready_to_issue());
  begin_command();
  const autograd::Call call = call_of(t_modes.grad, op, arguments, counts, attributes);
  if (autograd::Tracer* trace = tracer()) [[unlikely]]
    trace->know(arguments);
  std::string known;
  if (value_reads_.may_derive(op, autograd::handle_of(arguments[0]).layout) && !tracer_) {
    known = value_reads_.derived_inplace(*this, op, arguments, attributes);
  }
  TT_RETURN_IF_ERROR(graph_.apply_inplace(call));
  issue(call, true, 0);
  value_reads_.add(autograd::handle_of(arguments[0]), known);
  if (!forgets_.empty()) [[unlikely]]
    TT_RETURN_IF_ERROR(flush_forgets());
  return {};
}

core::Result<HandleRef> Session::constant(core::DType dtype, core::Device device,
                                          const core::Dims& shape, std::string bytes) {
  TT_RETURN_IF_ERROR(ready_to_issue());
  HandleRef h = graph_.objects().adopt({dtype, device, core::Geometry(shape)}, nullptr);
  give_id(*h);
  value_reads_.add(*h, bytes);
  issue(program::Command(program::Constant{dtype, device, shape, std::move(bytes)}), 1);
  return h;
}

core::Result<HandleRef> Session::uploaded(std::uint64_t upload, core::DType dtype,
                                          core::Device device, const core::Dims& shape) {
  TT_RETURN_IF_ERROR(ready_to_issue());
  HandleRef h = graph_.objects().adopt({dtype, device, core::Geometry(shape)}, nullptr);
  // A trace treats the tensor as an input from outside, because its contents are not part of the
  // program.
  std::unique_ptr<autograd::Tracer> trace = std::move(tracer_);
  give_id(*h);
  uploads_upto_ = std::max(uploads_upto_.load(), upload);
  stream_.mark_fragile(seq_ + 1);
  issue(program::Command(program::Uploaded{upload, dtype, device, shape}), 1);
  tracer_ = std::move(trace);
  return h;
}

Status Session::set_requires_grad(Handle& h, bool on) {
  if (h.id == 0) return outside_its_vmap();
  if (on && h.inference && !t_modes.inference) {
    return core::invalid(
        "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
  }
  if (watching) TT_RETURN_IF_ERROR(before_write(h));
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (autograd::Tracer* trace = tracer()) trace->know(h);
  TT_RETURN_IF_ERROR(graph_.tape().set_requires_grad(h, on));
  issue(program::Command(program::SetFlag{program::SetFlag::What::kRequiresGrad, h.id, on}), 0);
  return {};
}

Status Session::retain_grad(Handle& h) {
  if (h.id == 0) return outside_its_vmap();
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (autograd::Tracer* trace = tracer()) trace->know(h);
  TT_RETURN_IF_ERROR(graph_.tape().retain_grad(h));
  issue(program::Command(program::SetFlag{program::SetFlag::What::kRetainGrad, h.id, true}), 0);
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
  TT_RETURN_IF_ERROR(ready_to_issue());
  issue(program::Command(program::SetFlag{program::SetFlag::What::kNode, h.id}), 0);
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
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (autograd::Tracer* trace = tracer()) {
    trace->know(h);
    if (grad) trace->know(*grad);
  }
  TT_RETURN_IF_ERROR(h.set_grad(grad.get()));
  issue(program::Command(program::SetGrad{h.id, grad ? grad->id : 0}), 0);
  return {};
}

Status Session::set_data(Handle& h, Handle& other) {
  TT_RETURN_IF_ERROR(nameable(graph_, h));
  TT_RETURN_IF_ERROR(nameable(graph_, other));
  if (watching) TT_RETURN_IF_ERROR(before_write(h));
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (autograd::Tracer* trace = tracer()) {
    trace->know(h);
    trace->know(other);
  }
  // Refused by the client only, because the daemon learns later that a view was released.
  if (h.views > 0) return core::invalid("data: cannot be assigned while views of the tensor live");
  TT_RETURN_IF_ERROR(graph_.set_data(h, other));
  issue(program::Command(program::SetData{h.id, other.id}), 0);
  return {};
}

core::Result<std::uint64_t> Session::fetch(Handle& h, bool bulk) {
  if (h.id == 0) {
    return core::invalid(
        "vmap: It looks like you're calling .item() on a Tensor (or reading its values). We don't "
        "support vmap over calling .item() on a Tensor, please try to rewrite what you're doing "
        "with other operations.");
  }
  if (tracer() != nullptr) {
    const std::string line = here();
    return core::Result<std::uint64_t>(Status(
        core::Code::kFailedPrecondition,
        (line.empty() ? "" : line + ": ") +
            "a captured function cannot read a tensor's value on the way (.item(), .numpy(), "
            "bool(), "
            "print): return it, or use tensor operations (tt.where) or tt.jit.script instead"));
  }
  if (limits_.meta) return no_data();
  if (following) TT_RETURN_IF_ERROR(before_use(h, false));
  {
    const AwaitsValue awaits;
    TT_RETURN_IF_ERROR(ready_to_issue(true));
  }
  const std::uint64_t seq = seq_ + 1;
  if (limits_.keeps && !bulk) {
    MutexLock lock(stream_.mutex());
    stream_.received().fetches.expect(seq);
  }
  issue(program::Command(program::Fetch{h.id, bulk}), 0);
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
  if (unsettled()) TT_RETURN_IF_ERROR(settle());
  // Sends pending releases, so that memory of tensors that were deleted before synchronize() is
  // free after it.
  idle();
  const std::uint64_t upto = seq_;
  value_reads_.count_wait();
  TT_RETURN_IF_ERROR(
      block([&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); }));
  MutexLock lock(stream_.mutex());
  return stream_.completed_upto() >= upto ? Status() : stream_.lost_status();
}

Status Session::wait_until(const std::function<bool()>& ready) {
  TT_RETURN_IF_ERROR(block([&] { return ready() || !stream_.lost_status().ok(); }));
  return stream_.loss();
}

void Session::unwanted(std::uint64_t seq) {
  if (stream_.origin().is_parents()) return;
  MutexLock lock(stream_.mutex());
  stream_.received().fetches.drop(seq);
}

// Must not wait: it runs in the sender's thread, and anything that it waited for would need the
// sender.
void Session::idle() {
  if (!unsettled() && stream_.takes_after(seq_)) flush_releases();
}

bool Session::has_pending() const {
  return !stream_.origin().is_parents() && stream_.received().errors.any();
}

std::vector<wire::ErrorEvent> Session::pending_errors() const {
  if (stream_.origin().is_parents()) return {};
  MutexLock lock(stream_.mutex());
  return stream_.received().errors.all();
}

LateError Session::raise_pending() { return raise_those(std::nullopt); }

std::string Session::join_pending(core::Code code) {
  const LateError error = raise_those(code);
  if (error.status.code() != code) return "";
  return stands_for(*this, error);
}

LateError Session::raise_those(std::optional<core::Code> wanted) {
  if (!has_pending()) return {};
  // The calls that the client has postponed must run before; their operands are the current values
  // and not the last valid ones.
  if (watching) {
    const Status settled = before_raise();
    if (settled.code() == core::Code::kCancelled || settled.code() == core::Code::kAborted) {
      return {settled};
    }
  }
  const Status ready = ready_to_issue();
  if (ready.code() == core::Code::kCancelled) return {ready};
  std::vector<wire::ErrorEvent> errors;
  {
    MutexLock lock(stream_.mutex());
    errors = stream_.received().errors.take_alike(wanted);
  }
  value_reads_.clear();
  if (errors.empty()) return {};  // Another thread or an interruption has raised the errors.
  if (errors.front().status.code() == core::Code::kResourceExhausted) short_until_ = seq_ + kShort;
  if (ready.ok()) take_back(errors);
  LateError made{std::move(errors.front().status), errors.front().root, errors.size(),
                 errors.back().root};
  for (std::size_t i = 1; i < errors.size(); ++i) {
    made.further.emplace_back(errors[i].status.message(), errors[i].root);
  }
  return made;
}

void Session::clear_pending() {
  if (!has_pending() || !ready_to_issue().ok()) return;
  std::vector<wire::ErrorEvent> errors;
  {
    MutexLock lock(stream_.mutex());
    errors = stream_.received().errors.take_all();
  }
  value_reads_.clear();
  take_back(errors);
}

void Session::take_back(const std::vector<wire::ErrorEvent>& errors) {
  constexpr std::size_t kRaisesUnderWay = 256;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (i > 0 && i % kRaisesUnderWay == 0) (void)finish_raises();
    send_raise(errors[i].root);
  }
  // If the wait for the Raise is interrupted, the next command completes it.
  (void)finish_raises();
}

void Session::send_raise(std::uint64_t root) {
  begin_command();
  issue(program::Command(program::Raise{root}), 0);
  stream_.received().raises.add({seq_, root});
}

// The first API thread that calls this function reverts the in-place writes of failed commands in
// the mirror, before the next command is issued.
Status Session::finish_raises() {
  while (stream_.received().raises.open()) {
    const SentRaise raise = stream_.received().raises.next();
    TT_RETURN_IF_ERROR(block(
        [&] { return stream_.received().raises.settled(raise) || !stream_.lost_status().ok(); }));
    if (!stream_.received().raises.is_next(raise)) continue;
    MutexLock lock(stream_.mutex());
    const auto rebinds = stream_.received().raises.finish(raise);
    stream_.changed().notify_all();
    if (!rebinds) return stream_.lost_status();
    graph_.undo().take_back(*rebinds, raise.root);
  }
  return {};
}

std::uint64_t Session::mark_interrupted() {
  if (stream_.origin().is_parents() || stream_.over() || stream_.completed_upto() >= seq_) return 0;
  value_reads_.clear();
  return interrupted_upto_ = seq_;
}

Session::Dropped Session::dropped_commands(std::uint64_t upto, std::chrono::milliseconds most) {
  stream_.wait_for([&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); },
                   most);
  MutexLock lock(stream_.mutex());
  const std::uint64_t completed = stream_.completed_upto();
  Dropped found;
  found.first = stream_.received().errors.first_cancelled(upto);
  if (found.first == 0 && completed < upto) found.first = completed + 1;
  if (found.first != 0) found.commands = upto - found.first + 1;
  return found;
}

bool Session::interrupt_again() {
  if (stream_.origin().is_parents() || stream_.over() || stream_.completed_upto() >= seq_)
    return false;
  if (t_awaits_value > 0 && interrupt_pending()) return true;
  first_interrupt_ = seq_;
  return false;
}

Status Session::settle() {
  while (unsettled()) {
    TT_RETURN_IF_ERROR(finish_raises());
    const std::uint64_t upto = interrupted_upto_;
    TT_RETURN_IF_ERROR(
        block([&] { return stream_.completed_upto() >= upto || !stream_.lost_status().ok(); }));
    if (stream_.received().raises.open()) continue;  // Another thread has sent Raises meanwhile.
    if (watching && upto != 0) interrupted(upto);
    std::uint64_t root = 0;
    {
      MutexLock lock(stream_.mutex());
      if (stream_.lost_status().ok()) root = stream_.received().errors.take_cancelled(upto);
    }
    if (root != 0) {
      value_reads_.clear();
      send_raise(root);
    } else if (interrupted_upto_ == upto) {
      interrupted_upto_ = 0;
    }
  }
  return {};
}

}  // namespace teletensor::client
