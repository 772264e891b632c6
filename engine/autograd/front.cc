#include "engine/autograd/front.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <unordered_map>

#include "engine/autograd/backward.h"
#include "engine/autograd/declared.h"
#include "engine/autograd/graph.h"
#include "engine/autograd/known/known_call.h"
#include "engine/autograd/known/templates.h"
#include "engine/autograd/names.h"
#include "engine/autograd/snapshot/image.h"
#include "engine/autograd/snapshot/inventory.h"

namespace teletensor::autograd {

using core::Code;
using core::internal;
using core::invalid;
using core::Layout;
using core::Status;
using ops::Var;
using program::HandleId;

namespace {

Status unknown(HandleId id) {
  // Ids are below 2^62, so this one is a distance that leads beyond the first id.
  if (id >> 62 != 0) return Status(Code::kNotFound, "the handle is unknown: it was never made");
  return Status(Code::kNotFound, "handle " + std::to_string(id) + " is unknown or released");
}

}  // namespace

class Front::Impl final : public Issuer {
 public:
  Impl(const ops::Catalog& catalog, Sink* sink, const program::Amounts& limits)
      : catalog_(catalog),
        sink_(sink),
        limits_(limits),
        graph_(catalog, sink),
        relayout_(catalog.id(*catalog.find("relayout"))),
        copy_(catalog.id(*catalog.find("copy"))),
        programs_(catalog, limits) {}
  ~Impl() override {
    backward_.reset();
    kept_.clear();
    strangers_.clear();
    names_ = Names();
  }

  Status execute(std::uint64_t seq, program::Command&& command, bool thin) {
    if (backward_) return internal("a Backward is still running");
    graph_.tape().set_seq(seq_ = seq);
    thin_ = thin;
    cause_ = nullptr;
    first_made_ = names_.next();
    Status status = std::visit([this](auto& c) { return run(c); }, command);
    if (status.ok() || !thin || status.code() == Code::kInternal) return status;
    refuse(command, status);
    return {};
  }

  std::size_t repeat(std::uint64_t seq, std::span<const program::Command> commands) {
    return templates_.execute(seq, commands);
  }

  bool busy() const { return backward_ != nullptr; }

  program::Inventory take_over() {
    graph_.undo().forget_history();
    programs_.clear();
    const std::vector<HandleRef> kept = strip(kept_);
    std::vector<HandleId> ids;
    for (const HandleRef& h : kept) {
      if (names_.find(h->id) != h.get()) names_.add(h);
      ids.push_back(h->id);
    }
    std::sort(ids.begin(), ids.end());
    for (HandleId id : names_.all()) {
      if (!std::binary_search(ids.begin(), ids.end(), id)) (void)names_.remove(id);
    }
    return take_inventory(kept_, kept);
  }
  void kept_contents(std::unordered_set<const void*>& contents) const {
    for (const auto& [name, kept] : kept_) {
      for (const Handle* h = kept.get(); h != nullptr; h = h->grad.get()) {
        const program::ValueRef& value = h->cell->value;
        if (value && value->contents) contents.insert(value->contents.get());
      }
    }
  }

  void take_image(ImageIndexer& maker, program::Image& image) {
    autograd::take_image(
        graph_, kept_, [this](const Handle& h) { return names_.find(h.id) == &h; }, maker, image);
    image.programs = programs_.serialized();
    image.next_id = names_.next();
  }

  Status restore_image(const program::Image& image, const std::vector<program::ValueRef>& values) {
    std::vector<HandleRef> handles;
    TT_RETURN_IF_ERROR(autograd::restore_image(graph_, image, values, handles));
    std::vector<std::pair<HandleId, std::size_t>> ids;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      if (image.handles[i].id != 0) ids.emplace_back(image.handles[i].id, i);
    }
    std::sort(ids.begin(), ids.end());
    for (const auto& [id, i] : ids) {
      if (id < names_.next() || id >= image.next_id) {
        return invalid("the session's snapshot is inconsistent: the id of a tensor");
      }
      names_.put(id, handles[i]);
    }
    names_.skip_to(image.next_id);
    for (const auto& [name, h] : image.kept) {
      if (h >= handles.size()) {
        return invalid("the session's snapshot is inconsistent: a kept name");
      }
      kept_.emplace(name, handles[h]);
    }
    for (const auto& [number, bytes] : image.programs) {
      TT_RETURN_IF_ERROR(programs_.define(number, bytes));
    }
    return {};
  }

