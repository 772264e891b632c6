// What the binding files share: the Python objects around Session, Handle and OpDef.
//
// Hot paths (operators, op calls, making a Tensor) use CPython's own interface; the rest is
// nanobind. Everything here runs under the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "clients/session/session.h"
#include "gil.h"
#include "pending.h"

namespace teletensor::client {

namespace nb = nanobind;

// A checkpointed call: how to run it again, and the nodes that its second run has recorded.
class Frame final : public core::Counted {
 public:
  nb::object function;
  std::size_t count = 0;  // nodes of the first run that saved something
  std::vector<core::Ref<autograd::Node>> nodes;
  std::size_t left = 0;  // of `nodes`, not yet used up
  nb::object outputs;    // of the second run: they keep its nodes alive on the daemon
};

// What this client knows of a tape node.
class NodeExtra final : public core::Counted {
 public:
  nb::object runner;  // of a Function: called with the node and the gradients
  std::string name;
  core::Ref<Frame> frame;
  std::size_t index = 0;  // in the frame
  std::string site;       // anomaly mode: where it was recorded
  // saved_tensors_hooks: the hooks for each saved value of the node, until it is packed.
  struct Packing {
    nb::object pack, unpack;  // neither: the value is kept as it is
    int storage = -1;         // its number among those that the hooks are for; -1: they are for all
  };
  std::vector<Packing> packing;
  // The results of pack().
  struct Packed {
    int slot;
    nb::object value, unpack;
    bool requires_grad;
  };
  std::vector<Packed> packed;
};
NodeExtra& extra_of(autograd::Node& node);

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
  Status ran(autograd::Node& node, std::span<const Var> given, bool retain_graph) override;
  bool leaf_done(Handle& leaf) override;
  core::Result<autograd::Node*> again(autograd::Node& node) override;
  Var saved_again(int slot, autograd::Node& node) override;

  // ---- Tensors that are not made yet (pending.h)
  // Makes it; false: a Python error is set.
  bool resolve(PyTensor& tensor);
  // Makes all; an error of any is raised.
  Status settle_all();
  void add(Pending& pending);
  Status make_room();
  // The program has let go of it.
  void dropped(PyTensor& tensor);
  // Whether calls must be carried out in order: inside levels, checkpoints, with strict and anomaly
  // mode.
  bool in_order() const;
  Site present_site();

  // Checkpoint: between begin and end, nodes belong to the frame and their saved values go.
  void begin_frame(core::Ref<Frame> frame, bool first);
  void end_frame();
  // saved_tensors_hooks of this thread: `pack` sees what nodes save, `unpack` gives it back.
  // `storages` not empty: only for what is saved of these tensors' storages, in their dtypes;
  // pack() then gets the number among them, shape, strides and offset in place of a tensor.
  void push_saved_hooks(nb::object pack, nb::object unpack, std::span<const HandleRef> storages);
  std::size_t saved_hooks() const { return saved_hooks_.size(); }
  // The innermost ones go until `left` are left.
  void pop_saved_hooks(std::size_t left);
  // Anomaly mode: `site` gives the place of the present line, `check` looks at a node's gradients.
  void set_anomaly(nb::object site, nb::object check);
  // Gradients are fetched as leaves get them, from a stream's begin to its end.
  struct Streamed {
    HandleRef leaf;
    std::uint64_t seq;
    bool bulk;
  };
  void begin_stream(std::size_t inline_bytes);
  std::vector<Streamed> end_stream();
  autograd::HookId add_hook(nb::object callable);
  void drop_hook(autograd::HookId hook) { hooks_.erase(hook); }

  // "file.py:12 in train", or "" where it is no longer known.
  std::string site_of(std::uint64_t seq) const;
  // Called without arguments whenever kLap more commands have been issued, in the middle of issuing
  // one: it must be C code that runs no Python code. Its exceptions are dropped.
  nb::object on_lap;
  // Commands up to this one are the older half of those whose lines site_of() knows.
  std::uint64_t fading_upto() const { return last_seq() - std::min(last_seq(), kSites / 2); }

  // From here on h and its views show memory of the program's: `refresh` is called with h before
  // they are used, and gives it its contents. Ends with h's last other name.
  void follow(Handle& h, nb::object refresh);
  void follow_nothing();
  // Lets them be a tensor like any other for a while, or no longer.
  void set_handed_over(const Handle& h, bool on);
  // Whether h shows such memory, and who gives it its contents; None.
  nb::object follower_of(const Handle& h) const;

