// The device "tt" of PyTorch: what torch wants to have of a backend, over the functions of
// record.h.
//
// Compiled at the first import against the torch that is there; the only file with headers of
// torch. Tensors are torch's own, and their storages have addresses without memory behind them.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <Python.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/library.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>

#include "record.h"

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

const tt_bridge* g_bridge = nullptr;
PyObject* g_out_of_memory = nullptr;  // teletensor's class
bool g_strict = false;

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

// Raises the Python error that a function of the table has set.
[[noreturn]] void raise() {
  if (PyErr_ExceptionMatches(g_out_of_memory)) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* text = PyObject_Str(value);
    const std::string message = text != nullptr ? PyUnicode_AsUTF8(text) : "out of memory";
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  python_error error;
  error.persist();
  throw error;
}
void check(int code) {
  if (code != 0) raise();
}

// ---- Addresses: ranges of an address space that nothing lies in, so that two storages never have
// the same, and a read of one ends the process instead of giving something.

class Addresses {
 public:
  void* take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    auto& free = free_[size];
    if (!free.empty()) {
      void* const found = free.back();
      free.pop_back();
      return found;
    }
    if (next_ == nullptr) {
      void* const begin =
          mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(begin != MAP_FAILED, "tt: this process cannot reserve 32 TiB of addresses");
      next_ = static_cast<char*>(begin);
      end_ = next_ + kBytes;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, size <= static_cast<std::size_t>(end_ - next_),
                     "tt: a storage of ", bytes, " bytes has no room among 32 TiB of addresses");
    return std::exchange(next_, next_ + size);
  }
  void put_back(void* address, std::size_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    free_[rounded(bytes)].push_back(address);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 45;
  // To an eighth of a power of two: then a program has few sizes, whose ranges are used again.
  static std::size_t rounded(std::size_t bytes) {
    const std::size_t step = std::max<std::size_t>(64, std::bit_ceil(bytes) / 16);
    return (bytes + step) / step * step;  // with room behind the last byte
  }
  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;
  char* next_ = nullptr;
  char* end_ = nullptr;
};
Addresses& addresses() {
  static auto* const all = new Addresses;  // storages may outlive every static object
  return *all;
}

struct Contents {
  tt_storage* storage;
  void* address;
  std::size_t bytes;
};
void drop_contents(void* pointer) {
  auto* const contents = static_cast<Contents*>(pointer);
  addresses().put_back(contents->address, contents->bytes);
  g_bridge->drop_storage(contents->storage);
  delete contents;
}
c10::DataPtr data_of(tt_storage* storage, std::size_t bytes) {
  auto* const contents = new Contents{storage, addresses().take(bytes), bytes};
  return {contents->address, contents, &drop_contents, kDevice};
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    return data_of(g_bridge->new_storage(bytes), bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tt: memory of the device cannot be copied on the host");
  }
};
Allocator g_allocator;

Contents& contents_of(const c10::StorageImpl& storage) {
  auto* const found = static_cast<Contents*>(storage.data_ptr().get_context());
  TORCH_CHECK(found != nullptr && storage.data_ptr().get_deleter() == &drop_contents,
              "tt: this storage is not the device's");
  return *found;
}

void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  Contents& old = contents_of(storage);
  {
    const Gil gil;
    check(g_bridge->resize_storage(old.storage, bytes));
  }
  addresses().put_back(old.address, old.bytes);
  old.bytes = bytes;
  old.address = addresses().take(bytes);
  // The same contents under another address.
  auto* const moved = new Contents(old);
  c10::DataPtr before = storage.set_data_ptr({moved->address, moved, &drop_contents, kDevice});
  delete static_cast<Contents*>(before.release_context());
  storage.set_nbytes(bytes);
}

tt_tensor record_of(const at::Tensor& tensor) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  return {contents_of(*impl.storage().unsafeGetStorageImpl()).storage,
          static_cast<std::int32_t>(tensor.scalar_type()),
          static_cast<std::int32_t>(impl.dim()),
          impl.sizes().data(),
          impl.strides().data(),
          impl.storage_offset()};
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor tensor_of(const tt_result& result) {
  const auto dtype = static_cast<c10::ScalarType>(result.tensor.dtype);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), result.storage_bytes,
      data_of(result.tensor.storage, result.storage_bytes), &g_allocator, true);
  at::Tensor made = at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), kKeys,
                                                                  c10::scalarTypeToTypeMeta(dtype));
  const auto rank = static_cast<std::size_t>(result.tensor.rank);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      {result.tensor.sizes, rank}, {result.tensor.strides, rank}, result.tensor.offset);
  return made;
}