  Status resume(int nodes) {
    Status status = backward_->step(*this, nodes);
    if (status.ok() && !backward_->done()) return {};
    backward_.reset();
    if (status.ok() && backward_made_ != made_) {
      status = invalid("backward made " + std::to_string(backward_made_) +
                       " names, the command declares " + std::to_string(made_));
    }
    if (status.ok() || !thin_ || status.code() == Code::kInternal) return status;
    fail_ids(refusal_of(status), names_.next(), made_);
    return {};
  }

  program::Amounts amounts() const {
    program::Amounts amounts;
    amounts.handles = names_.alive();
    programs_.add_to(amounts);
    amounts.kept = kept_.size();
    return amounts;
  }

  Front::Totals totals() const {
    Front::Totals totals = programs_.totals();
    totals.memory = programs_.memory() + templates_.bytes();
    return totals;
  }
  bool is_checked(const program::Program& program) const { return programs_.is_checked(program); }

  Graph& graph() { return graph_; }
  Names& names() { return names_; }
  void add_outer_handle(HandleId id, HandleRef h) { strangers_[id] = std::move(h); }
  HandleRef lookup(HandleId id) const {
    if (Handle* h = names_.find(id)) return HandleRef(h);
    const auto found = strangers_.find(id);
    return found == strangers_.end() ? HandleRef() : found->second;
  }
  Status gradients(BackwardCall call, std::vector<HandleRef>& results) {
    status_ = {};
    auto plan = Backward::plan(graph_, std::move(call));
    if (!plan.ok()) return plan.status();
    TT_RETURN_IF_ERROR((*plan)->step(*this, INT32_MAX));
    results = (*plan)->results();
    return {};
  }

  // ---- Issuer: the effects of a running Backward. Nothing is recorded on the tape.
  bool recording() const override { return false; }
  ops::Vars call(ops::OpId op, std::span<const Var> arguments, core::Attributes attributes,
                 std::span<const std::uint32_t> counts) override {
    ops::Vars out;
    const int results = catalog_.at(op).results;
    Handles handles;
    if (status_.ok()) {
      Call call;
      call.op = op;
      call.default_dtype = core::DType::kF32;
      call.arguments = arguments;
      call.counts = counts;
      call.attributes = &attributes;
      status_ = graph_.apply(call, handles);
    }
    if (!status_.ok()) {
      for (int i = 0; i < std::max(results, 1); ++i) out.push_back({});
      return out;
    }
    for (HandleRef& h : handles) out.push_back(Var(this, std::move(h)));
    return out;
  }
  Status inplace(ops::OpId op, std::span<const Var> arguments) override {
    Call call;
    call.op = op;
    call.arguments = arguments;
    // All attributes that follow the operands have defaults, in every op that a backward runs in
    // place.
    const ops::OpDef& def = catalog_.at(op);
    core::Attributes attributes;
    for (std::size_t p = static_cast<std::size_t>(def.operand_parameters);
         p < def.parameters.size(); ++p) {
      attributes.push_back(def.parameters[p].fallback);
    }
    call.attributes = &attributes;
    return graph_.apply_inplace(call);
  }
  Status set_grad(Handle& h, const HandleRef& grad) override {
    h.grad = grad;
    return {};
  }
  Var saved(const Node::SavedSlot& slot, Node& node) override {
    HandleRef h = graph_.objects().adopt_saved(slot, node);
    return Var(this, std::move(h));
  }
  core::Result<Var> run_hook(HookId, const Var&) override {
    return internal("the daemon has no hooks");
  }
  Status run_function(Node& node, std::span<Var>, std::span<Var>) override {
    return sink_->client_backward(node.seq);
  }
  core::Result<HandleRef> own(const Var& g, const core::Dims& strides) override {
    const Layout& layout = g.layout();
    Handle& h = handle_of(g);
    // Values are immutable, so a second cell can share this one. Nothing is copied until one of the
    // cells is written.
    if (!h.cell->shared && layout.geometry.strides == strides && layout.geometry.offset == 0 &&
        h.stored() == layout.geometry.numel()) {
      return graph_.objects().adopt(layout, h.cell->value);
    }
    const Var arguments[] = {g};
    ops::Vars out = call(relayout_, arguments, {core::Attribute::of(strides)}, {});
    TT_RETURN_IF_ERROR(status_);
    return HandleRef(&handle_of(out[0]));
  }
  void name(Handle& h) override {
    ++backward_made_;
    if (!thin_ || backward_made_ <= made_) names_.add(HandleRef(&h));
  }

