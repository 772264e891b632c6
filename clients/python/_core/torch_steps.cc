// Captured steps of PyTorch programs: the trace of a step, and its calls. The Python part is
// teletensor/torch/_trace.py.

#include "bridge.h"
#include "capture/programs.h"

namespace teletensor::client {
namespace {

// A program, and the storages that each call gives new contents: those are its first outputs, and
// the others are results.
struct TorchStep {
  nb::object program;
  std::vector<std::shared_ptr<tt_storage*>> kept;  // null: torch has dropped it
  // Storages that the program reads or writes, with the contents that it means.
  std::vector<std::pair<std::shared_ptr<tt_storage*>, HandleRef>> used;
};

tt_storage* storage_at(std::uintptr_t address) { return reinterpret_cast<tt_storage*>(address); }

nb::object object_of(const HandleRef& h) {
  PyObject* const object = wrap(torch_session(), h);
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

// All of a dense tensor's elements, in one dimension: what arguments of a program are. Views of
// them are then made in the program, and not known from outside of it.
HandleRef flat(PySession& session, const tt_tensor& tensor) {
  std::int64_t count = 1;
  const std::int64_t one = 1;
  for (std::int32_t i = 0; i < tensor.rank; ++i) count *= tensor.sizes[i];
  const tt_tensor all{tensor.storage, tensor.dtype, 1, &count, &one, tensor.offset};
  const Var found = torch::operand(session, torch_device(), all);
  raise_if(session.take_status());
  return HandleRef(&autograd::handle_of(found));
}

nb::object operand(std::uintptr_t storage, std::int32_t dtype, std::vector<std::int64_t> sizes,
                   std::vector<std::int64_t> strides, std::int64_t offset) {
  const tt_tensor tensor{
      storage_at(storage), dtype,          static_cast<std::int32_t>(sizes.size()),
      sizes.data(),        strides.data(), offset};
  PySession& session = torch_session();
  const Var found = torch::operand(session, torch_device(), tensor);
  raise_if(session.take_status());
  return object_of(HandleRef(&autograd::handle_of(found)));
}

// The contents of a storage, if the current trace has made them.
nb::object made(std::uintptr_t storage) {
  const HandleRef& base = storage_at(storage)->base;
  const autograd::Tracer* const tracer = torch_session().commands().tracer();
  if (tracer == nullptr || !base || !tracer->alive().contains(base->id)) return nb::none();
  return object_of(base);
}

void put(std::uintptr_t storage, nb::handle contents) {
  torch::rebind(*storage_at(storage), checked_tensor(contents).handle);
}

// `storages`: of the arguments. Each has one dense tensor, and contents of one dimension.
void begin(std::uint64_t seed, std::uint64_t ordinal, const std::vector<std::uintptr_t>& storages) {
  PySession& session = torch_session();
  sweep_torch();
  raise_if(session.programs().begin_trace(seed, ordinal));
  int place = 0;
  for (const std::uintptr_t each : storages) {
    tt_storage& storage = *storage_at(each);
    storage.views.clear();
    session.commands().tracer()->argument(*storage.base, place++);
  }
}

std::shared_ptr<tt_storage*> watched(std::uintptr_t address) {
  std::shared_ptr<tt_storage*>& watch = storage_at(address)->watch;
  if (watch == nullptr) watch = std::make_shared<tt_storage*>(storage_at(address));
  return watch;
}

nb::object step(nb::object program, const std::vector<std::uintptr_t>& kept,
                const std::vector<std::uintptr_t>& used) {
  auto made = std::make_unique<TorchStep>();
  made->program = std::move(program);
  for (const std::uintptr_t each : kept) made->kept.push_back(watched(each));
  for (const std::uintptr_t each : used) {
    made->used.emplace_back(watched(each), storage_at(each)->base);
  }
  PyObject* const capsule = PyCapsule_New(made.get(), TT_STEP_CAPSULE, [](PyObject* self) {
    delete static_cast<TorchStep*>(PyCapsule_GetPointer(self, TT_STEP_CAPSULE));
  });
  if (capsule == nullptr) throw nb::python_error();
  made.release();
  return nb::steal(capsule);
}

}  // namespace

bool run_step(torch::Host& host, void* pointer, std::span<const tt_tensor> arguments,
              std::vector<tt_result>& results) {
  const TorchStep& step = *static_cast<const TorchStep*>(pointer);
  PySession& session = torch_session();
  results.clear();
  for (const auto& [watch, contents] : step.used) {
    if (*watch != nullptr && (*watch)->base.get() != contents.get()) return false;
  }
  std::vector<HandleRef> given;
  for (const tt_tensor& each : arguments) {
    given.push_back(flat(session, each));
  }
  const auto draw = [&](std::uint64_t count) {
    std::int64_t seed = 0, ordinal = 0;
    host.random(nullptr, count, seed, ordinal);
    return std::pair(seed, ordinal);
  };
  const std::optional<Handles> made = call_program(step.program, given, draw);
  if (!made) return false;
  for (std::size_t i = 0; i < made->size(); ++i) {
    const HandleRef& each = (*made)[i];
    if (i < step.kept.size()) {
      if (*step.kept[i] != nullptr) torch::rebind(**step.kept[i], each);
    } else {
      raise_if(torch::make_result(session, Var(&session, each), {}, results.emplace_back()));
    }
  }
  return true;
}

void bind_torch_steps(nb::module_& m) {
  m.def("torch_operand", &operand, nb::arg("storage"), nb::arg("dtype"), nb::arg("sizes"),
        nb::arg("strides"), nb::arg("offset"), "The Tensor that a tensor of torch shows.");
  m.def("torch_made", &made, nb::arg("storage"),
        "The contents of a storage of torch, if the current trace has made them; else None.");
  m.def(
      "torch_bytes",
      [](nb::handle contents) { return checked_tensor(contents).handle->cell->bytes; },
      nb::arg("contents"), "The size of the memory that a Tensor is in.");
  m.def("torch_put", &put, nb::arg("storage"), nb::arg("contents"),
        "Gives a storage of torch other contents, of as many bytes.");
  m.def("torch_begin", &begin, nb::arg("seed"), nb::arg("ordinal"), nb::arg("storages"),
        "Begins a trace in the session of the device, with torch's generator in this state. "
        "`storages` are those of the arguments.");
  m.def(
      "torch_end",
      [](nb::list outputs, std::uint64_t drawn) {
        return end_trace_drawn(torch_session(), outputs, drawn, "step", {}, false);
      },
      nb::arg("outputs"), nb::arg("drawn"),
      "Ends the trace: what end_trace gives. `drawn`: how many of the generator's numbers it "
      "took.");
  m.def("torch_step", &step, nb::arg("program"), nb::arg("kept"), nb::arg("used"),
        "A capsule for the extension. Each call of it gives the storages `kept` the first outputs "
        "of the program, and is valid while the storages `used` have the contents of now.");
  m.def("same_steps", &same_steps, nb::arg("a"), nb::arg("b"),
        "Whether two Programs have the same steps, numbers and results.");
  m.def("same_sources", &same_sources, nb::arg("a"), nb::arg("b"),
        "Whether two Programs have the same arguments and read the same memory.");
}

}  // namespace teletensor::client
