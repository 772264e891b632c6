// The device "tt" of PyTorch: what torch wants to have of a backend, over the functions of
// record.h.
//
// Compiled at the first import against the torch that is there; the only translation unit with
// headers of torch. Tensors are torch's own, and their storages have addresses without memory
// behind them. Here are the kernels by hand, the registration of everything, and the module.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/csrc/Generator.h>

#include "_bridge_compressed.hpp"
#include "_bridge_layers.hpp"
#include "_bridge_replay.hpp"

namespace {

// ---- Kernels by hand: storages, views, copies

// With deterministic algorithms PyTorch wants memory without contents to be filled.
bool fills_memory() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}
at::Tensor filled(at::Tensor made) {
  if (fills_memory()) at::native::fill_empty_deterministic_(made);
  return made;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  if (device) Guard().setDevice(*device);
  return filled(at::detail::empty_generic(
      size, &g_allocator, kKeys, dtype.value_or(c10::get_default_dtype_as_scalartype()), format));
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  if (device) Guard().setDevice(*device);
  return filled(at::detail::empty_strided_generic(
      size, stride, &g_allocator, kKeys, dtype.value_or(c10::get_default_dtype_as_scalartype())));
}

// The tensor's elements as they lie in its storage, without a conjugation or negation to come.
at::Tensor as_stored(const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return tensor;
  at::Tensor plain = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), kKeys, tensor.dtype());
  plain.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return plain;
}

void read_into(const at::Tensor& from, at::Tensor& to) {
  const tt_tensor record = record_of(from);
  const Gil gil;
  check(g_bridge->read(&record, to.mutable_data_ptr(), to.nbytes()));
}
at::Tensor on_cpu(const at::Tensor& tensor) {
  at::Tensor made = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()));
  if (made.numel() > 0) read_into(as_stored(tensor), made);
  if (tensor.is_conj()) made.conj_physical_();
  if (tensor.is_neg()) made.neg_();
  return made;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  if (to.numel() == 0) return to;
  if (to.device().type() != kType) {
    const bool direct = to.is_cpu() && to.is_contiguous() &&
                        to.scalar_type() == self.scalar_type() && to.sizes() == self.sizes() &&
                        !self.is_conj() && !self.is_neg() && !to.is_conj() && !to.is_neg();
    if (direct) {
      at::Tensor target = to;
      read_into(self, target);
    } else {
      to.copy_(on_cpu(self));
    }
    return to;
  }
  at::Tensor target = as_stored(to);
  if (self.device().type() == kType) {
    const at::Tensor source = as_stored(self);
    const tt_tensor into = record_of(target), from = record_of(source);
    const Gil gil;
    check(g_bridge->copy(&into, &from, 0));
  } else {
    const at::Tensor bytes =
        self.resolve_conj().resolve_neg().to(to.scalar_type()).expand(to.sizes()).contiguous();
    const tt_tensor into = record_of(target);
    const Gil gil;
    check(g_bridge->upload(&into, bytes.const_data_ptr(), bytes.nbytes()));
    if (to.is_conj()) target.conj_physical_();
    if (to.is_neg()) target.neg_();
    return to;
  }
  if (self.is_conj() != to.is_conj()) target.conj_physical_();
  if (self.is_neg() != to.is_neg()) target.neg_();
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  at::native::resize_output(to, self.sizes());
  return copy_from(self, to, false);
}
at::Scalar local_scalar_dense(const at::Tensor& self) { return on_cpu(self).item(); }

// The device frees memory in the order of its one stream.
void record_stream(at::Tensor&, c10::Stream) {}

// Room for what the tensor shows; the storage grows where it is too small.
void make_room(const at::Tensor& self) {
  const std::size_t bytes = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.element_size(), self.storage_offset());
  if (self.numel() > 0 && bytes > self.storage().nbytes()) {
    resize_storage(*self.storage().unsafeGetStorageImpl(), bytes);
  }
}
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<c10::MemoryFormat> format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  const auto before = static_cast<std::int64_t>(self.storage().nbytes());
  make_room(self);
  if (fills_memory()) at::native::fill_resize_deterministic_(self, before);
  return self;
}
at::Tensor& set_source(at::Tensor& self, c10::Storage source, std::int64_t offset,
                       c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == kType,
              "Attempted to set the storage of a tensor on device \"tt:0\" to a storage on "
              "different device \"",
              source.device(), "\".");
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr && !size.empty()) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  make_room(self);
  return self;
}
at::Tensor& set_source_whole(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.element_size());
  const std::int64_t one = 1;
  return set_source(self, std::move(source), 0, {&count, 1}, {&one, 1});
}
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_source(self, source.storage(), source.storage_offset(), source.sizes(),
                    source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  const std::int64_t none = 0, one = 1;
  return set_source(
      self,
      c10::Storage(c10::Storage::use_byte_size_t(), 0, g_allocator.allocate(0), &g_allocator, true),
      0, {&none, 1}, {&one, 1});
}

// Parameters of the CPU become the device's without new objects: tied weights stay tied.
bool compatible(const at::Tensor& a, const at::Tensor& b) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided &&
           (tensor.device().is_cpu() || tensor.device().type() == kType);
  };
  return plain(a) && plain(b);
}

// ---- Python

PyObject* fallbacks(PyObject*, PyObject* clear) {
  PyObject* const found = PyDict_New();
  const std::lock_guard lock(g_fallbacks_mutex);
  for (const auto& [name, count] : g_fallbacks) {
    PyObject* const number = PyLong_FromUnsignedLongLong(count);
    PyDict_SetItemString(found, name.c_str(), number);
    Py_DECREF(number);
  }
  if (PyObject_IsTrue(clear)) g_fallbacks.clear();
  return found;
}
PyObject* python_generator(PyObject*, PyObject*) {
  return THPGenerator_initDefaultGenerator(default_generator());
}
PyObject* set_strict(PyObject*, PyObject* on) {
  const bool before = std::exchange(g_strict, PyObject_IsTrue(on) == 1);
  return PyBool_FromLong(before);
}

