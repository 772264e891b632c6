// Part of _bridge.cpp, which is one translation unit: the storages of the device, and what PyTorch
// wants to have of it: guard, generator, pinned memory, hooks.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <Python.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/Exceptions.h>
#if TT_DISTRIBUTED  // whether torch has torch.distributed
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#endif

#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

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

// What a storage of PyTorch has of the device.
struct Contents {
  tt_storage* storage;
  std::size_t bytes;
  void* address = nullptr;  // null without bytes
  // The list of all that have an address.
  Contents* before = nullptr;
  Contents* after = nullptr;
};

class Addresses {
 public:
  void give(Contents& contents) {
    const std::lock_guard lock(mutex_);
    contents.address = take(contents.bytes);
    if (contents.address == nullptr) return;
    contents.before = nullptr;
    contents.after = first_;
    if (first_ != nullptr) first_->before = &contents;
    first_ = &contents;
  }
  void take_back(Contents& contents) {
    if (contents.address == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (contents.before != nullptr) contents.before->after = contents.after;
    if (contents.after != nullptr) contents.after->before = contents.before;
    if (first_ == &contents) first_ = contents.after;
    free_[rounded(contents.bytes)].push_back(std::exchange(contents.address, nullptr));
  }
  // Null if no contents have this address. Takes time for each storage of the process.
  Contents* find(const void* address) {
    const std::lock_guard lock(mutex_);
    Contents* found = address == nullptr ? nullptr : first_;
    while (found != nullptr && found->address != address) found = found->after;
    return found;
  }

 private:
  void* take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::size_t size = rounded(bytes);
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

  static constexpr std::size_t kBytes = std::size_t{1} << 45;
  // To an eighth of a power of two: then a program has few sizes, whose ranges are used again.
  static std::size_t rounded(std::size_t bytes) {
    const std::size_t step = std::max<std::size_t>(64, std::bit_ceil(bytes) / 16);
    return (bytes + step) / step * step;  // with room behind the last byte
  }
  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;
  Contents* first_ = nullptr;
  char* next_ = nullptr;
  char* end_ = nullptr;
};
Addresses& addresses() {
  static auto* const all = new Addresses;  // storages may outlive every static object
  return *all;
}

void drop_contents(void* pointer) {
  auto* const contents = static_cast<Contents*>(pointer);
  addresses().take_back(*contents);
  g_bridge->drop_storage(contents->storage);
  delete contents;
}
c10::DataPtr data_of(tt_storage* storage, std::size_t bytes) {
  auto* const contents = new Contents{storage, bytes};
  addresses().give(*contents);
  return {contents->address, contents, &drop_contents, kDevice};
}

// What a function of torch.tt returns; the caller holds the GIL and owns the reference.
PyObject* ask_module(const char* name) {
  PyObject* const module = PyImport_ImportModule("teletensor.torch._device");
  if (module == nullptr) raise();
  PyObject* const found = PyObject_CallMethod(module, name, nullptr);
  Py_DECREF(module);
  if (found == nullptr) raise();
  return found;
}
void tell_module(const char* name) {
  const Gil gil;
  Py_DECREF(ask_module(name));
}
// The same, where it returns two numbers of bytes.
std::pair<std::size_t, std::size_t> ask_for_bytes(const char* name) {
  const Gil gil;
  PyObject* const found = ask_module(name);
  unsigned long long first = 0, second = 0;
  const bool good = PyArg_ParseTuple(found, "KK", &first, &second) != 0;
  Py_DECREF(found);
  if (!good) raise();
  return {first, second};
}

// The memory pool is the daemon's, which keeps account of the session's bytes.
struct Allocator final : c10::DeviceAllocator {
  bool initialized() override { return g_bridge != nullptr; }
  void emptyCache(c10::MempoolId_t) override { tell_module("empty_cache"); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const auto [used, peak] = ask_for_bytes("_used_and_peak");
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* each : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      (*each)[all].current = static_cast<std::int64_t>(used);
      (*each)[all].peak = static_cast<std::int64_t>(peak);
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { tell_module("reset_peak_memory_stats"); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override {
    return ask_for_bytes("mem_get_info");
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    return data_of(g_bridge->new_storage(bytes), bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tt: memory of the device cannot be copied on the host");
  }
};
Allocator g_allocator;

bool is_own(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_context() != nullptr &&
         storage.data_ptr().get_deleter() == &drop_contents;
}
// PyTorch reads and writes files of storages through tensors that it makes of their addresses.
Contents& contents_of(const c10::StorageImpl& storage) {
  auto* const found = is_own(storage) ? static_cast<Contents*>(storage.data_ptr().get_context())
                                      : addresses().find(storage.data());
  TORCH_CHECK(found != nullptr, "tt: this storage is not the device's");
  return *found;
}

void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  TORCH_CHECK(is_own(storage), "tt: a storage at the address of another one cannot be resized");
  Contents& contents = contents_of(storage);
  {
    const Gil gil;
    check(g_bridge->resize_storage(contents.storage, bytes));
  }
  // The same contents under another address.
  addresses().take_back(contents);
  contents.bytes = bytes;
  addresses().give(contents);
  c10::DataPtr before =
      storage.set_data_ptr({contents.address, &contents, &drop_contents, kDevice});
  before.release_context();
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
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  // An event is the time in milliseconds at which it was recorded. One that measures time waits for
  // everything before; others need not, because the one stream runs in the order of issue.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (flag != c10::EventFlag::PYTORCH_DEFAULT) tell_module("synchronize");
    if (*event == nullptr) *event = new double();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *static_cast<double*>(*event) = std::chrono::duration<double, std::milli>(now).count();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return *static_cast<double*>(end) - *static_cast<double*>(begin);
  }
  void synchronizeEvent(void*) const override { tell_module("synchronize"); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { tell_module("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { tell_module("synchronize"); }
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

}  // namespace

#if TT_DISTRIBUTED
namespace c10d {
namespace {
// The times of a step in the log of DistributedDataParallel: those at which the program has issued
// it.
class IssueTimer final : public Timer {
 public:
  explicit IssueTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == kUnsetTime || to == kUnsetTime || to < from) return std::nullopt;
    return to - from;
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, IssueTimer);
}  // namespace
}  // namespace c10d
#endif