 private:
  Status find(HandleId id, HandleRef& h) {
    if (auto failure = names_.refusal(id)) [[unlikely]] {
      cause_ = std::move(failure);
      return cause_->status;
    }
    return find_any(id, h);
  }
  // Finds a handle like find(), but also a handle whose value has failed; the value has the reason.
  Status find_any(HandleId id, HandleRef& h) const {
    h = strangers_.empty() ? HandleRef(names_.find(id)) : lookup(id);
    return h ? Status() : unknown(id);
  }

  // ---- Refused commands of thin clients
  using FailureRef = std::shared_ptr<const program::Failure>;

  // Returns the failure of an operand, or a new failure that is reported as a late error.
  FailureRef refusal_of(const Status& status) {
    return cause_ != nullptr ? cause_ : sink_->refused(seq_, status);
  }
  HandleRef failed_handle(const FailureRef& failure, core::DType dtype, core::Device device) {
    auto value = core::make_ref<program::Value>(dtype, device, 1);
    value->failure = failure;
    return graph_.objects().adopt(Layout{dtype, device, core::Geometry(core::Dims{})},
                                  std::move(value));
  }
  // Gives failed handles to the ids from `from` to the last of the `made` ids that begin at
  // `first_made_`.
  void fail_ids(const FailureRef& failure, HandleId from, std::uint32_t made) {
    for (HandleId id = from; id < first_made_ + made; ++id) {
      HandleRef h = failed_handle(failure, core::DType::kF32, core::Device{});
      if (id < names_.next()) {
        names_.replace(id, std::move(h));
      } else {
        names_.add(std::move(h));
      }
      names_.refuse(id, failure);
    }
  }
  void refuse(const program::Command& command, const Status& status) {
    if (const auto* fetch = std::get_if<program::Fetch>(&command)) {
      sink_->fetch_refused(seq_, fetch->bulk, status, cause_ != nullptr ? cause_->seq : seq_);
      return;
    }
    const FailureRef failure = refusal_of(status);
    if (const auto* apply = std::get_if<program::Apply>(&command)) {
      for (const HandleId id : written_handles(*apply, catalog_)) spoil(id, failure);
    }
    fail_ids(failure, first_made_, declared_ids(command));
  }
  // Writes a failed value to the tensor that the command would have written, so that it has the
  // failure until the client raises it, as after a kernel that failed. A tensor that may not be
  // written is not changed.
  void spoil(HandleId id, const FailureRef& failure) {
    if (names_.refusal(id) != nullptr) return;
    HandleRef h;
    if (!find(id, h).ok()) return;
    HandleRef failed = failed_handle(failure, h->layout.dtype, h->layout.device);
    const Var arguments[] = {Var(this, std::move(h)), Var(this, std::move(failed))};
    (void)inplace(copy_, arguments);
  }
  // Returns an error unless a thin client's instruction declares as many ids as it makes. `made` is
  // -1 if the number is not known before the results exist.
  Status check_made(const program::Apply& c, const ops::OpDef& def, int made) const {
    if (c.inplace || !def.mutates.empty()) made = 0;
    if (!thin_ || made < 0 || static_cast<std::uint32_t>(made) == c.made) return {};
    return invalid(def.name + ": makes " + std::to_string(made) + " ids, the command declares " +
                   std::to_string(c.made));
  }