// ---- Guard, generator, pinned memory, hooks

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return kDevice;
  }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "tt: there is one device, tt:0, not ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// A seed, and how many of its random tensors are used up.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator() : c10::GeneratorImpl(kDevice, kKeys) {}
  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    used_ = 0;
  }
  void set_offset(std::uint64_t offset) override { used_ = offset; }
  std::uint64_t get_offset() const override { return used_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(std::random_device{}() | std::uint64_t{std::random_device{}()} << 32);
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() &&
                    state.device().is_cpu(),
                "the state of a generator of tt is 16 bytes in host memory");
    const auto* const bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&used_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* const bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &used_, 8);
    return state.getIntrusivePtr();
  }
  std::int64_t take(std::uint64_t count) {
    return static_cast<std::int64_t>(std::exchange(used_, used_ + count));
  }

 private:
  Generator* clone_impl() const override {
    auto* const made = new Generator;
    made->seed_ = seed_;
    made->used_ = used_;
    return made;
  }
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t used_ = 0;
};
at::Generator& default_generator() {
  static auto* const generator = new at::Generator(at::make_generator<Generator>());
  return *generator;
}
void random_numbers(void* generator, std::uint64_t count, std::int64_t* seed,
                    std::int64_t* ordinal) {
  auto* impl = static_cast<c10::GeneratorImpl*>(generator);
  auto* const own = dynamic_cast<Generator*>(
      impl != nullptr ? impl : default_generator().unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, "Expected a 'tt' device type for generator but found another");
  const std::lock_guard lock(own->mutex_);
  *seed = static_cast<std::int64_t>(own->current_seed());
  *ordinal = own->take(count);
}

