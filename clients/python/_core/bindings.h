// Declarations that the binding files share: the Python objects around Session, Handle and OpDef.
// Frequent operations (operators, operator calls, creating a Tensor) use CPython's own interface;
// the rest uses nanobind. All code here runs with the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "clients/session/session.h"
#include "gil.h"
#include "session/followed.h"
#include "session/gradient_stream.h"
#include "session/hook_table.h"
#include "session/node_modes.h"
#include "session/pending.h"
#include "session/source_lines.h"

namespace teletensor::client {

namespace nb = nanobind;

class PySession final : public Session {
 public:
  explicit PySession(const SessionLimits& limits);
  ~PySession() override;

  core::Result<Var> run_hook(autograd::HookId hook, const Var& g) override;
  Status run_function(autograd::Node& node, std::span<Var> gradients,
                      std::span<Var> given) override;
  Status run_pre_hook(autograd::HookId hook, autograd::Node& node,
                      std::span<Var> gradients) override;
  Status run_post_hook(autograd::HookId hook, autograd::Node& node, std::span<Var> given,
                       std::span<const Var> gradients) override;
  Status run_grad_hook(autograd::HookId hook, Handle& leaf) override;
  Status add_rows(Handle& leaf, bool input, Var& gradient) override;
  Status ran(autograd::Node& node, std::span<const Var> given, bool retain_graph) override;
  bool reads_gradients() const override { return node_modes_.checks_gradients(); }
  bool leaf_done(Handle& leaf) override;
  core::Result<autograd::Node*> again(autograd::Node& node) override;
  Var saved_again(int slot, autograd::Node& node) override;

  // Tensors whose sizes depend on data.
  PendingTensors& pending() { return pending_; }
  // Tensors that show memory of the program.
  FollowedMemory& followed() { return followed_; }
  SourceLines& lines() { return lines_; }
  RepeatedReads& repeated_reads() { return repeated_reads_; }
  GradientStream& gradient_stream() { return gradient_stream_; }
  // Checkpoints, saved_tensors_hooks and anomaly mode.
  NodeModes& node_modes() { return node_modes_; }
  // The Python functions behind the hooks of tensors and nodes.
  HookTable& hooks() { return hooks_; }
  // Returns true if calls must be executed in order: inside levels and checkpoints, in strict mode
  // and in anomaly mode.
  bool in_order() const;

  // A source line such as "file.py:12 in train". Empty if it is no longer known.
  std::string site_of(std::uint64_t seq) const { return lines_.line(seq); }

  bool strict = false;  // Whether to wait after every operator.
  // Called without arguments before each wait for the daemon. An exception ends the wait.
  nb::object before_wait;
  nb::handle self;  // The Python object; a borrowed reference.

 protected:
  Status block(const std::function<bool()>& ready) override;
  Status block_until(const std::function<bool()>& ready);
  void note_site(std::uint64_t seq) override;
  void tick() override;
  std::string issued(std::uint64_t seq) const override {
    const std::string site = site_of(seq);
    return site.empty() ? site : "at " + site;
  }
  std::string here() override {
    const std::uint64_t next = commands().last_seq() + 1;
    note_site(next);  // The next command overwrites this entry with its own line.
    return site_of(next);
  }
  Status before_write(const Handle& h) override { return pending_.before_write(h); }
  Status before_backward() override { return pending_.before_backward(); }
  Status before_raise() override { return pending_.settle_each(); }
  void interrupted(std::uint64_t upto) override { pending_.interrupted(upto); }
  Status before_forget(autograd::Node& node) override;
  Status before_use(Handle& h, bool writes) override { return followed_.before_use(h, writes); }

 private:
  nb::object list_of(std::span<const Var> vars);
  Status take_list(PyObject* list, std::span<Var> vars, const char* what);

  PendingTensors pending_;
  FollowedMemory followed_;
  SourceLines lines_;
  RepeatedReads repeated_reads_;
  GradientStream gradient_stream_;
  NodeModes node_modes_;
  HookTable hooks_;
};

// The progress of a transfer, for other threads. `bound` is set when the command that makes a
// tensor of an upload was issued; from then on the daemon owns the upload.
struct Moved {
  std::atomic<std::uint64_t> bytes{0};
  bool bound = false;
};

// A fetch. If its value is not read, it is released when this object ends; the daemon keeps the
// value of a bulk fetch until then. A `with` block marks that the thread waits.
class PyFetch {
 public:
  PyFetch(nb::object session_object, PySession& session, std::uint64_t seq, bool bulk)
      : session_object_(std::move(session_object)), session_(session), seq_(seq), bulk_(bulk) {}
  ~PyFetch() { end(); }
  PyFetch(const PyFetch&) = delete;
  PyFetch& operator=(const PyFetch&) = delete;