  // Checks the kind of each argument against the op's signature; lists of tensors are flattened.
  Status check_kinds(const program::Apply& c) const {
    const ops::OpDef& def = catalog_.at(c.op);
    std::size_t at = 0, list = 0;
    for (int p = 0; p < def.operand_parameters; ++p) {
      const ops::Parameter& parameter = def.parameters[static_cast<std::size_t>(p)];
      const bool is_list = parameter.type == ops::Parameter::Type::kTensorList;
      const std::size_t count = is_list ? c.counts[list++] : 1;
      for (std::size_t i = 0; i < count; ++i, ++at) {
        const auto kind = c.arguments[at].kind;
        const bool optional =
            parameter.optional || parameter.type == ops::Parameter::Type::kOptionalTensor;
        const bool fits = kind == program::Argument::Kind::kHandle ||
                          (kind == program::Argument::Kind::kAbsent && optional) ||
                          (kind == program::Argument::Kind::kNumber &&
                           parameter.type == ops::Parameter::Type::kOperand);
        if (!fits)
          return invalid(def.name + ": argument '" + parameter.name + "' has a wrong kind");
      }
    }
    return {};
  }

  Status run(program::Apply& c) { return run(c, nullptr); }

  Status run(program::Repeated& c) {
    const program::KnownApply* known = c.known.get();
    if (known->facts != nullptr) {
      std::array<Handle*, program::KnownApply::kMaxArguments> operands{};
      const std::size_t count = known->apply.arguments.size();
      bool found = true;
      for (std::size_t i = 0; i < count; ++i) {
        if (c.handles[i] == 0) continue;
        operands[i] = names_.find(c.handles[i]);
        found = found && operands[i] != nullptr;
      }
      const std::span<Handle* const> handles{operands.data(), count};
      const auto& calls = static_cast<const KnownCalls&>(*known->facts);
      const KnownCall* call = found ? calls.find(handles, sink_->interner().number()) : nullptr;
      if (call != nullptr) {
        const KnownCall::History history = call->history_of(handles);
        if (history != KnownCall::History::kView) {
          const bool record = history == KnownCall::History::kGradient;
          names_.add(graph_.apply_known(*call, known->apply, handles, record));
          return {};
        }
        known = nullptr;  // there is nothing to learn
      }
    }
    program::Apply expanded = c.expanded();
    return run(expanded, known);
  }

  // Keeps what is needed to run `known` again, unless it is null.
  Status run(program::Apply& c, const program::KnownApply* known) {
    if (c.op >= catalog_.size()) {
      return Status(Code::kNotFound, "op " + std::to_string(c.op) + " is not in the catalog");
    }
    const ops::OpDef& def = catalog_.at(c.op);
    if (thin_) complete(c, def, seq_);
    TT_RETURN_IF_ERROR(check_made(c, def, def.results));
    TT_RETURN_IF_ERROR(
        catalog_.check(c.op, c.arguments.size(), {c.counts.data(), c.counts.size()}, c.attributes));
    TT_RETURN_IF_ERROR(check_kinds(c));
    if (!core::is_floating(c.default_dtype)) return invalid("the default dtype is not floating");
    ops::Vars arguments;
    for (const program::Argument& argument : c.arguments) {
      switch (argument.kind) {
        case program::Argument::Kind::kAbsent:
          arguments.emplace_back();
          break;
        case program::Argument::Kind::kNumber:
          arguments.emplace_back(argument.number);
          break;
        case program::Argument::Kind::kHandle: {
          HandleRef h;
          TT_RETURN_IF_ERROR(find(argument.handle, h));
          arguments.emplace_back(this, std::move(h));
          break;
        }
      }
    }
    const bool needs_tensor = def.view != nullptr || c.inplace;
    if (needs_tensor && (arguments.empty() || !arguments[0].is_tensor())) {
      return invalid(def.name + ": argument 0 must be a tensor");
    }
    Call call;
    call.op = c.op;
    call.record = c.record;
    call.default_dtype = c.default_dtype;
    call.arguments = {arguments.data(), arguments.size()};
    call.counts = {c.counts.data(), c.counts.size()};
    call.attributes = &c.attributes;
    if (c.inplace) return graph_.apply_inplace(call);
    Handles results;
    TT_RETURN_IF_ERROR(graph_.apply(call, results));
    if (!def.mutates.empty()) return {};
    TT_RETURN_IF_ERROR(check_made(c, def, static_cast<int>(results.size())));
    if (known != nullptr && KnownCalls::may_know(def, call.arguments, results)) {
      if (known->facts == nullptr) known->facts = std::make_unique<KnownCalls>();
      static_cast<KnownCalls&>(*known->facts).learn(call, def, *results[0], sink_->interner());
    }
    for (HandleRef& h : results) names_.add(std::move(h));
    return {};
  }

