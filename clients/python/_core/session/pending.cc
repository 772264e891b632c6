#include "session/pending.h"

#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "clients/session/error_text.h"

namespace teletensor::client {
namespace {

struct PyCounts {
  nb::object session_object;
  core::Ref<Counts> counts;
};

// Limits on the memory that unresolved tensors keep alive although the program may have released
// it. Beyond them, the oldest tensor is created first.
constexpr std::size_t kMaxPending = 256;
constexpr std::uint64_t kMinHeld = 64ull << 20;

thread_local const Site* t_site = nullptr;

// Sets the modes of the original call while it exists.
class Modes {
 public:
  explicit Modes(const Pending& pending)
      : record_(grad_mode()),
        inference_(inference_mode()),
        site_(std::exchange(t_site, &pending.site)),
        below_(pending.depth) {
    set_grad_mode(pending.record);
    set_inference_mode(pending.inference);
  }
  ~Modes() {
    set_grad_mode(record_);
    set_inference_mode(inference_);
    t_site = site_;
  }

 private:
  const bool record_, inference_;
  const Site* const site_;
  const transforms::Below below_;
};

// Takes the current error as an object, with the source line of the call in its text.
nb::object taken_error(const std::string& site) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  nb::object error = nb::steal(value);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  if (site.empty()) return error;
  PyObject* args = PyObject_GetAttrString(error.ptr(), "args");
  if (args != nullptr && PyTuple_Check(args) && PyTuple_GET_SIZE(args) == 1 &&
      PyUnicode_Check(PyTuple_GET_ITEM(args, 0))) {
    const std::string text = nb::cast<std::string>(nb::handle(PyTuple_GET_ITEM(args, 0)));
    if (text.find("(issued at ") == std::string::npos) {
      const nb::object changed = nb::make_tuple(text + "\n(issued at " + site + ")");
      if (PyObject_SetAttrString(error.ptr(), "args", changed.ptr()) != 0) PyErr_Clear();
    }
  }
  Py_XDECREF(args);
  PyErr_Clear();
  return error;
}

void raise_object(const nb::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

}  // namespace

const Site* PendingCall::site() { return t_site; }

// ---------------------------------------------------------------- Counts

Counts::~Counts() {
  if (seq != 0) session.stream().drop_value(seq);
}

Status Counts::ask() {
  if (handle->id == 0) {
    return core::invalid(
        "vmap: the size of this result depends on the values of each sample (nonzero, unique, "
        "boolean "
        "masks, ...); nonzero_static, where and masked_fill have results of one size");
  }
  auto given = session.fetch(*handle, false);
  if (!given.ok()) return given.status();
  seq = asked = *given;
  return {};
}

Status Counts::wait(Status& found) {
  while (!done_) {
    if (busy_) {
      if (waits_ == std::this_thread::get_id()) {
        return core::invalid(
            "a finalizer or a signal handler needs the size of a tensor that its own thread waits "
            "for");
      }
      TT_RETURN_IF_ERROR(session.commands().wait_until([this] { return !busy_.load(); }));
      continue;
    }
    // The number is 0 after an earlier wait was interrupted; the Fetch is then issued again.
    if (seq == 0) TT_RETURN_IF_ERROR(ask());
    busy_ = true;
    waits_ = std::this_thread::get_id();
    auto value = session.wait_fetched(std::exchange(seq, 0));
    busy_ = false;
    session.stream().wake();
    if (!value.ok()) return value.status();
    root = value->root;
    status_ = value->status;
    if (status_.ok()) {
      const std::size_t count = value->data.size() / sizeof(std::int64_t);
      numbers.resize(count);
      std::memcpy(numbers.data(), value->data.data(), count * sizeof(std::int64_t));
    }
    done_ = true;
  }
  found = status_;
  return {};
}

// ---------------------------------------------------------------- Pending

Pending::~Pending() { Py_XDECREF(site.code); }

// Creates the tensor, or records the error that prevents it. Returns an error if the wait failed or
// was interrupted.
Status PendingTensors::settle(PyTensor& tensor) {
  TT_RETURN_IF_ERROR(session_.stream().origin().check());
  while (tensor.pending) {
    const core::Ref<Pending> pending = tensor.pending;
    if (pending->error.is_valid()) return {};
    if (pending->busy) {
      if (pending->runs == std::this_thread::get_id()) {
        return core::internal("the creation of a tensor needs the tensor itself");
      }
      TT_RETURN_IF_ERROR(session_.commands().wait_until([&] { return !pending->busy.load(); }));
      continue;
    }
    pending->busy = true;
    pending->runs = std::this_thread::get_id();
    const Status status = finish(tensor, *pending);
    pending->busy = false;
    session_.stream().wake();
    TT_RETURN_IF_ERROR(status);
  }
  return {};
}

Status PendingTensors::finish(PyTensor& tensor, Pending& pending) {
  // Another thread may drop the last reference while this one waits.
  const nb::object alive = nb::borrow(tensor.self);
  Status found;
  TT_RETURN_IF_ERROR(pending.counts->wait(found));
  if (pending.error.is_valid()) return {};  // Creating the tensor was interrupted meanwhile.
  if (!found.ok()) {
    pending.error = exception_of(
        Status(found.code(), explained(session_, found.message(), pending.counts->root)),
        pending.counts->root);
    pending.cancelled = found.code() == core::Code::kCancelled;
    unregister(pending);
    return {};
  }
  PyObject* made = nullptr;
  {
    const Modes modes(pending);
    nb::list numbers;
    for (std::int64_t n : pending.counts->numbers) numbers.append(n);
    Status before = session_.take_status();
    const nb::object call = pending.finish;
    made = call_python(call.ptr(), numbers.ptr());
    session_.put_status(std::move(before));
  }
  PyTensor* result = made == nullptr ? nullptr : tensor_of(made);
  if (made != nullptr && result == nullptr && !PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError,
                    "the function that creates a pending tensor returned no Tensor");
  }
  if (pending.error.is_valid()) {  // Creating the tensor was interrupted meanwhile.
    Py_XDECREF(made);
    PyErr_Clear();
    return {};
  }
  if (result == nullptr) {
    Py_XDECREF(made);
    // After Ctrl-C the tensor can still be created by a later use.
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return aborted();
    pending.error = taken_error(line_of(pending.site));
    unregister(pending);
    return {};
  }
  tensor.handle = result->handle;
  Py_DECREF(made);
  tensor.handle->owner = tensor.self;
  unregister(pending);
  tensor.pending = nullptr;
  return {};
}

