// teletensor._core: the native part of the Python client.

#include <algorithm>
#include <cstdlib>
#include <new>

#include "bindings.h"
#include "calls/autocast.h"
#include "calls/checked.h"
#include "calls/described.h"
#include "calls/methods.h"
#include "calls/tf32.h"
#include "capture/frames.h"
#include "clients/session/error_text.h"
#include "collection.h"

namespace teletensor::client {
namespace {

PyObject* g_current;  // A callable that returns the current Session object.

}  // namespace

PySession::PySession(const SessionLimits& limits)
    : Session(limits), pending_(*this), followed_(*this), node_modes_(*this) {}

PySession::~PySession() {
  const WithoutGil released;  // Released, because the writer may wait for the GIL.
  stream().detach();
}

core::Result<Var> PySession::run_hook(autograd::HookId hook, const Var& g) {
  if (hook == kNoDataHook) return no_data();
  const nb::object callable = hooks_.find(hook);
  if (!callable.is_valid()) return g;
  static const ops::OpRef contiguous("contiguous");
  Var seen = g;
  if (!g.layout().geometry.contiguous()) {
    ops::Vars out = call(contiguous, {&seen, 1}, {}, {});
    TT_RETURN_IF_ERROR(status_);
    seen = out[0];
  }
  nb::object gradient = nb::steal(wrap(*this, HandleRef(&autograd::handle_of(seen))));
  // Hooks run in the gradient mode of the backward: they are recorded only with create_graph.
  PyObject* changed = call_python(callable.ptr(), gradient.ptr());
  if (changed == nullptr) return Status(core::Code::kAborted, "a hook raised an exception");
  const nb::object result = nb::steal(changed);
  if (result.is_none()) return seen;
  PyTensor* tensor = tensor_of(result.ptr());
  if (tensor == nullptr && PyErr_Occurred()) {
    return Status(core::Code::kAborted, "the tensor that a hook returned cannot be computed");
  }
  if (tensor == nullptr || tensor->session != this) {
    PyErr_SetString(PyExc_TypeError, "a gradient hook must return None or a Tensor of the session");
    return Status(core::Code::kAborted, "a hook returned no tensor");
  }
  return tensor->var();
}

void PySession::note_site(std::uint64_t seq) { lines_.note(seq, PendingCall::site()); }

bool PySession::in_order() const {
  return transforms::depth != 0 || strict || node_modes_.in_order();
}

void PySession::tick() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool ending = Py_IsFinalizing();
#else
  const bool ending = _Py_IsFinalizing();
#endif
  if (ending) return;
  const WithGil held;
  commands().idle();
}

Status PySession::block(const std::function<bool()>& ready) {
  if (before_wait.is_valid() && !before_wait.is_none()) [[unlikely]] {
    const nb::object call = before_wait;
    PyObject* done = call_python(call.ptr());
    if (done == nullptr) return Status(core::Code::kCancelled, "the wait was refused");
    Py_DECREF(done);
  }
  if (!recorder().on()) return block_until(ready);
  client::Recorder::Wait wait{core::now_ns(), 0, commands().last_seq(), here()};
  const Status status = block_until(ready);
  wait.ns = core::now_ns() - wait.begin;
  recorder().add(std::move(wait));
  return status;
}

Status PySession::block_until(const std::function<bool()>& ready) {
  for (bool first = true;; first = false) {
    bool done = false;
    {
      const WithoutGil released;
      // The slices are short, so that Ctrl-C is noticed soon. The first one is shorter still,
      // because a finalizer that must not wait here would delay the threads that wait for it.
      done = stream().wait_for(ready, std::chrono::milliseconds(first ? 5 : 100));
    }
    if (done) return {};
    if (PyErr_CheckSignals() != 0) return Status(core::Code::kCancelled, "interrupted");
    if (first) TT_RETURN_IF_ERROR(check_may_wait());
  }
}