// Plain host memory that says that it is pinned.
struct PinnedAllocator final : c10::Allocator {
  static std::mutex& mutex() {
    static auto* const lock = new std::mutex;
    return *lock;
  }
  static std::map<const char*, std::size_t>& ranges() {
    static auto* const all = new std::map<const char*, std::size_t>;
    return *all;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(bytes);
    const std::lock_guard lock(mutex());
    if (memory != nullptr) ranges()[static_cast<char*>(memory)] = bytes;
    return {memory, memory, &let_go, c10::Device(c10::DeviceType::CPU)};
  }
  static void let_go(void* memory) {
    {
      const std::lock_guard lock(mutex());
      ranges().erase(static_cast<char*>(memory));
    }
    std::free(memory);
  }
  static bool has(const void* pointer) {
    const std::lock_guard lock(mutex());
    auto found = ranges().upper_bound(static_cast<const char*>(pointer));
    return found != ranges().begin() &&
           static_cast<const char*>(pointer) < (--found)->first + found->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
PinnedAllocator g_pinned;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>();
  }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* pointer) const override { return PinnedAllocator::has(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

// ---- The table's rows as kernels

// The arguments of a call as records, and what these point to.
class Records {
 public:
  Records(std::size_t count, bool moves_indices) : moves_indices_(moves_indices) {
    values_.reserve(count + 1);
  }
  const tt_value* values() const { return values_.data(); }
  void add(const c10::IValue& value) { values_.push_back(of(value)); }
  void add_dtype(c10::ScalarType dtype) {
    tt_value record{};
    record.kind = TT_INT;
    record.integer = static_cast<std::int64_t>(dtype);
    values_.push_back(record);
  }

 private:
  tt_value of(const c10::IValue& value) {
    tt_value record{};
    if (value.isTensor()) {
      of_tensor(value.toTensor(), record);
    } else if (value.isBool()) {
      record.kind = TT_BOOL;
      record.integer = value.toBool();
    } else if (value.isInt() || value.isSymInt()) {
      record.kind = TT_INT;
      record.integer =
          value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
    } else if (value.isDouble()) {
      record.kind = TT_REAL;
      record.real = value.toDouble();
    } else if (value.isComplexDouble()) {
      record.kind = TT_COMPLEX;
      record.real = value.toComplexDouble().real();
      record.imaginary = value.toComplexDouble().imag();
    } else if (value.isIntList()) {
      ints_.push_back(value.toIntVector());
      record.kind = TT_INTS;
      record.ints = ints_.back().data();
      record.count = ints_.back().size();
    } else if (value.isBoolList()) {
      auto& list = ints_.emplace_back();
      for (const bool each : value.toBoolList()) list.push_back(each);
      record.kind = TT_INTS;
      record.ints = list.data();
      record.count = list.size();
    } else if (value.isDoubleList()) {
      reals_.push_back(value.toDoubleVector());
      record.kind = TT_REALS;
      record.reals = reals_.back().data();
      record.count = reals_.back().size();
    } else if (value.isString()) {
      record.kind = TT_TEXT;
      record.text = value.toStringRef().data();
      record.count = value.toStringRef().size();
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      of_tensors(value, record);
    } else if (value.isGenerator()) {
      record.kind = TT_GENERATOR;
      record.generator = value.toGenerator().unsafeGetGeneratorImpl();
    } else if (value.isList()) {
      auto& list = numbers_.emplace_back();
      for (const c10::IValue& each : value.toListRef()) list.push_back(of(each));
      record.kind = TT_NUMBERS;
      record.numbers = list.data();
      record.count = list.size();
    }
    return record;  // None, devices and layouts are TT_NONE
  }

  void of_tensor(const at::Tensor& tensor, tt_value& record) {
    if (!tensor.defined()) return;
    if (tensor.device().type() == kType) {
      record.kind = TT_TENSOR;
      record.tensor = record_of(tensor);
      return;
    }
    TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "tt:0 and ",
                tensor.device(), "!");
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      record = of(c10::IValue(tensor.item()));
      return;
    }
    const at::Tensor plain = tensor.resolve_conj().resolve_neg();
    record.kind = TT_CPU_SCALAR;
    record.dtype = static_cast<std::int32_t>(plain.scalar_type());
    TORCH_CHECK(plain.element_size() <= sizeof record.bytes, "tt: an element is too large");
    std::memcpy(record.bytes, plain.const_data_ptr(), plain.element_size());
  }

  void of_tensors(const c10::IValue& value, tt_value& record) {
    auto& list = tensors_.emplace_back();
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isNone() || !each.toTensor().defined()) {
        list.push_back({});
        continue;
      }
      at::Tensor tensor = each.toTensor();
      if (moves_indices_ && tensor.device().is_cpu()) tensor = tensor.to(kDevice);
      TORCH_CHECK(tensor.device().type() == kType,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "tt:0 and ",
                  tensor.device(), "!");
      list.push_back(record_of(tensor));
      kept_.push_back(std::move(tensor));
    }
    record.kind = TT_TENSORS;
    record.tensors = list.data();
    record.count = list.size();
  }

  const bool moves_indices_;
  c10::SmallVector<tt_value, 16> values_;
  std::deque<std::vector<std::int64_t>> ints_;
  std::deque<std::vector<double>> reals_;
  std::deque<std::vector<tt_tensor>> tensors_;
  std::deque<std::vector<tt_value>> numbers_;
  std::vector<at::Tensor> kept_;
};

std::mutex g_fallbacks_mutex;
std::map<std::string, std::uint64_t> g_fallbacks;  // how often, by name

std::string name_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = name_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(!g_strict, "tt: ", name,
                              " has no row for these operands on the device tt, and strict mode "
                              "does not let it run on the CPU");
  bool first = false;
  {
    const std::lock_guard lock(g_fallbacks_mutex);
    first = g_fallbacks[name]++ == 0;
  }
  if (first) {
    TORCH_WARN("tt: ", name,
               " has no row for these operands on the device tt: it runs on the CPU of this "
               "process, and its operands and results travel each time");
  }
  at::native::cpu_fallback(op, stack);
}
void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  fall_back(op, stack);
}