  core::Result<Layout> host_layout(core::DType dtype, core::Device device,
                                   const core::Dims& shape) {
    const auto count = core::checked_numel(shape.span());
    if (!count.ok()) return count.status();
    return Layout{dtype, device, core::Geometry(shape)};
  }

  Status run(program::Constant& c) {
    auto layout = host_layout(c.dtype, c.device, c.shape);
    if (!layout.ok()) return layout.status();
    const std::int64_t elements = layout->geometry.numel();
    if (static_cast<std::uint64_t>(elements) * core::size_of(c.dtype) != c.bytes.size()) {
      return invalid("constant of shape " + core::to_string(c.shape) + " has " +
                     std::to_string(c.bytes.size()) + " bytes");
    }
    auto value = core::make_ref<program::Value>(c.dtype, c.device, elements);
    names_.add(graph_.objects().adopt(*layout, value));
    return sink_->constant(seq_, std::move(c), std::move(value));
  }

  Status run(program::Uploaded& c) {
    auto layout = host_layout(c.dtype, c.device, c.shape);
    if (!layout.ok()) return layout.status();
    auto value = core::make_ref<program::Value>(c.dtype, c.device, layout->geometry.numel());
    names_.add(graph_.objects().adopt(*layout, value));
    return sink_->uploaded(seq_, c, std::move(value));
  }

  Status run(program::Fetch& c) {
    HandleRef h;
    // The error of a failed value is reported after the late error, in the order of the commands.
    TT_RETURN_IF_ERROR(c.describe ? find(c.handle, h) : find_any(c.handle, h));
    if (c.describe) {
      sink_->described(seq_, h->layout, h->requires_grad());
      return {};
    }
    program::Operand operand;
    h->fill(operand, sink_->interner());
    sink_->fetch(seq_, c.bulk, std::move(operand));
    return {};
  }

  Status run(program::Backward& c) {
    BackwardCall call;
    call.has_inputs = c.has_inputs;
    call.retain_graph = c.retain_graph;
    call.allow_unused = c.allow_unused;
    call.create_graph = c.expanded;  // the client has accumulated the gradients
    for (HandleId id : c.roots) TT_RETURN_IF_ERROR(find(id, call.roots.emplace_back()));
    for (HandleId id : c.inputs) TT_RETURN_IF_ERROR(find(id, call.inputs.emplace_back()));
    if (c.seeds.size() > c.roots.size()) return invalid("backward: more gradients than roots");
    for (HandleId id : c.seeds) {
      HandleRef& seed = call.seeds.emplace_back();
      if (id != 0) TT_RETURN_IF_ERROR(find(id, seed));
    }
    auto plan = Backward::plan(graph_, std::move(call));
    // The client has run this backward itself; a backward that it refused is never sent.
    if (c.expanded) {
      if (plan.ok()) (*plan)->free_saved();
      return {};
    }
    if (!plan.ok()) return plan.status();
    if ((*plan)->has_hooks()) {
      return invalid("backward: its graph has hooks, so only the client can run it");
    }
    backward_ = std::move(*plan);
    status_ = {};
    backward_made_ = 0;
    made_ = c.made;
    return {};
  }