bool PendingTensors::resolve(PyTensor& tensor) {
  const nb::object alive = nb::borrow(tensor.self);
  const Status status = settle(tensor);
  if (PyErr_Occurred()) return false;
  if (!status.ok()) {
    set_error(status);
    return false;
  }
  // The oldest asynchronous error of the session is raised first.
  if (t_site == nullptr && session_.errors().any()) {
    try {
      raise_late(session_);
    } catch (nb::python_error& error) {
      error.restore();
      return false;
    }
  }
  if (tensor.pending) {
    raise_object(tensor.pending->error);
    return false;
  }
  return true;
}

void PendingTensors::unregister(Pending& pending) {
  const auto found = std::find(unresolved_.begin(), unresolved_.end(), &pending);
  if (found == unresolved_.end()) return;
  unresolved_.erase(found);
  held_ -= pending.bytes;
  pending.operands.clear();
  pending.finish.reset();
  session_.watching = !unresolved_.empty();
}

void PendingTensors::dropped(PyTensor& tensor) {
  const core::Ref<Pending> pending = tensor.pending;
  pending->tensor = nullptr;
  unregister(*pending);
}

Status PendingTensors::settle_those(const std::function<bool(const Pending&)>& wanted) {
  std::vector<core::Ref<Pending>> some;
  for (Pending* each : unresolved_) {
    const bool mine = each->busy && each->runs == std::this_thread::get_id();
    if (!mine && wanted(*each)) some.emplace_back(each);
  }
  for (const core::Ref<Pending>& each : some) {
    if (each->tensor == nullptr || Py_REFCNT(each->tensor->self) == 0) continue;
    const nb::object alive = nb::borrow(each->tensor->self);
    TT_RETURN_IF_ERROR(settle(*each->tensor));
  }
  return {};
}

Status PendingTensors::before_write(const Handle& h) {
  return settle_those([&](const Pending& pending) {
    return std::any_of(pending.operands.begin(), pending.operands.end(),
                       [&](const HandleRef& each) { return each->cell == h.cell; });
  });
}

// A backward writes to the .grad of leaves that are not known yet.
Status PendingTensors::before_backward() {
  return settle_those([](const Pending& pending) {
    return std::any_of(pending.operands.begin(), pending.operands.end(),
                       [](const HandleRef& each) { return core::is_inexact(each->layout.dtype); });
  });
}