PySession& current_session() {
  if (g_current == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "teletensor is not initialised");
    throw nb::python_error();
  }
  nb::object session = nb::steal(call_python(g_current));
  if (!session.is_valid()) throw nb::python_error();
  return *nb::cast<PySession*>(session);
}

namespace {

using Sizes = std::vector<std::int64_t>;
// id, base, grad, dtype, device, shape, strides, offset, cell, clock, elements, made,
// requires_grad, read_only.
using Kept = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, int, std::string, Sizes, Sizes,
                        std::int64_t, std::uint64_t, std::uint64_t, std::int64_t, int, bool, bool>;

nb::object object_or_none(const nb::object& object) {
  return object.is_valid() ? object : nb::none();
}

nb::dict resume(PySession& s, std::uint64_t next_seq, std::uint64_t next_id,
                std::uint64_t completed_upto, const std::vector<Kept>& tensors,
                const std::vector<std::pair<std::string, std::uint64_t>>& names) {
  program::Inventory inventory;
  for (const auto& [id, base, grad, dtype, device, shape, strides, offset, cell, clock, elements,
                    made, flag, read_only] : tensors) {
    const auto known = core::dtype_from_number(static_cast<std::uint32_t>(dtype));
    const auto place = core::device_from_name(device);
    if (!known || !place || shape.size() > core::kMaxRank || shape.size() != strides.size()) {
      raise_if(core::invalid("the daemon keeps a tensor that this client cannot describe"));
    }
    program::Inventory::Item& item = inventory.items.emplace_back();
    item.id = id;
    item.base = base;
    item.grad = grad;
    item.layout = {*known, *place, core::Geometry(core::Dims(shape), core::Dims(strides), offset)};
    item.cell = cell;
    item.clock = clock;
    item.elements = elements;
    item.made = static_cast<std::uint8_t>(made);
    item.flag = flag;
    item.read_only = read_only;
  }
  const std::vector<HandleRef> handles =
      value_or_raise(s.resume(next_seq, next_id, completed_upto, inventory));
  nb::dict kept;
  for (const auto& [name, id] : names) {
    for (const HandleRef& h : handles) {
      if (h->id == id) kept[name.c_str()] = nb::steal(wrap(s, h));
    }
  }
  return kept;
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<PySession>(m, "Session", nb::is_weak_referenceable(), nb::dynamic_attr(),
                        "The native part of a session; teletensor.Session wraps it.")
      .def(
          "__init__",
          [](nb::pointer_and_handle<PySession> self, std::uint64_t credit_upto,
             std::uint64_t credit_bytes, std::size_t frame_bytes, std::size_t frame_commands,
             std::size_t frame_items, std::size_t inline_bytes, std::uint64_t quota, bool keeps,
             std::size_t retained_bytes, std::uint64_t programs, std::uint64_t program_steps,
             std::uint64_t program_bytes, std::uint64_t kept, std::uint64_t handles,
             std::uint32_t protocol, bool meta) {
            SessionLimits limits;
            limits.meta = meta;
            limits.most.programs = programs;
            limits.most.program_steps = program_steps;
            limits.most.program_bytes = program_bytes;
            limits.most.kept = kept;
            limits.most.handles = handles;
            limits.credit_upto = credit_upto;
            limits.credit_bytes = credit_bytes;
            limits.frame = {frame_bytes, frame_commands, frame_items, inline_bytes};
            limits.quota = quota;
            limits.keeps = keeps;
            limits.protocol = protocol;
            limits.retained_bytes = retained_bytes;
            new (self.p) PySession(limits);
            self.p->self = self.h;
          },
          nb::arg("credit_upto"), nb::arg("credit_bytes"), nb::arg("frame_bytes"),
          nb::arg("frame_commands"), nb::arg("frame_items"), nb::arg("inline_bytes"),
          nb::arg("quota"), nb::arg("keeps"), nb::arg("retained_bytes"), nb::arg("programs") = 0,
          nb::arg("program_steps") = 0, nb::arg("program_bytes") = 0, nb::arg("kept") = 0,
          nb::arg("handles") = 0, nb::arg("protocol") = wire::kProtocol, nb::arg("meta") = false)
      .def(
          "next_frame",
          [](PySession& s, double seconds, std::uint64_t stream) -> nb::object {
            std::string frame;
            bool more;
            {
              const WithoutGil released;
              more = s.stream().next_frame(frame, seconds, stream);
            }
            if (!more) return nb::none();
            return nb::bytes(frame.data(), frame.size());
          },
          nb::arg("seconds"), nb::arg("stream"),
          "The next frame's bytes; b'' when the time has passed, None when the stream is over.")
      .def(
          "take_up",
          [](PySession& s, std::uint64_t attach, std::uint64_t received_upto) {
            return s.stream().take_up(attach, received_upto);
          },
          nb::arg("attach"), nb::arg("received_upto"),
          "A new stream takes over; its number, for next_frame.")
      .def(
          "retain", [](PySession& s) { s.stream().retain(); },
          "Retains frames that have run from now on.")
      .def_prop_ro("replay_from", [](const PySession& s) { return s.stream().replay_from(); })
      .def(
          "replay",
          [](PySession& s, std::uint64_t attach, std::uint64_t received_upto,
             std::uint64_t credit_upto, std::uint64_t credit_bytes, std::uint64_t bytes_received) {
            return s.stream().replay(attach, received_upto, credit_upto, credit_bytes,
                                     bytes_received);
          },
          nb::arg("attach"), nb::arg("received_upto"), nb::arg("credit_upto"),
          nb::arg("credit_bytes"), nb::arg("bytes_received"),
          "Like take_up, for a daemon whose session is in an earlier state than this client.")
      .def(
          "freeze",
          [](PySession& s, int code, const std::string& why) {
            s.commands().freeze(code == 0 ? Status() : Status(static_cast<core::Code>(code), why));
          },
          nb::arg("code"), nb::arg("why"),
          "Allows only reading from now on; code 0 allows everything again.")
      .def_prop_ro("frozen", [](const PySession& s) { return s.commands().frozen(); })
      .def_prop_ro("progress_upto", [](const PySession& s) { return s.stream().progress_upto(); })
      .def_prop_ro("completed_upto", [](const PySession& s) { return s.stream().completed_upto(); })
      .def_prop_ro("uploads_upto", [](const PySession& s) { return s.uploads_upto(); })
      .def_prop_ro("over", [](const PySession& s) { return s.stream().over(); })
      .def(
          "keep",
          [](PySession& s, const std::string& name, nb::handle object) {
            PyTensor* t = object.is_none() ? nullptr : tensor_of(object.ptr());
            if (PyErr_Occurred()) throw nb::python_error();
            raise_if(s.names().keep(name, t ? t->handle.get() : nullptr));
          },
          nb::arg("name"), nb::arg("tensor").none())
      .def(
          "publish",
          [](PySession& s, const std::string& name, nb::handle object, bool writable,
             const std::string& users) {
            PyTensor* t = object.is_none() ? nullptr : tensor_of(object.ptr());
            if (PyErr_Occurred()) throw nb::python_error();
            raise_if(s.names().publish(name, t ? t->handle.get() : nullptr, writable, users));
          },
          nb::arg("name"), nb::arg("tensor").none(), nb::arg("writable"), nb::arg("users"))
      .def(
          "join",
          [](PySession& s, std::uint64_t group, const std::string& name, std::uint32_t rank,
             std::uint32_t ranks, std::uint64_t timeout_ms, bool elastic) {
            raise_if(s.names().join({group, name, rank, ranks, timeout_ms, elastic}));
          },
          nb::arg("group"), nb::arg("name"), nb::arg("rank"), nb::arg("ranks"),
          nb::arg("timeout_ms"), nb::arg("elastic"))
      .def(
          "leave", [](PySession& s, std::uint64_t group) { raise_if(s.names().leave(group)); },
          nb::arg("group"))
      .def(
          "published",
          [](PySession& s, std::uint64_t id, int dtype, const std::string& device,
             const Sizes& shape, bool writable) {
            const auto known = core::dtype_from_number(static_cast<std::uint32_t>(dtype));
            const auto place = core::device_from_name(device);
            if (!known || !place || shape.size() > core::kMaxRank) {
              raise_if(core::invalid("published: a tensor that this client cannot describe"));
            }
            return nb::steal(wrap(s, value_or_raise(s.names().published(
                                         {id, *known, *place, core::Dims(shape), writable}))));
          },
          nb::arg("publication"), nb::arg("dtype"), nb::arg("device"), nb::arg("shape"),
          nb::arg("writable"))
      .def("resume", &resume, nb::arg("next_seq"), nb::arg("next_id"), nb::arg("completed_upto"),
           nb::arg("tensors"), nb::arg("names"))
      .def("taken", [](PySession& s, std::uint64_t fetch) { s.commands().taken(fetch); })
      .def("on_progress",
           [](PySession& s, nb::bytes bytes) {
             const std::string_view view(bytes.c_str(), bytes.size());
             raise_if(s.stream().on_progress(view));
           })
      .def("lost",
           [](PySession& s, int code, const std::string& why) {
             s.stream().lost(Status(static_cast<core::Code>(code), why));
           })
      .def("close", [](PySession& s) { s.stream().close(); })
      .def(
          "detach",
          [](PySession& s) {
            const WithoutGil released;
            s.stream().detach();
          },
          "Cuts the stream.")
      .def(
          "raise_lost", [](const PySession& s) { raise_if(s.stream().loss()); },
          "Raises the loss of the session, if it is lost.")
      .def("idle", [](PySession& s) { s.commands().idle(); })
      .def("synchronize",
           [](PySession& s) {
             const Status settled = s.pending().settle_all();
             PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
             // If an asynchronous error exists, it is raised instead.
             PyErr_Fetch(&type, &value, &trace);
             const nb::object own[] = {nb::steal(type), nb::steal(value), nb::steal(trace)};
             const Status status = s.synchronize();
             if (PyErr_Occurred()) throw nb::python_error();
             raise_late(s);
             if (type != nullptr) {
               PyErr_Restore(own[0].inc_ref().ptr(), own[1].inc_ref().ptr(),
                             own[2].inc_ref().ptr());
               throw nb::python_error();
             }
             raise_if(settled);
             raise_if(status);
           })
      .def("raise_pending", [](PySession& s) { raise_late(s); })
      .def_prop_ro("has_pending", [](const PySession& s) { return s.errors().any(); })
      .def(
          "pending_errors",
          [](PySession& s) {
            nb::list out;
            for (const wire::ErrorEvent& error : s.errors().all()) {
              out.append(exception_of(
                  Status(error.status.code(), explained(s, error.status.message(), error.root)),
                  error.root));
            }
            return out;
          },
          "The exceptions of the asynchronous errors that were received and not raised.")
      .def(
          "take_lost_ranks",
          [](PySession& s) {
            nb::list out;
            for (const wire::LostRankEvent& lost : s.errors().take_lost_ranks()) {
              out.append(nb::make_tuple(lost.group, lost.rank, nb::str(lost.why.c_str())));
            }
            return out;
          },
          "The ranks without which elastic groups continue, as (group, rank, why), that were "
          "received since the last call.")
      .def(
          "join_pending",
          [](PySession& s, int code) {
            std::string text = s.errors().join(static_cast<core::Code>(code));
            if (PyErr_Occurred()) throw nb::python_error();
            return text;
          },
          nb::arg("code"),
          "Takes the pending late errors of one status code, and says in a sentence which they "
          "were.")
      .def("clear_pending",
           [](PySession& s) {
             s.errors().clear();
             if (PyErr_Occurred()) throw nb::python_error();
           })
      .def(
          "wait_completed",
          [](PySession& s) {
            const Status status = s.synchronize();
            if (PyErr_Occurred()) throw nb::python_error();
            raise_if(status);
          },
          "Waits until everything issued has run. Raises no late error.")
      .def_prop_ro("completed_upto", [](const PySession& s) { return s.stream().completed_upto(); })
      .def_prop_ro("waits", [](PySession& s) { return s.value_reads().waits(); })
      .def_prop_ro(
          "known_bytes", [](PySession& s) { return s.value_reads().used(); },
          "The memory of the tensor values that this client knows, in bytes.")
      .def_prop_rw(
          "most_known_bytes", [](PySession& s) { return s.value_reads().most(); },
          [](PySession& s, std::size_t bytes) { s.value_reads().set_most(bytes); },
          "The bound on known_bytes. 0: every read is a Fetch.")
      .def_prop_ro("held", [](const PySession& s) { return s.commands().held(); })
      .def_prop_ro("last_seq", [](const PySession& s) { return s.commands().last_seq(); })
      .def(
          "record", [](PySession& s, bool on, bool shapes) { s.recorder().turn(on, shapes); },
          nb::arg("on"), nb::arg("shapes") = false)
      .def(
          "take_shapes",
          [](PySession& s) {
            nb::dict found;
            for (const auto& each : s.recorder().take_shapes()) {
              nb::list arguments;
              for (const core::Dims& shape : each.arguments) {
                nb::list dims;
                for (const std::int64_t dim : shape) dims.append(dim);
                arguments.append(dims);
              }
              found[nb::int_(each.seq)] = arguments;
            }
            return found;
          },
          "The shapes of the arguments of commands by number, since the last call.")
      .def("take_record",
           [](PySession& s) {
             const auto [frames, waits] = s.recorder().take();
             nb::list sent, waited;
             for (const auto& f : frames) sent.append(nb::make_tuple(f.at, f.last_seq, f.bytes));
             for (const auto& w : waits) {
               waited.append(nb::make_tuple(w.begin, w.ns, w.last_seq, w.site));
             }
             return nb::make_tuple(sent, waited);
           })
      .def(
          "mark_interrupted", [](PySession& s) { return s.errors().mark_interrupted(); },
          "Marks all issued commands as not needed; returns the number of the last one, or 0.")
      .def(
          "dropped",
          [](PySession& s, std::uint64_t upto, double seconds) {
            const PendingErrors::Dropped found = [&] {
              const WithoutGil released;
              return s.errors().dropped_commands(
                  upto, std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
            }();
            return nb::make_tuple(found.first, found.commands);
          },
          nb::arg("upto"), nb::arg("seconds"),
          "The first of the commands up to `upto` that was cancelled, and how many were.")
      .def_prop_ro("queued", [](const PySession& s) { return s.commands().queued(); })
      .def(
          "interrupt_again", [](PySession& s) { return s.errors().interrupt_again(); },
          "True if this thread waits for a value and commands queued at an earlier Ctrl-C have not "
          "run.")
      .def_prop_ro("interrupt_pending", [](PySession& s) { return s.errors().interrupt_pending(); })
      .def_prop_ro("tape_nodes", [](PySession& s) { return s.graph().objects().live_nodes(); })
      .def_rw("strict", &PySession::strict)
      .def(
          "follow",
          [](PySession& s, nb::handle tensor, nb::object refresh) {
            s.followed().follow(*tensor_of(tensor.ptr())->handle, std::move(refresh));
          },
          nb::arg("tensor"), nb::arg("refresh"),
          "Calls refresh(tensor) before each use of the tensor's memory.")
      .def("follow_nothing", [](PySession& s) { s.followed().clear(); })
      .def(
          "set_handed_over",
          [](PySession& s, nb::handle tensor, bool on) {
            s.followed().set_handed_over(*tensor_of(tensor.ptr())->handle, on);
          },
          nb::arg("tensor"), nb::arg("on"))
      .def(
          "follower_of",
          [](PySession& s, nb::handle tensor) {
            return s.followed().follower_of(*tensor_of(tensor.ptr())->handle);
          },
          nb::arg("tensor"), "The `refresh` of a tensor that follows memory, or None.")
      .def_rw("expand_backward", &PySession::expand_backward)
      .def_prop_rw(
          "on_reads", [](PySession& s) { return object_or_none(s.repeated_reads().on_many); },
          [](PySession& s, nb::object call) { s.repeated_reads().on_many = std::move(call); },
          nb::arg("value").none())
      .def_prop_rw(
          "before_wait", [](const PySession& s) { return object_or_none(s.before_wait); },
          [](PySession& s, nb::object call) { s.before_wait = std::move(call); },
          nb::arg("value").none(),
          "Called before each wait for the daemon; an exception of it ends the wait.")
      .def_prop_rw(
          "on_lap", [](PySession& s) { return object_or_none(s.lines().on_lap); },
          [](PySession& s, nb::object call) { s.lines().on_lap = std::move(call); },
          nb::arg("value").none())
      .def_prop_ro(
          "fading_upto",
          [](const PySession& s) { return SourceLines::fading_upto(s.commands().last_seq()); })
      .def("site_of", [](const PySession& s, std::uint64_t seq) { return s.site_of(seq); })
      .def(
          "explained",
          [](const PySession& s, const std::string& text, std::uint64_t root) {
            return explained(s, text, root);
          },
          nb::arg("text"), nb::arg("root"))
      .def("wait_bulk",
           [](PySession& s, std::uint64_t seq) {
             auto value = s.wait_fetched(seq);
             if (PyErr_Occurred()) throw nb::python_error();
             raise_late(s);
             const wire::FetchedValue fetched = value_or_raise(std::move(value));
             raise_if(fetched.status);
           })
      .def("constant",
           [](PySession& s, nb::handle dtype, nb::handle device, std::vector<std::int64_t> shape,
              nb::bytes bytes) {
             HandleRef h = value_or_raise(s.constant(*dtype_of(dtype.ptr()),
                                                     *device_of(device.ptr()), dims_of(shape),
                                                     std::string(bytes.c_str(), bytes.size())));
             return nb::steal(wrap(s, h));
           })
      .def(
          "uploaded",
          [](PySession& s, std::uint64_t upload, nb::handle dtype, nb::handle device,
             std::vector<std::int64_t> shape, Moved& moved) {
            HandleRef h = value_or_raise(s.uploaded(upload, *dtype_of(dtype.ptr()),
                                                    *device_of(device.ptr()), dims_of(shape)));
            moved.bound = true;
            return nb::steal(wrap(s, h));
          },
          nb::arg("upload"), nb::arg("dtype"), nb::arg("device"), nb::arg("shape"),
          nb::arg("moved"), "The tensor of a whole upload.");
  m.def(
      "set_current",
      [](nb::object callable, const std::string& package) {
        Py_XDECREF(g_current);
        g_current = callable.release().ptr();
        set_package_folder(package);
      },
      nb::arg("callable"), nb::arg("package"));
  m.def(
      "pass_over", [](const std::string& library) { pass_over(library); }, nb::arg("library"),
      "Lines of files in this folder are not the program's.");
}

}  // namespace teletensor::client

NB_MODULE(_core, m) {
  using namespace teletensor::client;
  check_first_import();
  // No leak warnings, because tensors may exist until the interpreter ends.
  nanobind::set_leak_warnings(false);
  bind_types(m);
  bind_tensor(m);
  bind_ops(m);
  bind_checked(m);
  bind_described(m);
  bind_methods(m);
  bind_autocast(m);
  bind_tf32(m);
  bind_session(m);
  bind_pending(m);
  bind_tape(m);
  bind_row_gradients(m);
  bind_transforms(m);
  bind_scopes(m);
  bind_transport(m);
  bind_share(m);
  bind_bridge(m);
  bind_process(m);
  bind_threads(m);
  bind_programs(m);
}