  bool strict = false;  // wait after every op
  // Command `seq` reads the value of one element. The kManyReads-th time in a row for one line, and
  // with few commands in between, on_reads is called with the line.
  void note_read(std::uint64_t seq);
  nb::object on_reads;
  // Called without arguments before each wait for the daemon; an exception of it ends the wait.
  nb::object before_wait;
  nb::handle self;  // the Python object, not counted

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
    note_site(last_seq() + 1);  // the next command writes its own over it
    return site_of(last_seq() + 1);
  }
  Status before_write(const Handle& h) override;
  Status before_backward() override;
  Status before_raise() override;
  void interrupted(std::uint64_t upto) override;
  Status before_forget(autograd::Node& node) override;
  Status before_use(Handle& h, bool writes) override;

 private:
  struct SavedHooks {
    nb::object pack, unpack;
    std::vector<std::pair<core::Ref<autograd::Cell>, core::DType>> storages;  // empty: all
    std::thread::id thread;
  };
  // The innermost hooks of this thread that are for such a value.
  NodeExtra::Packing packing_of(const autograd::Node::SavedSlot& slot) const;
  std::vector<SavedHooks> saved_hooks_;  // innermost last
  // Makes the tensor, or notes why that is not possible. Errors: a wait failed.
  Status settle(PyTensor& tensor);
  Status finish(PyTensor& tensor, Pending& pending);
  Status settle_those(const std::function<bool(const Pending&)>& wanted);
  void unregister(Pending& pending);
  std::string text_of(const Site& site) const;
  void end_lap();

  static constexpr int kManyReads = 64;
  static constexpr std::uint64_t kFewCommands = 4;
  const PyObject* read_code_ = nullptr;  // of the last read, to compare; not counted
  int read_instruction_ = 0, reads_ = 0;
  std::uint64_t read_seq_ = 0;

  // The lines of the last kSites commands are known. A lap is so long that meanwhile a thread can
  // tell the daemon those that it lacks.
  static constexpr std::uint64_t kSites = 1 << 17, kLap = kSites / 4;
  std::vector<Site> sites_;
  std::deque<Pending*> unresolved_;  // oldest first; not counted
  std::uint64_t held_ = 0;           // bytes of their operands
  void watch_nodes();
  nb::object list_of(std::span<const Var> vars);
  Status take_list(PyObject* list, std::span<Var> vars, const char* what);

  struct Followed {
    HandleRef handle;  // of the cell, and nobody else's
    nb::object refresh;
    bool handed_over = false, busy = false;
  };
  std::unordered_map<const autograd::Cell*, Followed> followed_;
  void forget_followed();

  std::unordered_map<autograd::HookId, nb::object> hooks_;
  autograd::HookId next_hook_ = 1;
  struct OpenFrame {
    core::Ref<Frame> frame;
    bool first;  // run
    std::thread::id thread;
  };
  std::vector<OpenFrame> frames_;  // innermost last
  nb::object anomaly_site_, anomaly_check_;
  bool streaming_ = false;
  std::size_t stream_inline_ = 0;
  std::vector<Streamed> streamed_;
};

// A transfer: how much of it is done, for other threads, and whether the command is issued that
// makes an upload's bytes a tensor. The upload is the daemon's from then on.
struct Moved {
  std::atomic<std::uint64_t> bytes{0};
  bool bound = false;
};

// A fetch whose value this gives back where it is not read. The daemon keeps a bulk one's until
// this ends. A `with` tells that the thread waits.
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
      session_.taken(seq_);
    } else {
      session_.unwanted(seq_);
    }
  }
  // The value of one that is not bulk. Once.
  nb::bytes read();

 private:
  const nb::object session_object_;
  PySession& session_;
  const std::uint64_t seq_;
  const bool bulk_;
  bool ended_ = false;
  std::optional<AwaitsValue> awaits_;
};

// A Python Tensor. Its handle goes before the session does.
struct PyTensor {
  nb::object session_object;
  PySession* session = nullptr;
  HandleRef handle;  // null while it is pending: tensor_of() makes it
  core::Ref<Pending> pending;
  PyObject* self = nullptr;   // the Python object, not counted
  nb::object kept;            // its bytes, where they came before anybody asked
  std::uint32_t kept_at = 0;  // the clock then

  // Makes `object` the one Tensor of this handle.
  PyTensor(PySession* s, HandleRef h, PyObject* object)
      : session_object(nb::borrow(s->self)), session(s), handle(std::move(h)), self(object) {
    handle->owner = self;
  }
  PyTensor(PySession* s, core::Ref<Pending> unmade, PyObject* object);
  ~PyTensor();
  PyTensor(const PyTensor&) = delete;
  PyTensor& operator=(const PyTensor&) = delete;
  // As an operand.
  Var var() const {
    used = true;
    return Var(session, handle);
  }
  mutable bool used = false;  // since stand_in()
};

