// The tape as Python sees it: nodes and their hooks, Functions whose backward is Python code,
// checkpoints, anomaly mode, and gradients as a stream. A backward that needs any of these is run
// by this client (autograd/backward.h); the daemon does not know them.

#include <algorithm>
#include <unordered_set>

#include "bindings.h"
#include "calls/described.h"
#include "engine/ops/functions.h"

namespace teletensor::client {

using autograd::Node;

namespace {

constexpr char kFreed[] =
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward.";

nb::object tensor_or_none(PySession& session, const Var& v) {
  if (!v.is_tensor()) return nb::none();
  PyObject* made = wrap(session, HandleRef(&autograd::handle_of(v)));
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

nb::object node_object(PySession& session, Node* node, Handle* leaf) {
  return nb::cast(
      PyNode{nb::borrow(session.self), &session, core::Ref<Node>(node), HandleRef(leaf)});
}

// ---------------------------------------------------------------- Python code in a backward

nb::object PySession::list_of(std::span<const Var> vars) {
  nb::list out;
  for (const Var& v : vars) out.append(tensor_or_none(*this, v));
  return out;
}

// Converts a list or tuple of tensors and Nones to `vars`, which has the same length.
Status PySession::take_list(PyObject* list, std::span<Var> vars, const char* what) {
  PyObject* sequence =
      is_tensor(list) || list == Py_None ? PyTuple_Pack(1, list) : PySequence_Fast(list, what);
  if (sequence == nullptr) return aborted();
  const nb::object own = nb::steal(sequence);
  const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence));
  if (size != vars.size()) {
    PyErr_Format(PyExc_RuntimeError, "%s: an incorrect number of gradients (expected %zu, got %zu)",
                 what, vars.size(), size);
    return aborted();
  }
  for (std::size_t i = 0; i < size; ++i) {
    PyObject* each = PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i));
    if (each == Py_None) {
      vars[i] = {};
      continue;
    }
    PyTensor* tensor = tensor_of(each);
    if (tensor == nullptr && PyErr_Occurred()) return aborted();
    if (tensor == nullptr || tensor->session != this) {
      PyErr_Format(PyExc_TypeError, "%s: gradients are Tensors of the session or None, not %s",
                   what, described(each).c_str());
      return aborted();
    }
    vars[i] = tensor->var();
  }
  return {};
}

