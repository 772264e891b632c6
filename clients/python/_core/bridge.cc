// The table of functions that the PyTorch extension calls (clients/torch/record.h), in a capsule.
//
// There is one session for the process: the current one when the device is first used.

#include "bridge.h"

#include <cstring>
#include <mutex>

#include "bindings.h"
#include "clients/session/error_text.h"
#include "clients/torch/call.h"

namespace teletensor::client {
namespace {

class TorchHost final : public torch::Host {
 public:
  PySession& own() {
    if (session_ == nullptr) {
      PySession& current = current_session();
      const nb::object place =
          nb::module_::import_("teletensor.torch._bytes").attr("place")(nb::borrow(current.self));
      device_ = *device_of(place.ptr());
      session_ = &current;
      (void)nb::borrow(session_->self).release();  // its tensors may live to the process's end
    }
    return *session_;
  }
  Session& session() override { return own(); }
  core::Device device() override {
    own();
    return device_;
  }

  void random(void* generator, std::uint64_t count, std::int64_t& seed,
              std::int64_t& ordinal) override {
    random_(generator, count, &seed, &ordinal);
  }
  void set_random(tt_random random) { random_ = random; }

  core::Result<std::int64_t> integer_of(const Var& tensor) override {
    const std::string bytes = read_small(autograd::handle_of(tensor));
    std::int64_t value = 0;
    std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
    return value;
  }

  // The bytes of a tensor, row-major.
  void read(const Var& tensor, void* to, std::uint64_t count) {
    if (own().commands().tracer() != nullptr) {
      const std::string line = session().here();
      raise_if(Status(core::Code::kFailedPrecondition,
                      (line.empty() ? "" : line + ": ") +
                          "a captured step cannot read a tensor's value (.item(), .cpu(), bool(), "
                          "print): return the tensor, or use torch.where in place of an if"));
    }
    nb::object object = nb::steal(wrap(own(), HandleRef(&autograd::handle_of(tensor))));
    if (!object.is_valid()) throw nb::python_error();
    const nb::object bytes = nb::module_::import_("teletensor.torch._bytes").attr("read")(object);
    Py_buffer view;
    if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    const bool whole = static_cast<std::uint64_t>(view.len) == count;
    if (whole) std::memcpy(to, view.buf, count);
    PyBuffer_Release(&view);
    if (!whole) raise_if(core::invalid("a read gave another number of bytes than the tensor has"));
  }

  Var upload(core::DType dtype, const core::Dims& shape, const void* bytes, std::uint64_t count) {
    constexpr std::uint64_t kInline = 16384;
    const auto* const data = static_cast<const char*>(bytes);
    if (count <= kInline) {
      return Var(&own(),
                 value_or_raise(own().constant(dtype, device_, shape, std::string(data, count))));
    }
    const nb::object view = nb::steal(PyMemoryView_FromMemory(
        const_cast<char*>(data), static_cast<Py_ssize_t>(count), PyBUF_READ));
    const nb::object made =
        nb::module_::import_("teletensor.torch._bytes")
            .attr("upload")(nb::borrow(own().self), view, nb::steal(wrap_dtype(dtype)),
                            nb::steal(wrap_device(device_)));
    PyTensor* tensor = tensor_of(made.ptr());
    if (tensor == nullptr) throw nb::python_error();
    return ops::reshape(tensor->var(), shape);
  }

  // Raises what arose.
  void finish(const Status& status) {
    if (PyErr_Occurred()) throw nb::python_error();
    raise_if(status);
    if (!own().strict) return;
    raise_if(own().synchronize());
    raise_late(own());
  }

  // From any thread.
  void drop(tt_storage* storage) {
    const std::lock_guard lock(mutex_);
    dropped_.push_back(storage);
  }
  void sweep() {
    std::vector<tt_storage*> gone;
    {
      const std::lock_guard lock(mutex_);
      if (dropped_.empty()) return;
      gone.swap(dropped_);
    }
    for (tt_storage* each : gone) delete each;
  }

  // The results of the last call of this thread. A call may wait, and another thread may then call.
  static std::vector<tt_result>& results() {
    thread_local std::vector<tt_result> own;
    return own;
  }

  torch::Table table;