// A tape node, or the place where a leaf's gradient arrives. Goes before the session does.
struct PyNode {
  nb::object session_object;
  PySession* session = nullptr;
  core::Ref<autograd::Node> node;
  HandleRef leaf;
};
nb::object node_object(PySession& session, autograd::Node* node, Handle* leaf);
std::string node_name(const PySession& session, const autograd::Node& node);

bool is_tensor(PyObject* object);
bool is_op(PyObject* object);  // one of _core.ops
// nullptr where `object` is no Tensor; or, with a Python error set, where a pending one cannot be
// made.
PyTensor* tensor_of(PyObject* object);
// Has the program set attributes of its own on this Tensor?
bool has_attributes(PyObject* tensor);
// Are gradients recorded for it?
bool requires_grad(const PyTensor& tensor);
// The Tensor of h: the living one, or a new one (a new reference).
PyObject* wrap(PySession& session, const HandleRef& h);
// For `Tensor` and its Python subclasses.
extern PyTypeObject* tensor_type;

// Sets the Python error that a Status stands for.
void set_error(const Status& status);
// The Python exception that a Status becomes, not raised.
nb::object exception_of(const Status& status);
// Throws it.
void raise_if(const Status& status);
// A shape from Python; raises where the rank is above the limit.
core::Dims dims_of(std::span<const std::int64_t> shape);
template <class T>
T value_or_raise(core::Result<T> result) {
  raise_if(result.status());
  return std::move(*result);
}
// Raises the session's oldest late error, with the line that issued it.
void raise_late(PySession& session);

// The session of code that has no tensor yet (asks teletensor._session).
PySession& current_session();

// Refuses on a thread that the daemon's answers need, where only a finalizer can want to wait for
// one (threads.cc).
Status check_may_wait();

// Python objects to ops' operands and attributes. False: a Python error is set.
bool number_of(PyObject* object, core::Number& number);  // no error set where it is no number
// Tensor or number; else false, and an error is set only where a pending Tensor has one.
// A number that a capture follows (jit's Symbol), with its tag.
bool symbol_of(PyObject* object, core::Number& number);
// The process's random generator: its state, and the next `count` ordinals of it.
std::pair<std::int64_t, std::int64_t> rng_state();
std::pair<std::int64_t, std::int64_t> take_ordinals(std::uint64_t count);
bool to_var(PyObject* object, Var& var);

// Calls op `id` with results as Python objects (a new reference; nullptr: error set). For
// operators.
PyObject* call_op(PySession& session, OpId id, std::span<const Var> arguments,
                  std::span<const std::uint32_t> counts, const core::Attributes& attributes);
PyObject* call_inplace(PySession& session, OpId id, PyObject* self, std::span<const Var> arguments,
                       std::span<const std::uint32_t> counts, const core::Attributes& attributes);

std::optional<core::DType> dtype_of(PyObject* object);
// The same, also of Python's bool, int, float and complex.
std::optional<core::DType> dtype_named_by(PyObject* object);
std::optional<core::Device> device_of(PyObject* object);
// Sets the Python error for what names no device; it lists those that there are.
void refuse_device(PyObject* name);
PyObject* wrap_dtype(core::DType dtype);  // a new reference
PyObject* wrap_device(core::Device device);

extern PyType_Slot tensor_slots[];  // operators.cc

void bind_types(nb::module_& m);  // dtype, device, errors
void bind_tensor(nb::module_& m);
void bind_ops(nb::module_& m);  // Op objects, catalog
void bind_session(nb::module_& m);
void bind_pending(nb::module_& m);
void bind_tape(nb::module_& m);        // Node, Functions, checkpoints, anomaly mode, streams
void bind_programs(nb::module_& m);    // capture and calls
void bind_transforms(nb::module_& m);  // levels of vmap and forward mode
void bind_scopes(nb::module_& m);      // modes that a signal does not leave on
void bind_transport(nb::module_& m);
void bind_share(nb::module_& m);
void bind_bridge(nb::module_& m);  // of the PyTorch device
void bind_process(nb::module_& m);
void bind_threads(nb::module_& m);  // those that the daemon's answers need

// ImportError, as an exception, from the second call of the process on.
void check_first_import();

}  // namespace teletensor::client