class RowKernel final : public c10::OperatorKernel {
 public:
  RowKernel(int row, std::size_t inputs, bool in_place, bool moves_indices)
      : row_(row), inputs_(inputs), in_place_(in_place), moves_indices_(moves_indices) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const std::size_t count = schema.arguments().size();
    const c10::IValue* const arguments = stack->data() + (stack->size() - count);
    const std::size_t outs = count - inputs_;
    if (in_place_ || outs > 0) check_written(arguments[in_place_ ? 0 : inputs_]);
    Records records(count, moves_indices_);
    for (std::size_t i = 0; i < inputs_; ++i) records.add(arguments[i]);
    if (outs > 0) records.add_dtype(arguments[inputs_].toTensor().scalar_type());
    c10::SmallVector<c10::IValue, 4> made;
    if (!run(records, made)) return fall_back(op, stack);
    if (outs > 0) {
      for (std::size_t i = 0; i < outs; ++i) write(arguments[inputs_ + i].toTensor(), made[i]);
      made.assign(arguments + inputs_, arguments + count);
    } else if (in_place_) {
      made.assign(arguments, arguments + 1);
    }
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    const auto& returns = schema.returns();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      const bool truth = returns[i].type()->kind() == c10::TypeKind::BoolType;
      stack->push_back(truth ? c10::IValue(made[i].toInt() != 0) : std::move(made[i]));
    }
  }

 private:
  // False: the daemon has no such op for these operands.
  bool run(const Records& records, c10::SmallVector<c10::IValue, 4>& made) const {
    const Gil gil;
    const tt_result* results = nullptr;
    std::size_t count = 0;
    const int code = g_bridge->call(row_, records.values(), &results, &count);
    if (code == 1) return false;
    check(code);
    for (std::size_t i = 0; i < count; ++i) {
      if (results[i].kind == TT_INT) {
        made.emplace_back(results[i].integer);
      } else {
        made.emplace_back(results[i].kind == TT_TENSOR ? tensor_of(results[i]) : at::Tensor());
      }
    }
    return true;
  }
  static void check_written(const c10::IValue& value) {
    TORCH_CHECK(value.toTensor().device().type() == kType,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "tt:0 and ",
                value.toTensor().device(), "!");
  }
  static void write(const at::Tensor& out, const c10::IValue& value) {
    const at::Tensor& made = value.toTensor();
    at::native::resize_output(out, made.sizes());
    TORCH_CHECK(c10::canCast(made.scalar_type(), out.scalar_type()), "result type ",
                made.scalar_type(), " can't be cast to the desired output type ",
                out.scalar_type());
    const tt_tensor to = record_of(out), from = record_of(made);
    const Gil gil;
    check(g_bridge->copy(&to, &from, 1));
  }

  const int row_;
  const std::size_t inputs_;
  const bool in_place_, moves_indices_;
};

// Registers the row that serves this operator, where there is one.
void register_row(torch::Library& library, const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  if (schema.overload_name().find("ames") != std::string::npos ||
      schema.overload_name().find("imname") != std::string::npos) {
    return;  // named dimensions
  }
  for (const auto& each : schema.returns()) {
    if (each.type()->kind() == c10::TypeKind::ListType) return;
  }
  std::vector<const char*> names;
  bool outs = false;
  for (const auto& each : schema.arguments()) {
    if (each.is_out()) {
      outs = true;
      continue;
    }
    if (outs) return;
    names.push_back(each.name().c_str());
  }
  const std::size_t inputs = names.size();
  const auto& first = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
  const bool in_place = !outs && first != nullptr && first->isWrite() &&
                        schema.arguments()[0].type()->kind() == c10::TypeKind::TensorType;
  if (outs) names.push_back("out");
  const std::string name = schema.name().substr(6);
  const tt_schema wanted{name.c_str(), names.size(), names.data(),
                         in_place ? TT_IN_PLACE : TT_FUNCTIONAL};
  const int row = g_bridge->resolve(&wanted);
  if (row < 0) return;
  const std::string full = name_of(op);
  library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RowKernel>(
                                 row, inputs, in_place, name.find("index") != std::string::npos)));
}

// ---- Kernels by hand: storages, views, copies

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  if (device) Guard().setDevice(*device);
  return at::detail::empty_generic(size, &g_allocator, kKeys,
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  if (device) Guard().setDevice(*device);
  return at::detail::empty_strided_generic(size, stride, &g_allocator, kKeys,
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
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
  make_room(self);
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
  // Copies look at these bits themselves.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto* const bits = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    bits->impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  Py_RETURN_NONE;
}

}  // namespace

#include "_steps.cpp"

namespace {

PyMethodDef g_methods[] = {
    {"begin", begin, METH_VARARGS, "Registers everything, with the capsule of the functions."},
    {"default_generator", python_generator, METH_NOARGS, "Of operators that are given none."},
    {"fallbacks", fallbacks, METH_O, "Operators that have run on the CPU, and how often."},
    {"dense", python_dense, METH_O, "Tensors, with copies in place of those that are not dense."},
    {"record", python_record, METH_O, "A tensor as the client sees it."},
    {"run", python_run, METH_VARARGS, "Calls a captured step."},
    {"signature", python_signature, METH_O, "What of tensors a captured step depends on."},
    {"storages", python_storages, METH_O, "The identity of the storages of tensors."},
    {"set_strict", set_strict, METH_O, "Whether such an operator is an error. What it was before."},
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