 private:
  std::string read_small(autograd::Handle& h) {
    ValueReads& reads = own().value_reads();
    if (auto known = reads.find(own(), h)) return std::move(known->data);
    auto value = reads.wait(own(), value_or_raise(reads.ask(own(), h)));
    if (PyErr_Occurred()) throw nb::python_error();
    raise_late(own());
    wire::FetchedValue fetched = value_or_raise(std::move(value));
    if (!fetched.status.ok()) {
      raise_late_error(
          Status(fetched.status.code(), explained(own(), fetched.status.message(), fetched.root)),
          fetched.root);
    }
    return std::move(fetched.data);
  }

  PySession* session_ = nullptr;
  core::Device device_;
  tt_random random_ = nullptr;
  std::mutex mutex_;
  std::vector<tt_storage*> dropped_;
};

// Never destroyed, because storages that refer to it may live as long as the process.
TorchHost& host() {
  static auto* const the_host = new TorchHost;
  return *the_host;
}

int guarded(const std::function<int()>& run) {
  try {
    host().sweep();
    return run();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return -1;
}

int call(int row, const tt_value* values, const tt_result** results, std::size_t* count) {
  return guarded([&] {
    TorchHost& h = host();
    std::vector<tt_result>& made = TorchHost::results();
    const Status status = h.table.call(h, row, h.table.arguments(row, values), made);
    if (status.code() == core::Code::kUnimplemented) return 1;
    h.finish(status);
    *results = made.data();
    *count = made.size();
    return 0;
  });
}

int copy(const tt_tensor* to, const tt_tensor* from, int last) {
  return guarded([&] {
    TorchHost& h = host();
    const Var value = torch::operand(h.own(), h.device(), *from);
    raise_if(h.own().take_status());
    h.finish(last != 0 ? torch::give(h.own(), h.device(), *to, value)
                       : torch::write(h.own(), h.device(), *to, value));
    return 0;
  });
}

int upload(const tt_tensor* to, const void* bytes, std::uint64_t count) {
  return guarded([&] {
    TorchHost& h = host();
    const Var value =
        h.upload(value_or_raise(torch::dtype_of(to->dtype)), torch::sizes_of(*to), bytes, count);
    raise_if(h.own().take_status());
    h.finish(torch::give(h.own(), h.device(), *to, value));
    return 0;
  });
}

int read(const tt_tensor* from, void* bytes, std::uint64_t count) {
  return guarded([&] {
    TorchHost& h = host();
    const Var value = torch::operand(h.own(), h.device(), *from);
    raise_if(h.own().take_status());
    h.read(value, bytes, count);
    return 0;
  });
}

int resize_storage(tt_storage* storage, std::uint64_t bytes) {
  return guarded([&] {
    host().finish(torch::resize(host().own(), *storage, bytes));
    return 0;
  });
}

constexpr tt_bridge kBridge{
    .version = TT_TORCH_VERSION,
    .resolve = [](const tt_schema* schema) { return host().table.resolve(*schema); },
    .call = call,
    .new_storage =
        [](std::uint64_t bytes) {
          auto* storage = new tt_storage;
          storage->bytes = bytes;
          return storage;
        },
    .drop_storage = [](tt_storage* storage) { host().drop(storage); },
    .resize_storage = resize_storage,
    .copy = copy,
    .upload = upload,
    .read = read,
    .set_random = [](tt_random random) { host().set_random(random); },
    .run =
        [](void* step, const tt_tensor* arguments, std::size_t count, const tt_result** results,
           std::size_t* made) {
          return guarded([&] {
            TorchHost& h = host();
            std::vector<tt_result>& own = TorchHost::results();
            if (!run_step(h, step, {arguments, count}, own)) return 1;
            h.finish({});
            *results = own.data();
            *made = own.size();
            return 0;
          });
        },
};

}  // namespace

PySession& torch_session() { return host().own(); }
core::Device torch_device() { return host().device(); }
void sweep_torch() { host().sweep(); }

void bind_bridge(nb::module_& m) {
  m.def(
      "torch_bridge",
      [] { return nb::capsule(static_cast<const void*>(&kBridge), TT_TORCH_CAPSULE); },
      "The functions that the PyTorch extension calls.");
  m.def(
      "torch_session", []() -> nb::object { return nb::borrow(host().own().self); },
      "The session of the PyTorch device; the current one from the first call on.");
  m.def(
      "torch_sweep", [] { host().sweep(); }, "Lets go of the storages that torch has dropped.");
  bind_torch_steps(m);
}

}  // namespace teletensor::client