  std::uint64_t seq() const { return seq_; }
  bool bulk() const { return bulk_; }
  void enter() { awaits_.emplace(); }
  void end() {
    awaits_.reset();
    if (std::exchange(ended_, true)) return;
    if (bulk_) {
      session_.commands().taken(seq_);
    } else {
      session_.stream().drop_value(seq_);
    }
  }
  // The value of a fetch that is not bulk. May be called once.
  nb::bytes read();

 private:
  const nb::object session_object_;
  PySession& session_;
  const std::uint64_t seq_;
  const bool bulk_;
  bool ended_ = false;
  std::optional<AwaitsValue> awaits_;
};

// A Python Tensor. Its handle is released before the session.
struct PyTensor {
  nb::object session_object;
  PySession* session = nullptr;
  HandleRef handle;  // Null while the tensor is pending; tensor_of() then creates it.
  core::Ref<Pending> pending;
  PyObject* self = nullptr;   // The Python object; a borrowed reference.
  nb::object kept;            // The contents, if they arrived before they were requested.
  std::uint32_t kept_at = 0;  // Value of the write counter when `kept` was stored.
  // The .grad if it is a sparse tensor, which only the client knows (row_gradients.h). A dense
  // gradient that the handle has besides is to be added to it.
  nb::object sparse_grad;