PyObject* begin(PyObject*, PyObject* arguments) {
  PyObject* capsule = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &capsule, &g_out_of_memory)) return nullptr;
  const auto* const bridge =
      static_cast<const tt_bridge*>(PyCapsule_GetPointer(capsule, TT_TORCH_CAPSULE));
  if (bridge == nullptr) return nullptr;
  if (bridge->version != TT_TORCH_VERSION) {
    PyErr_SetString(PyExc_ImportError, "this extension was built for another teletensor");
    return nullptr;
  }
  Py_INCREF(g_out_of_memory);
  g_bridge = bridge;
  g_bridge->set_random(&random_numbers);
  c10::SetAllocator(kType, &g_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  static auto* const everything = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  everything->fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
  for (const auto key :
       {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
        c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::NestedTensorPrivateUse1}) {
    auto* const others = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    others->fallback(torch::CppFunction::makeFromBoxedFunction<&other_layout>());
  }
  static auto* const aten = new torch::Library(torch::Library::IMPL, "aten",
                                               c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.starts_with("aten::")) register_row(*aten, *op);
  }
  aten->impl("empty.memory_format", TORCH_FN(empty));
  aten->impl("empty_strided", TORCH_FN(empty_strided));
  aten->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten->impl("view", TORCH_FN(at::native::view));
  aten->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten->impl("unfold", TORCH_FN(at::native::unfold));
  aten->impl("view_as_real", TORCH_FN(at::native::view_as_real));
  aten->impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  aten->impl("record_stream", TORCH_FN(record_stream));
  aten->impl("is_set_to", TORCH_FN(at::native::is_set_to));
  aten->impl("_copy_from", TORCH_FN(copy_from));
  aten->impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten->impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  aten->impl("resize_", TORCH_FN(resize));
  aten->impl("set_.source_Storage_storage_offset", TORCH_FN(set_source));
  aten->impl("set_.source_Storage", TORCH_FN(set_source_whole));
  aten->impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  aten->impl("set_", TORCH_FN(set_nothing));
  aten->impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible));
  aten->impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));
  aten->impl("_transformer_encoder_layer_fwd", TORCH_FN(transformer_encoder_layer));
  aten->impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_tensor_is_possible));
  static auto* const sparse = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  register_sparse(*aten, *sparse);
  static auto* const compressed = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  register_compressed(*aten, *sparse, *compressed);
  // Copies look at these bits themselves.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto* const bits = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    bits->impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {
    {"begin", begin, METH_VARARGS, "Registers everything, with the capsule of the functions."},
    {"default_generator", python_generator, METH_NOARGS, "Of operators that are given none."},
    {"fallbacks", fallbacks, METH_O, "Operators that have run on the CPU, and how often."},
    {"dense", python_dense, METH_O, "Tensors, with copies in place of those that are not dense."},
    {"items_hold", python_items_hold, METH_O, "Whether dictionaries have these values."},
    {"modes", python_modes, METH_NOARGS, "Modes on which operators depend, as bytes."},
    {"read_state", python_read_state, METH_VARARGS, "The state of modules and optimizers."},
    {"record", python_record, METH_O, "A tensor as the client sees it."},
    {"replay", python_replay, METH_VARARGS, "Calls a captured step as at an earlier call."},
    {"run", python_run, METH_VARARGS, "Calls a captured step."},
    {"signature", python_signature, METH_O, "What of tensors a captured step depends on."},
    {"set_strict", set_strict, METH_O, "Whether such an operator is an error. What it was before."},
    {"state_holds", python_state_holds, METH_O, "Whether a state is as it was read."},
    {"written", python_written, METH_O, "Counts a write to each of the tensors."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef g_module = {
    PyModuleDef_HEAD_INIT, "_bridge", nullptr, -1, g_methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

namespace at::native {
// The fused operator, where it has what is asked for: numbers of sdp::SDPBackend.
static int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const std::optional<at::Tensor>&,
                                double dropout, bool, std::optional<double>, bool grouped) {
  constexpr int64_t kMath = 0, kOverrideable = 4;
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                     query.sizes().slice(0, 2) == key.sizes().slice(0, 2) &&
                     query.sizes().slice(0, 2) == value.sizes().slice(0, 2);
  return !plain || dropout > 0 || grouped ? kMath : kOverrideable;
}
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)

// I0(beta sqrt(1 - (2 i / (length - 1) - 1)^2)) / I0(beta), for the numbers i of operand 1.
static void kaiser_window(TensorIteratorBase& iterator, int64_t length, double beta) {
  const at::Tensor from_middle = iterator.tensor(1) * (2.0 / static_cast<double>(length - 1)) - 1;
  const at::Tensor angle = (1 - from_middle * from_middle).clamp_min(0).sqrt() * beta;
  const at::Tensor largest = at::scalar_tensor(beta, at::TensorOptions().dtype(at::kDouble)).i0();
  iterator.tensor(0).copy_(angle.i0() / largest.item());
}
REGISTER_PRIVATEUSE1_DISPATCH(kaiser_window_stub, &kaiser_window)
}  // namespace at::native

namespace at::autocast {
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TT_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TT_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TT_LOWER)
  AT_FORALL_FP32(TT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TT_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TT_PROMOTE)
}
}  // namespace at::autocast

PyMODINIT_FUNC PyInit__bridge() { return PyModule_Create(&g_module); }