  Status run(program::Saved& c) {
    Node* node = graph_.objects().saved_nodes().find(c.node);
    if (node == nullptr) {
      return core::invalid("no operation was recorded by command " + std::to_string(c.node));
    }
    for (const Node::SavedSlot& slot : node->saved) {
      if (slot.slot == static_cast<int>(c.slot)) {
        names_.add(graph_.objects().adopt_saved(slot, *node));
        return {};
      }
    }
    return core::invalid("node " + std::to_string(c.node) + " saved nothing in slot " +
                         std::to_string(c.slot));
  }

  Status run(program::SetFlag& c) {
    HandleRef h;
    TT_RETURN_IF_ERROR(find(c.handle, h));
    using What = program::SetFlag::What;
    if (c.what == What::kRequiresGrad) return graph_.tape().set_requires_grad(*h, c.on);
    return c.what == What::kRetainGrad ? graph_.tape().retain_grad(*h)
                                       : graph_.tape().node_of(*h).status();
  }
  Status run(program::SetGrad& c) {
    HandleRef h, grad;
    TT_RETURN_IF_ERROR(find(c.handle, h));
    if (c.grad != 0) TT_RETURN_IF_ERROR(find(c.grad, grad));
    return h->set_grad(grad.get());
  }
  Status run(program::SetData& c) {
    HandleRef h, other;
    TT_RETURN_IF_ERROR(find(c.handle, h));
    TT_RETURN_IF_ERROR(find(c.other, other));
    return graph_.set_data(*h, *other);
  }
  Status run(program::Raise& c) {
    const std::vector<std::uint64_t> rebinds = sink_->failed_rebinds(c.root);
    graph_.undo().take_back(rebinds, c.root);
    sink_->raised(seq_, c.root, rebinds);
    return {};
  }
  Status run(program::Forget& c) {
    Node* node = graph_.objects().saved_nodes().find(c.node);
    if (node == nullptr) {
      return core::invalid("no operation was recorded by command " + std::to_string(c.node));
    }
    node->forget_saved();
    return {};
  }
  Status run(program::Taken& c) {
    sink_->taken(c.fetch);
    return {};
  }
  Status run(program::Keep& c) {
    if (c.handle == 0) {
      kept_.erase(c.name);
      return {};
    }
    HandleRef h;
    TT_RETURN_IF_ERROR(find(c.handle, h));
    if (!kept_.contains(c.name)) {
      TT_RETURN_IF_ERROR(check_amount("keep", limits_, &program::Amounts::kept, kept_.size(), 1));
    }
    kept_.insert_or_assign(std::move(c.name), std::move(h));
    return {};
  }
  Status run(program::Publish& c) {
    program::Operand operand;
    program::ValueRef value;
    if (c.handle != 0) {
      HandleRef h;
      TT_RETURN_IF_ERROR(find(c.handle, h));
      TT_RETURN_IF_ERROR(h->may_publish());
      h->fill(operand, sink_->interner());
      value = graph_.publish(*h);
    }
    sink_->publish(seq_, std::move(c), std::move(operand), std::move(value));
    return {};
  }
  Status run(program::Published& c) {
    auto layout = host_layout(c.dtype, c.device, c.shape);
    if (!layout.ok()) return layout.status();
    auto value = core::make_ref<program::Value>(c.dtype, c.device, layout->geometry.numel());
    names_.add(graph_.objects().adopt_published(*layout, value, c.writable));
    sink_->published(seq_, c, std::move(value));
    return {};
  }
  Status run(program::Join& c) {
    sink_->join(seq_, std::move(c));
    return {};
  }
  Status run(program::Leave& c) {
    sink_->leave(seq_, c.group);
    return {};
  }
  Status run(program::Define& c) { return programs_.define(c.program, c.bytes); }
  Status run(program::Undefine& c) { return programs_.undefine(c.program); }
  Status run(program::Call& c) {
    const auto found = programs_.find(c.program);
    if (!found.ok()) return found.status();
    std::vector<HandleRef> inputs(c.inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TT_RETURN_IF_ERROR(find(c.inputs[i], inputs[i]));
    }
    Handles results;
    TT_RETURN_IF_ERROR(graph_.call(**found, c, inputs, results));
    if (results.size() != c.made) {
      return invalid("call made " + std::to_string(results.size()) +
                     " names, the command declares " + std::to_string(c.made));
    }
    for (HandleRef& h : results) names_.add(std::move(h));
    return {};
  }
  Status run(program::Refused& c) { return {c.code, c.text}; }
  Status run(program::Release& c) {
    for (HandleId id : c.handles) {
      if (!names_.remove(id) && !strangers_.contains(id)) return unknown(id);
    }
    return {};
  }