Status PendingTensors::settle_each() {
  return settle_those([](const Pending&) { return true; });
}

void PendingTensors::interrupted(std::uint64_t upto) {
  const std::vector<Pending*> all(unresolved_.begin(), unresolved_.end());
  for (Pending* each : all) {
    if (each->counts->asked > upto || (each->busy && each->runs == std::this_thread::get_id()))
      continue;
    const core::Ref<Pending> pending(each);
    set_error(Status(core::Code::kCancelled, "interrupted before it was computed"));
    pending->error = taken_error(line_of(pending->site));
    pending->cancelled = true;
    unregister(*pending);
  }
}

Status PendingTensors::settle_all() {
  std::vector<core::Ref<Pending>> all;
  for (Pending* each : unresolved_) all.emplace_back(each);
  TT_RETURN_IF_ERROR(settle_each());
  for (const core::Ref<Pending>& each : all) {
    if (!each->error.is_valid() || each->cancelled) continue;
    raise_object(each->error);
    return aborted();
  }
  return {};
}

void PendingTensors::add(Pending& pending) {
  unresolved_.push_back(&pending);
  held_ += pending.bytes;
  session_.watching = true;
}

Status PendingTensors::make_room() {
  const std::uint64_t most = std::max(kMinHeld, session_.graph().largest_result / 4);
  while (!unresolved_.empty() && (held_ > most || unresolved_.size() > kMaxPending)) {
    const Pending* const oldest = unresolved_.front();
    TT_RETURN_IF_ERROR(settle_those([=](const Pending& each) { return &each == oldest; }));
    // Another thread is creating the oldest pending tensor.
    if (!unresolved_.empty() && unresolved_.front() == oldest) break;
  }
  return {};
}

namespace {

nb::object pending(PyCounts& counts, nb::object finish, nb::handle dtype, std::int64_t rank,
                   nb::list operands) {
  PySession& session = counts.counts->session;
  PyTensor& first = checked_tensor(operands[0]);
  const core::Ref<Pending> made(new Pending);
  made->counts = counts.counts;
  made->finish = std::move(finish);
  made->dtype = *dtype_of(dtype.ptr());
  made->device = first.handle->layout.device;
  made->rank = rank;
  made->record = grad_mode();
  made->inference = inference_mode();
  made->depth = transforms::depth;
  made->site = present_site();
  for (nb::handle each : operands) {
    Handle& h = *checked_tensor(each).handle;
    made->operands.emplace_back(&h);
    made->bytes += static_cast<std::uint64_t>(h.cell->bytes);
    if (made->record && core::is_inexact(made->dtype) && transforms::ground(h).requires_grad()) {
      made->requires_grad = true;
    }
  }
  nb::object object = nb::inst_alloc(nb::handle(reinterpret_cast<PyObject*>(tensor_type)));
  if (!object.is_valid()) throw nb::python_error();
  auto* t = nb::inst_ptr<PyTensor>(object);
  new (t) PyTensor(&session, made, object.ptr());
  nb::inst_mark_ready(object);
  session.pending().add(*made);
  // Levels, checkpoint frames and similar states belong to the call, so nothing is postponed inside
  // them.
  if (session.in_order()) {
    if (!session.pending().resolve(*t)) throw nb::python_error();
    return object;
  }
  const Status status = session.pending().make_room();
  if (PyErr_Occurred()) throw nb::python_error();
  raise_if(status);
  return object;
}

}  // namespace

void bind_pending(nb::module_& m) {
  nb::class_<PyCounts>(m, "Counts", "Numbers of the daemon's that decide sizes, under way.")
      .def(
          "__init__",
          [](PyCounts* self, nb::handle numbers) {
            PyTensor& t = checked_tensor(numbers);
            if (t.handle->layout.dtype != core::DType::kI64) {
              raise_if(core::invalid("Counts: expected an int64 tensor"));
            }
            core::Ref<Counts> counts(new Counts(*t.session, t.handle));
            raise_if(counts->ask());
            new (self) PyCounts{t.session_object, std::move(counts)};
          },
          nb::arg("numbers"));
  m.def(
      "pending", pending, nb::arg("counts"), nb::arg("finish"), nb::arg("dtype"), nb::arg("rank"),
      nb::arg("operands"),
      "A Tensor that finish(numbers) makes once its shape is asked for. The operands are those it "
      "reads.");
}

}  // namespace teletensor::client