Status PySession::run_function(Node& node, std::span<Var> gradients, std::span<Var> given) {
  const NodeExtra& extra = extra_of(node);
  const std::string name = node_name(*this, node);
  if (!extra.runner.is_valid())
    return core::invalid(name + ": its function is not of this process");
  const nb::object runner = extra.runner;
  try {
    const nb::object shown = node_object(*this, &node, nullptr), list = list_of(gradients);
    const nb::object result = nb::steal(call_python(runner.ptr(), shown.ptr(), list.ptr()));
    if (!result.is_valid()) return aborted();
    const std::span<Var> inputs = given.first(node.counts[0]);
    TT_RETURN_IF_ERROR(take_list(result.ptr(), inputs, ("function " + name + " returned").c_str()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_tensor()) continue;
      const core::Dims &got = inputs[i].shape(), &wanted = node.operands[i].layout.geometry.shape;
      const auto broad = core::broadcast_shapes(got, wanted, "");
      if (!broad.ok() || !(*broad == got)) {
        return core::invalid("Function " + name + " returned an invalid gradient at index " +
                             std::to_string(i) + " - got " + core::to_string(got) +
                             " but expected shape compatible with " + core::to_string(wanted));
      }
    }
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
  return {};
}

Status PySession::run_pre_hook(autograd::HookId hook, Node&, std::span<Var> gradients) {
  const nb::object callable = hooks_.find(hook);
  if (!callable.is_valid()) return {};
  try {
    const nb::tuple tensors(list_of(gradients));
    const nb::object changed = nb::steal(call_python(callable.ptr(), tensors.ptr()));
    if (!changed.is_valid()) return aborted();
    if (changed.is_none()) return {};
    return take_list(changed.ptr(), gradients, "a node's pre-hook returned");
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
}

Status PySession::run_post_hook(autograd::HookId hook, Node& node, std::span<Var> given,
                                std::span<const Var> gradients) {
  const nb::object callable = hooks_.find(hook);
  if (!callable.is_valid()) return {};
  const std::size_t inputs = graph().tape().is_client_node(node) ? node.counts[0] : given.size();
  try {
    const nb::tuple into(list_of(given.first(inputs))), from(list_of(gradients));
    const nb::object changed = nb::steal(call_python(callable.ptr(), into.ptr(), from.ptr()));
    if (!changed.is_valid()) return aborted();
    if (changed.is_none()) return {};
    return take_list(changed.ptr(), given.first(inputs), "a node's hook returned");
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
}

Status PySession::run_grad_hook(autograd::HookId hook, Handle& leaf) {
  const nb::object callable = hooks_.find(hook);
  if (!callable.is_valid()) return {};
  try {
    const nb::object tensor = tensor_or_none(*this, Var(this, HandleRef(&leaf)));
    const nb::object done = nb::steal(call_python(callable.ptr(), tensor.ptr()));
    if (!done.is_valid()) return aborted();
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
  return {};
}

// ---------------------------------------------------------------- checkpoints, anomaly, streams

namespace {

// While it exists, nothing is recorded.
class Unrecorded {
 public:
  Unrecorded() : before_(grad_mode()) { set_grad_mode(false); }
  ~Unrecorded() { set_grad_mode(before_); }

 private:
  const bool before_;
};

}  // namespace

Status PySession::before_forget(Node& node) {
  if (node.extra == nullptr || extra_of(node).packing.empty()) return {};
  NodeExtra& extra = extra_of(node);
  const std::vector<SavedHooks::Packing> packing = std::exchange(extra.packing, {});
  const Unrecorded unrecorded;
  const transforms::Below below(0);
  for (std::size_t i = 0; i < node.saved.size(); ++i) {
    const Node::SavedSlot& each = node.saved[i];
    const auto& [pack, unpack, storage] = packing[i];
    nb::object value;
    if (storage >= 0) {
      const core::Geometry& part = each.layout.geometry;
      const nb::object number = nb::int_(storage), offset = nb::int_(part.offset);
      const nb::object shape = tuple_of(part.shape), strides = tuple_of(part.strides);
      value = nb::steal(
          call_python(pack.ptr(), number.ptr(), shape.ptr(), strides.ptr(), offset.ptr()));
    } else {
      static const ops::OpRef detach("detach");
      Status before = take_status();
      const Var kept = saved(each, node);
      Handles names;
      Status status = take_status();
      if (status.ok()) status = apply(detach, {&kept, 1}, {}, {}, names);
      put_status(std::move(before));
      TT_RETURN_IF_ERROR(status);
      value = nb::steal(wrap(*this, names[0]));
      if (pack.is_valid()) value = nb::steal(call_python(pack.ptr(), value.ptr()));
    }
    if (!value.is_valid()) return aborted();
    extra.packed.push_back({each.slot, std::move(value), unpack, each.requires_grad});
  }
  return {};
}

Var PySession::saved_again(int slot, Node& node) {
  if (node.extra == nullptr || extra_of(node).frame != nullptr) {
    return Session::saved_again(slot, node);
  }
  if (!status_.ok()) return {};
  for (const NodeExtra::Packed& each : extra_of(node).packed) {
    if (each.slot != slot) continue;
    if (each.requires_grad && recording()) {
      status_ = core::invalid(
          "backward: create_graph through what saved_tensors_hooks have packed is not supported: "
          "the unpacked tensor has no history");
      return {};
    }
    const Unrecorded unrecorded;
    const transforms::Below below(0);
    const nb::object value = each.value, unpack = each.unpack;
    Status before = take_status();
    PyObject* given = unpack.is_valid() ? call_python(unpack.ptr(), value.ptr())
                                        : nb::object(value).release().ptr();
    put_status(std::move(before));
    const nb::object own = nb::steal(given);
    PyTensor* tensor = given == nullptr ? nullptr : tensor_of(given);
    if (tensor == nullptr || tensor->session != this) {
      if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError,
                     "Output of saved tensor unpack_hook expected to be a Tensor but got result of "
                     "type %s",
                     Py_TYPE(given)->tp_name);
      }
      status_ = aborted();
      return {};
    }
    return tensor->var();
  }
  status_ = core::invalid(kFreed);
  return {};
}

core::Result<Node*> PySession::again(Node& node) {
  NodeExtra& extra = extra_of(node);
  if (extra.frame == nullptr) {
    return core::invalid("backward: the saved values of a node were freed");
  }
  const core::Ref<Frame> frame = extra.frame;
  if (frame->nodes.empty()) {
    const transforms::Below below(0);
    node_modes_.begin_frame(frame, false);
    PyObject* outputs = call_python(frame->function.ptr());
    node_modes_.end_frame();
    if (outputs == nullptr) {
      frame->nodes.clear();
      return aborted();
    }
    frame->outputs = nb::steal(outputs);
    frame->left = frame->nodes.size();
    if (frame->nodes.size() != frame->count) {
      const std::size_t found = frame->nodes.size();
      frame->nodes.clear();
      return core::invalid(
          "checkpoint: A different number of tensors was saved during the original forward and "
          "recomputation.\nNumber of ops that saved tensors during forward: " +
          std::to_string(frame->count) +
          "\nNumber of ops that saved tensors during recomputation: " + std::to_string(found));
    }
  }
  Node* other = frame->nodes[extra.index].get();
  if (other == nullptr) return core::invalid(kFreed);
  if (other->op != node.op || other->operands.size() != node.operands.size()) {
    return core::invalid(
        "checkpoint: Recomputed values for the following tensors have different metadata than "
        "during the forward pass: those of " +
        node_name(*this, node) + " and " + node_name(*this, *other));
  }
  return other;
}

Status PySession::ran(Node& node, std::span<const Var> given, bool retain_graph) {
  if (node.forgotten && !retain_graph) {
    extra_of(node).packed.clear();
    const core::Ref<Frame> frame = extra_of(node).frame;
    const std::size_t index = extra_of(node).index;
    if (frame != nullptr && index < frame->nodes.size() && frame->nodes[index] != nullptr) {
      forgets().add(*frame->nodes[index]);
      TT_RETURN_IF_ERROR(forgets().flush());
      frame->nodes[index] = nullptr;
      if (--frame->left == 0) {
        frame->nodes.clear();
        frame->outputs.reset();
      }
    }
  }
  if (!reads_gradients()) return {};
  try {
    const std::string site = node.extra ? extra_of(node).site : std::string();
    node_modes_.anomaly_check()(node_name(*this, node), list_of(given), site);
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
  return {};
}

bool PySession::leaf_done(Handle& leaf) {
  gradient_stream_.leaf_done(*this, leaf);
  return true;
}

// ---------------------------------------------------------------- bindings

namespace {

// Makes the values results of a Function. Returns the results, the slots of the saved values, and
// whether it was recorded.
nb::object function_node(nb::list inputs, nb::list values, nb::list saved, nb::object runner,
                         const std::string& name) {
  static const ops::OpRef client_node("client_node");
  PySession& session = *checked_tensor(inputs[0]).session;
  std::vector<Var> arguments;
  for (const nb::list& each : {inputs, values, saved}) {
    for (nb::handle t : each) arguments.push_back(checked_tensor(t).var());
  }
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(inputs.size()),
                                  static_cast<std::uint32_t>(values.size()),
                                  static_cast<std::uint32_t>(saved.size())};
  Handles results;
  raise_if(session.apply(client_node, arguments, counts, {}, results));
  nb::list out, slots;
  core::Ref<Node> node;
  for (const HandleRef& h : results) {
    const HandleRef at(&transforms::ground(*h));
    if (at->node) node = at->node;
    PyObject* made = wrap(session, h);
    if (made == nullptr) throw nb::python_error();
    out.append(nb::steal(made));
  }
  for (std::size_t i = 0; i < saved.size(); ++i) {
    std::int64_t slot = static_cast<std::int64_t>(inputs.size() + values.size() + i);
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (checked_tensor(values[v]).handle == checked_tensor(saved[i]).handle) {
        slot = ops::kResult + static_cast<std::int64_t>(v);
      }
    }
    slots.append(slot);
  }
  if (node) {
    NodeExtra& extra = extra_of(*node);
    extra.runner = std::move(runner);
    extra.name = name;
  }
  return nb::make_tuple(out, slots, node != nullptr);
}

nb::object saved_of(PyNode& self, int slot) {
  PySession& session = *self.session;
  if (self.node == nullptr) throw nb::value_error("a leaf saves nothing");
  if (self.node->freed) raise_if(core::invalid(kFreed));
  Status before = session.take_status();
  Var found;
  if (self.node->forgotten) {
    found = session.saved_again(slot, *self.node);
  } else {
    for (const Node::SavedSlot& each : self.node->saved) {
      if (each.slot == slot) {
        found = session.saved(each, *self.node);
        break;
      }
    }
  }
  const Status status = session.take_status();
  session.put_status(std::move(before));
  if (PyErr_Occurred()) throw nb::python_error();
  raise_if(status);
  return tensor_or_none(session, found);
}

nb::object edge_object(PySession& session, const autograd::Edge& edge) {
  if (edge.node) return node_object(session, edge.node.get(), nullptr);
  if (edge.leaf) return node_object(session, nullptr, edge.leaf.get());
  return nb::none();
}

// Returns true if the history of the roots reaches a leaf that is not among the inputs.
bool depends_elsewhere(nb::list roots, nb::list inputs) {
  std::unordered_set<const void*> seen, known;
  std::vector<core::Ref<Node>> todo;
  bool found = false;
  const auto visit = [&](const autograd::Edge& edge) {
    if (edge.node && !known.contains(edge.node.get()) && seen.insert(edge.node.get()).second) {
      todo.push_back(edge.node);
    } else if (edge.leaf && !known.contains(edge.leaf.get())) {
      found = true;
    }
  };
  const auto edge_of = [](PyTensor& t) {
    Handle& h = transforms::ground(*t.handle);
    autograd::Edge edge;
    Node* node = value_or_raise(t.session->node_of(h));
    edge.node = core::Ref<Node>(node);
    if (node == nullptr && h.requires_grad()) {
      edge.leaf = h.leaf ? h.leaf : HandleRef(&h);
    }
    return edge;
  };
  for (nb::handle t : inputs) {
    const autograd::Edge edge = edge_of(checked_tensor(t));
    known.insert(edge.node ? static_cast<const void*>(edge.node.get()) : edge.leaf.get());
  }
  for (nb::handle t : roots) visit(edge_of(checked_tensor(t)));
  while (!todo.empty() && !found) {
    const core::Ref<Node> node = todo.back();
    todo.pop_back();
    for (const autograd::Edge& edge : node->edges) visit(edge);
  }
  return found;
}

struct PyFrame {
  nb::object session_object;
  PySession* session;
  core::Ref<Frame> frame;
};

// A single native call, so that a signal handler cannot interrupt it and leave fetched gradients
// without an owner.
nb::list streamed(PySession& session, std::size_t inline_bytes, nb::object backward) {
  session.gradient_stream().begin(inline_bytes);
  const bool before = std::exchange(session.expand_backward, true);
  const nb::object done = nb::steal(call_python(backward.ptr()));
  session.expand_backward = before;
  nb::list out;
  for (const GradientStream::Fetched& each : session.gradient_stream().end()) {
    nb::object fetch = nb::cast(new PyFetch(nb::borrow(session.self), session, each.seq, each.bulk),
                                nb::rv_policy::take_ownership);
    if (done.is_valid()) {
      out.append(nb::make_tuple(tensor_or_none(session, Var(&session, each.leaf)), fetch));
    }
  }
  if (!done.is_valid()) throw nb::python_error();
  return out;
}

}  // namespace

void bind_tape(nb::module_& m) {
  nb::class_<PyNode>(m, "Node", nb::dynamic_attr(), nb::is_weak_referenceable(),
                     "A node of the tape: what made a tensor.")
      .def(
          "name",
          [](const PyNode& self) {
            return self.node ? node_name(*self.session, *self.node)
                             : "torch::autograd::AccumulateGrad";
          },
          "Such as \"MulBackward0\".")
      .def_prop_ro(
          "next_functions",
          [](const PyNode& self) {
            nb::list out;
            if (self.node) {
              const std::size_t inputs = self.session->graph().tape().is_client_node(*self.node)
                                             ? self.node->counts[0]
                                             : self.node->edges.size();
              for (std::size_t i = 0; i < inputs; ++i) {
                const autograd::Edge& edge = self.node->edges[i];
                out.append(nb::make_tuple(edge_object(*self.session, edge), edge.output));
              }
            }
            return nb::tuple(out);
          },
          "(node, output) of every operand; None where no gradient flows.")
      .def_prop_ro(
          "variable",
          [](const PyNode& self) {
            return tensor_or_none(*self.session, self.leaf ? Var(self.session, self.leaf) : Var());
          },
          "The leaf whose gradient is accumulated here, or None.")
      .def_prop_ro("_runner",
                   [](const PyNode& self) -> nb::object {
                     if (!self.node || !self.node->extra) return nb::none();
                     const nb::object& runner = extra_of(*self.node).runner;
                     return runner.is_valid() ? runner : nb::none();
                   })
      .def("_saved", saved_of)
      .def("_add_pre_hook",
           [](PyNode& self, nb::object callable) {
             const autograd::HookId id = self.session->hooks().add(std::move(callable));
             if (self.node) self.node->hooks.push_back({Node::kWhole, id});
             return id;
           })
      .def("_add_hook",
           [](PyNode& self, nb::object callable) {
             const autograd::HookId id = self.session->hooks().add(std::move(callable));
             if (self.node) self.node->post_hooks.push_back(id);
             return id;
           })
      .def("_remove_hook",
           [](PyNode& self, autograd::HookId id) {
             if (self.node) {
               std::erase_if(self.node->hooks, [&](const Node::Hook& h) { return h.id == id; });
               std::erase(self.node->post_hooks, id);
             }
             self.session->hooks().drop(id);
           })
      .def("__eq__",
           [](const PyNode& self, nb::handle other) {
             if (!nb::isinstance<PyNode>(other)) return false;
             const auto& o = nb::cast<const PyNode&>(other);
             return self.node == o.node && self.leaf == o.leaf;
           })
      .def("__hash__",
           [](const PyNode& self) {
             const void* at = self.node ? static_cast<const void*>(self.node.get())
                                        : static_cast<const void*>(self.leaf.get());
             return static_cast<Py_hash_t>(reinterpret_cast<std::uintptr_t>(at) >> 4);
           })
      .def("__repr__", [](const PyNode& self) {
        return "<" + (self.node ? node_name(*self.session, *self.node) : "AccumulateGrad") + ">";
      });
  nb::class_<PyFrame>(m, "Frame", "A checkpointed call.")
      .def("__enter__",
           [](PyFrame& self) { self.session->node_modes().begin_frame(self.frame, true); })
      .def(
          "__exit__",
          [](PyFrame& self, nb::handle, nb::handle, nb::handle) {
            self.session->node_modes().end_frame();
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("trace").none())
      .def_prop_ro("count", [](const PyFrame& self) { return self.frame->count; });
  m.def("frame", [](PySession& session, nb::object function) {
    core::Ref<Frame> frame(new Frame);
    frame->function = std::move(function);
    return PyFrame{nb::borrow(session.self), &session, std::move(frame)};
  });
  m.def("function_node", function_node);
  m.def(
      "push_saved_hooks",
      [](PySession& session, nb::object pack, nb::object unpack, nb::list storages) {
        SavedHooks::Hooks hooks{std::move(pack), std::move(unpack), {}};
        for (nb::handle t : storages) {
          const Handle& h = transforms::ground(autograd::handle_of(checked_tensor(t).var()));
          hooks.storages.emplace_back(h.cell, h.layout.dtype);
        }
        session.node_modes().push_saved_hooks(std::move(hooks));
      },
      nb::arg("session"), nb::arg("pack"), nb::arg("unpack"), nb::arg("storages"));
  m.def("saved_hooks", [](PySession& session) { return session.node_modes().saved_hooks(); });
  m.def(
      "pop_saved_hooks",
      [](PySession& session, std::size_t left) { session.node_modes().pop_saved_hooks(left); },
      nb::arg("session"), nb::arg("left"));
  m.def("depends_elsewhere", depends_elsewhere);
  m.def(
      "set_anomaly",
      [](PySession& session, nb::object site, nb::object check) {
        session.node_modes().set_anomaly(std::move(site), std::move(check));
      },
      nb::arg("session"), nb::arg("site").none(), nb::arg("check").none());
  m.def("streamed", &streamed, nb::arg("session"), nb::arg("inline_bytes"), nb::arg("backward"),
        "Calls backward(); gradients are fetched as leaves get them: (leaf, fetch) of each.");
  m.def("inference_mode", [] { return inference_mode(); });
  m.def("set_inference_mode", [](bool on) { set_inference_mode(on); });
}

void bind_transforms(nb::module_& m) {
  m.def(
      "push_forward",
      [](nb::list levels) {
        levels.append(transforms::push(
            {.id = 0, .forward = true, .size = 0, .randomness = Randomness::kSame}));
      },
      nb::arg("levels"), "Opens a level, whose number is the last of the list then.");
  m.def(
      "pop_level",
      [](nb::list levels) { transforms::pop(nb::cast<std::uint64_t>(levels.attr("pop")())); },
      nb::arg("levels"), "Ends the last level of the list.");
  m.def("depth", [] { return transforms::depth; });
  // Returns the value of depth() while code runs below the level.
  m.def("below", [](std::uint64_t id) { return value_or_raise(transforms::position(id)); });
  // The innermost level that a tensor belongs to, as (id, forward, batch size, randomness), or
  // None.
  m.def("innermost", [](nb::list tensors) -> nb::object {
    for (std::size_t k = transforms::depth; k-- > 0;) {
      const Level& level = transforms::at(k);
      for (nb::handle each : tensors) {
        PyTensor& t = checked_tensor(each);
        const bool member =
            level.forward ? value_or_raise(transforms::tangent_of(*t.session, *t.handle, level.id))
                                .is_tensor()
                          : transforms::is_batched(*t.handle, level.id);
        if (member) {
          return nb::make_tuple(level.id, level.forward, level.size,
                                static_cast<int>(level.randomness));
        }
      }
    }
    return nb::none();
  });
  const auto named = [](PyTensor& t, const HandleRef& h) {
    PyObject* made = wrap(*t.session, h);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  };
  m.def("enter", [named](nb::handle x, std::int64_t dim, std::uint64_t id) {
    PyTensor& t = checked_tensor(x);
    return named(t, value_or_raise(transforms::enter(*t.session, t.var(), dim, id)));
  });
  m.def("leave", [named](nb::handle x, std::int64_t dim, std::uint64_t id) {
    PyTensor& t = checked_tensor(x);
    return named(t, value_or_raise(transforms::leave(*t.session, t.var(), dim, id)));
  });
  m.def("is_batched", [](nb::handle x, std::uint64_t id) {
    return transforms::is_batched(*checked_tensor(x).handle, id);
  });
  m.def("variable", [named](nb::handle x) {
    PyTensor& t = checked_tensor(x);
    return named(t, value_or_raise(transforms::variable(*t.session, t.var())));
  });
  m.def("cut", [named](nb::handle x) {
    PyTensor& t = checked_tensor(x);
    return named(t, value_or_raise(transforms::cut(*t.session, t.var())));
  });
  m.def("tangent_of", [](nb::handle x, std::uint64_t id) -> nb::object {
    PyTensor& t = checked_tensor(x);
    return tensor_or_none(*t.session,
                          value_or_raise(transforms::tangent_of(*t.session, *t.handle, id)));
  });
  m.def("set_tangent", [](nb::handle x, nb::handle tangent, std::uint64_t id) {
    const PyTensor &t = checked_tensor(x), &along = checked_tensor(tangent);
    if (t.session != along.session) {
      raise_if(two_sessions(t.handle->layout.device, along.handle->layout.device));
    }
    raise_if(transforms::set_tangent(*t.session, *t.handle, along.var(), id));
  });
}

}  // namespace teletensor::client