  const ops::Catalog& catalog_;
  Sink* const sink_;
  const program::Amounts limits_;
  Graph graph_;
  const ops::OpId relayout_, copy_;
  Names names_;
  Templates templates_{graph_, names_, sink_};
  KeptNames kept_;
  // Always empty on the daemon; used by a trace's replay.
  std::unordered_map<HandleId, HandleRef> strangers_;
  std::unique_ptr<Backward> backward_;
  DefinedPrograms programs_;
  std::uint64_t seq_ = 0;
  bool thin_ = false;                           // the command's client
  FailureRef cause_;                            // of an operand that has failed
  HandleId first_made_ = 0;                     // the next id before the command
  std::uint32_t made_ = 0, backward_made_ = 0;  // by a Backward: declared, so far
};

Front::Front(const ops::Catalog& catalog, Sink* sink, const program::Amounts& limits)
    : impl_(std::make_unique<Impl>(catalog, sink, limits)) {}
Front::~Front() = default;
Status Front::execute(std::uint64_t seq, program::Command&& command, bool thin) {
  return impl_->execute(seq, std::move(command), thin);
}
std::size_t Front::repeat(std::uint64_t seq, std::span<const program::Command> commands) {
  return impl_->repeat(seq, commands);
}
void Front::kept_contents(std::unordered_set<const void*>& contents) const {
  impl_->kept_contents(contents);
}
program::Inventory Front::take_over() { return impl_->take_over(); }
void Front::take_image(ImageIndexer& maker, program::Image& image) const {
  impl_->take_image(maker, image);
}
Status Front::restore_image(const program::Image& image,
                            const std::vector<program::ValueRef>& values) {
  return impl_->restore_image(image, values);
}
bool Front::busy() const { return impl_->busy(); }
Status Front::resume(int nodes) { return impl_->resume(nodes); }
void Front::completed(std::uint64_t seq) { impl_->graph().undo().completed(seq); }
Graph& Front::graph() { return impl_->graph(); }
void Front::skip_to(HandleId next) { impl_->names().skip_to(next); }
void Front::add_outer_handle(HandleId id, HandleRef h) {
  impl_->add_outer_handle(id, std::move(h));
}
HandleRef Front::find(HandleId id) const { return impl_->lookup(id); }
Status Front::gradients(std::vector<HandleRef> roots, std::vector<HandleRef> seeds,
                        std::vector<HandleRef> inputs, std::vector<HandleRef>& results) {
  BackwardCall call;
  call.roots = std::move(roots);
  call.seeds = std::move(seeds);
  call.inputs = std::move(inputs);
  call.has_inputs = call.retain_graph = call.allow_unused = true;
  return impl_->gradients(std::move(call), results);
}
bool Front::differentiable(const HandleRef& root, const HandleRef& seed,
                           const std::vector<HandleRef>& inputs) {
  BackwardCall call;
  call.roots = {root};
  call.seeds = {seed};
  call.inputs = inputs;
  call.has_inputs = call.retain_graph = call.allow_unused = true;
  return Backward::plan(impl_->graph(), std::move(call)).ok();
}
std::uint64_t Front::next_id() const { return impl_->names().next(); }
std::size_t Front::handles() const { return impl_->names().alive(); }
program::Amounts Front::amounts() const { return impl_->amounts(); }
Front::Totals Front::totals() const { return impl_->totals(); }
bool Front::is_checked(const program::Program& program) const { return impl_->is_checked(program); }
std::size_t Front::tape_nodes() const { return impl_->graph().objects().live_nodes(); }
std::size_t Front::bookkeeping_bytes() const {
  return impl_->graph().bookkeeping_bytes() + impl_->names().bytes();
}

}  // namespace teletensor::autograd