  // Makes `object` the only Tensor of this handle.
  PyTensor(PySession* s, HandleRef h, PyObject* object)
      : session_object(nb::borrow(s->self)), session(s), handle(std::move(h)), self(object) {
    handle->owner = self;
  }
  PyTensor(PySession* s, core::Ref<Pending> unmade, PyObject* object);
  ~PyTensor();
  PyTensor(const PyTensor&) = delete;
  PyTensor& operator=(const PyTensor&) = delete;
  // The tensor as an operand.
  Var var() const {
    used = true;
    return Var(session, handle);
  }
  mutable bool used = false;  // Whether the stand-in was used as an operand since stand_in().
};

// The session of an operand that is a tensor.
inline PySession& session_of(const Var& tensor) {
  return static_cast<PySession&>(*tensor.builder());
}

// A tape node, or the place where a leaf's gradient is accumulated. Released before the session.
struct PyNode {
  nb::object session_object;
  PySession* session = nullptr;
  core::Ref<autograd::Node> node;
  HandleRef leaf;
};
nb::object node_object(PySession& session, autograd::Node* node, Handle* leaf);
std::string node_name(const PySession& session, const autograd::Node& node);

// The Python type `Tensor`, from which Python subclasses derive.
extern PyTypeObject* tensor_type;
inline bool is_tensor(PyObject* object) {
  return Py_TYPE(object) == tensor_type || PyType_IsSubtype(Py_TYPE(object), tensor_type);
}
bool is_op(PyObject* object);  // Returns true for an operator object of _core.ops.
// Returns null if `object` is not a Tensor, or, with a Python error set, if it is a pending one
// that cannot be created.
PyTensor* tensor_of(PyObject* object);
// The same for an object for which is_tensor() is true.
PyTensor* usable(PyObject* object);
// Throws TypeError if the object is not a Tensor; `what` names it in the message.
PyTensor& checked_tensor(nb::handle object, const char* what = nullptr);
// Returns true if the program has set attributes on this Tensor.
bool has_attributes(PyObject* tensor);
// Returns true if gradients are recorded for the tensor.
bool requires_grad(const PyTensor& tensor);
// The Tensor of h: the existing one, or a new one. Returns a new reference.
PyObject* wrap(PySession& session, const HandleRef& h);

// Sets the Python error for a Status.
void set_error(const Status& status);
// The status of a call of Python code that has set a Python error.
Status aborted();
// Returns the Python exception for a Status, without raising it. `root` > 0 is the number of the
// command that has failed; the exception has it as its attribute `root`.
nb::object exception_of(const Status& status, std::uint64_t root = 0);
void raise_late_error(const Status& status, std::uint64_t root);
// Throws the exception for a Status that is not OK.
void raise_if(const Status& status);
// Converts a shape from Python. Throws if it has too many dimensions.
core::Dims dims_of(std::span<const std::int64_t> shape);
template <class T>
T value_or_raise(core::Result<T> result) {
  raise_if(result.status());
  return std::move(*result);
}
// Raises the session's oldest asynchronous error, with the line that issued the command.
void raise_late(PySession& session);

// The current session, for code that has no tensor (asks teletensor._sessions.session).
PySession& current_session();
constexpr bool is_meta(core::Device device) { return device.kind == core::DeviceKind::kMeta; }
// The session of the device meta, which needs no daemon; it is created by the first call.
PySession& meta_session();
using Arguments = core::InlineVector<Var, 3>;
// Prepares a call whose operands belong to two sessions, and which therefore runs in
// meta_session(): replaces tensors of a daemon by tensors without data. An op takes tensors with
// one dimension or more of one device only, except to_device. `inplace` says that the call writes
// to the first operand.
Status join_meta(OpId id, bool inplace, Arguments& arguments);
// The error of a call with tensors of two sessions, which are on these devices.
Status two_sessions(core::Device a, core::Device b);
// The hook of a tensor whose gradient would have to be copied from the device meta.
constexpr autograd::HookId kNoDataHook = ~autograd::HookId{0};

// Returns an error in a thread that is needed to receive the daemon's answers. Only a finalizer can
// want to wait in such a thread (threads.cc).
Status check_may_wait();

// Conversions of Python objects to operands and attributes. They return false with a Python error
// set.
// Sets no error if the object is not a number.
bool number_of(PyObject* object, core::Number& number);
// to_var() accepts a Tensor or a number; otherwise it returns false, and sets an error only if a
// pending Tensor has one. symbol_of() accepts a number that a capture tracks (jit's Symbol), with
// its tag.
bool symbol_of(PyObject* object, core::Number& number);
// The process's random number generator: its state, and the next `count` ordinals.
std::pair<std::int64_t, std::int64_t> rng_state();
std::pair<std::int64_t, std::int64_t> take_ordinals(std::uint64_t count);
bool to_var(PyObject* object, Var& var);

// Calls operator `id`. Returns its results as Python objects (a new reference), or null with an
// error set.
PyObject* call_op(PySession& session, OpId id, std::span<const Var> arguments,
                  std::span<const std::uint32_t> counts, const core::Attributes& attributes);
PyObject* call_inplace(PySession& session, OpId id, PyObject* self, std::span<const Var> arguments,
                       std::span<const std::uint32_t> counts, const core::Attributes& attributes);

nb::object tuple_of(const core::Dims& numbers);
std::optional<core::DType> dtype_of(PyObject* object);
// Converts a dtype, or one of Python's types bool, int, float and complex. None if the object is
// neither.
std::optional<core::DType> dtype_named_by(PyObject* object);
std::optional<core::Device> device_of(PyObject* object);
core::Device default_device();  // The device of new tensors.
// Sets the Python error for an unknown device name; it lists the existing devices.
void refuse_device(PyObject* name);
// The Python object of a dtype or a device. Returns a new reference.
PyObject* wrap_dtype(core::DType dtype);
PyObject* wrap_device(core::Device device);

extern PyType_Slot tensor_slots[];  // The operator slots of Tensor, defined in operators.cc.

void bind_types(nb::module_& m);  // Binds the types dtype and device, and the errors.
void bind_tensor(nb::module_& m);
void bind_ops(nb::module_& m);  // Binds operator objects and the catalog.
void bind_session(nb::module_& m);
void bind_pending(nb::module_& m);
// Binds Node, Functions, checkpoints, anomaly mode and gradient streams.
void bind_tape(nb::module_& m);
void bind_programs(nb::module_& m);    // Binds capture and calls of programs.
void bind_transforms(nb::module_& m);  // Binds the levels of vmap and forward mode.
void bind_scopes(nb::module_& m);  // Binds modes that are reset even if a signal handler raises.
void bind_row_gradients(nb::module_& m);
void bind_transport(nb::module_& m);
void bind_share(nb::module_& m);
void bind_bridge(nb::module_& m);  // of the PyTorch device
void bind_process(nb::module_& m);
// Binds checks for threads that are needed to receive the daemon's answers.
void bind_threads(nb::module_& m);

// Throws ImportError from the second call in the process on.
void check_first_import();

}  // namespace teletensor::client
