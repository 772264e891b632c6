// The functions of the CUDA driver.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "fake.h"

using namespace fake;
using Lock = std::unique_lock<std::mutex>;

#define EXPORT extern "C" __attribute__((visibility("default"))) int

namespace {

// The stream of a call, on the device that the thread has entered.
Stream* stream_of(Device* device, void* handle) {
  const auto found = state().streams.find(static_cast<Stream*>(handle));
  return found == state().streams.end() || found->first->device != device ? nullptr : found->first;
}

std::shared_ptr<Event> event_of(void* handle) {
  const auto found = state().events.find(static_cast<Event*>(handle));
  return found == state().events.end() ? nullptr : found->second;
}

bool lies_in(const std::map<void*, std::size_t>& ranges, const void* memory, std::size_t bytes) {
  for (const auto& [start, size] : ranges) {
    const auto* begin = static_cast<const char*>(start);
    const auto* at = static_cast<const char*>(memory);
    if (at >= begin && at + bytes <= begin + size) return true;
  }
  return false;
}

bool is_pinned(const void* memory, std::size_t bytes) {
  return lies_in(state().pinned, memory, bytes) || lies_in(state().registered, memory, bytes);
}

void note_copy(const char* way, const void* host, std::size_t bytes) {
  if (config().copies.empty()) return;
  const char* kind = lies_in(state().registered, host, bytes) ? "locked" : "slot";
  std::ofstream(config().copies, std::ios::app) << way << " " << kind << " " << bytes << "\n";
}

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Kinds of nodes that are not kernels.
constexpr std::uintptr_t kClearNode = 1, kCopyNode = 2;

int illegal(Device* device) { return device->error = kIllegalAddress; }

bool lies_in(Device& device, std::uintptr_t address, std::size_t bytes) {
  std::uintptr_t start = 0;
  return block_of(device, address, bytes, &start) != nullptr;
}

}  // namespace

#define ENTER                           \
  Lock lock;                            \
  int error = kSuccess;                 \
  Device* device = enter(lock, &error); \
  if (device == nullptr) return error

EXPORT cuInit(unsigned flags) { return flags == 0 ? kSuccess : kInvalidValue; }
EXPORT cuDriverGetVersion(int* version) {
  *version = config().driver;
  return kSuccess;
}
EXPORT cuGetErrorName(int error, const char** name) {
  static constexpr std::pair<int, const char*> kNames[] = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kNotFound, "CUDA_ERROR_NOT_FOUND"},
      {kNotReady, "CUDA_ERROR_NOT_READY"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kUnknown, "CUDA_ERROR_UNKNOWN"}};
  for (const auto& [code, text] : kNames) {
    if (code != error) continue;
    *name = text;
    return kSuccess;
  }
  *name = nullptr;
  return kInvalidValue;
}
EXPORT cuDeviceGetCount(int* count) {
  *count = config().devices;
  return kSuccess;
}
EXPORT cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= config().devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}
EXPORT cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU");
  return kSuccess;
}
EXPORT cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16    ? 132
           : attribute == 75  ? config().capability / 10
           : attribute == 76  ? config().capability % 10
           : attribute == 103 ? config().shares
           : attribute == 115 ? 1
                              : 0;
  return kSuccess;
}
EXPORT cuDevicePrimaryCtxRetain(void** context, int device) {
  State& s = state();
  const Lock lock(s.mutex);
  if (device < 0 || device >= config().devices) return kInvalidDevice;
  ++s.devices[static_cast<std::size_t>(device)].retained;
  *context = &s.devices[static_cast<std::size_t>(device)];
  return kSuccess;
}
EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
  State& s = state();
  const Lock lock(s.mutex);
  if (device < 0 || device >= config().devices) return kInvalidDevice;
  Device& d = s.devices[static_cast<std::size_t>(device)];
  if (d.retained == 0) return kInvalidContext;
  --d.retained;
  return kSuccess;
}
EXPORT cuCtxSetCurrent(void* context) {
  const Lock lock(state().mutex);
  return set_current(context);
}
EXPORT cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER;
  *free = config().memory - device->used;
  *total = config().memory;
  return kSuccess;
}

// ---------------------------------------------------------------- memory

EXPORT cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
  ENTER;
  std::uintptr_t made = 0;
  error = allocate(*device, bytes, &made);
  *address = made;
  return error;
}
EXPORT cuMemFree_v2(unsigned long long address) {
  ENTER;
  std::uintptr_t start = 0;
  const Block* block = block_of(*device, address, 0, &start);
  if (block == nullptr || block->reserved || start != address) return kInvalidValue;
  release(*device, address);
  return kSuccess;
}
EXPORT cuMemAllocAsync(unsigned long long* address, std::size_t bytes, void* handle) {
  ENTER;
  if (stream_of(device, handle) == nullptr) return kInvalidHandle;
  std::uintptr_t made = 0;
  error = allocate(*device, bytes, &made);
  *address = made;
  return error;
}
EXPORT cuMemFreeAsync(unsigned long long address, void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  std::uintptr_t start = 0;
  Block* block = block_of(*device, address, 0, &start);
  if (stream == nullptr || block == nullptr || block->reserved || start != address) {
    return kInvalidValue;
  }
  block->freed = true;
  Task task;
  task.run = [device, start] {
    const Lock inner(state().mutex);
    release(*device, start);
    return kSuccess;
  };
  return push(stream, std::move(task));
}
EXPORT cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  ENTER;
  *memory = ::operator new(bytes);
  std::memset(*memory, 0xA5, bytes);
  state().pinned[*memory] = bytes;
  return kSuccess;
}
EXPORT cuMemFreeHost(void* memory) {
  ENTER;
  if (state().pinned.erase(memory) == 0) return kInvalidValue;
  ::operator delete(memory);
  return kSuccess;
}
// Accepts only the flag CU_MEMHOSTREGISTER_PORTABLE.
EXPORT cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  ENTER;
  if (flags != 1 || memory == nullptr || bytes == 0) return kInvalidValue;
  if (!config().locks) return kOutOfMemory;
  for (const auto& [start, size] : state().registered) {
    if (start < static_cast<char*>(memory) + bytes && memory < static_cast<char*>(start) + size) {
      return kHostMemoryAlreadyRegistered;
    }
  }
  state().registered[memory] = bytes;
  return kSuccess;
}
// It is an error of the caller if a copy from or to the memory has not run yet.
EXPORT cuMemHostUnregister(void* memory) {
  ENTER;
  const auto found = state().registered.find(memory);
  if (found == state().registered.end()) return kHostMemoryNotRegistered;
  const char* const begin = static_cast<char*>(memory);
  for (const auto& [stream, owned] : state().streams) {
    for (const Task& task : stream->tasks) {
      const char* const host = static_cast<const char*>(task.host);
      if (host >= begin && host < begin + found->second) return illegal(device);
    }
  }
  state().registered.erase(found);
  return kSuccess;
}
EXPORT cuMemsetD8Async(unsigned long long to, unsigned char byte, std::size_t bytes, void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (!lies_in(*device, to, bytes)) return illegal(device);
  Task task;
  task.touched = {to};
  task.run = [=] { return std::memset(pointer(to), byte, bytes), kSuccess; };
  return push(stream, std::move(task), kClearNode);
}
EXPORT cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes,
                            void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (!lies_in(*device, to, bytes)) return illegal(device);
  Task task;
  task.touched = {to};
  task.host = from;
  note_copy("in", from, bytes);
  if (is_pinned(from, bytes)) {
    task.run = [=] { return std::memcpy(pointer(to), from, bytes), kSuccess; };
  } else {
    const std::string copy(static_cast<const char*>(from), bytes);
    task.run = [=] { return std::memcpy(pointer(to), copy.data(), bytes), kSuccess; };
  }
  return push(stream, std::move(task));
}
EXPORT cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr || !is_pinned(to, bytes)) return kInvalidValue;
  if (!lies_in(*device, from, bytes)) return illegal(device);
  std::memset(to, 0xA5, bytes);  // so that code that reads it before the copy has run gets garbage
  Task task;
  task.leaves = bytes > 65536;
  task.host = to;
  note_copy("out", to, bytes);
  task.touched = {from};
  task.run = [=] { return std::memcpy(to, pointer(from), bytes), kSuccess; };
  return push(stream, std::move(task));
}
EXPORT cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes,
                            void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (!lies_in(*device, to, bytes) || !lies_in(*device, from, bytes)) return illegal(device);
  if (to < from + bytes && from < to + bytes) return kInvalidValue;
  Task task;
  task.touched = {to, from};
  task.run = [=] { return std::memcpy(pointer(to), pointer(from), bytes), kSuccess; };
  return push(stream, std::move(task), kCopyNode);
}
EXPORT cuMemcpyPeerAsync(unsigned long long to, void* to_context, unsigned long long from,
                         void* from_context, std::size_t bytes, void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  auto* source = static_cast<Device*>(from_context);
  if (stream == nullptr || to_context != device) return kInvalidHandle;
  if (!lies_in(*device, to, bytes) || !lies_in(*source, from, bytes)) return illegal(device);
  Task task;
  task.touched = {to};
  task.run = [=] {
    std::uintptr_t start = 0;
    std::size_t pages = 0;
    {
      const Lock inner(state().mutex);
      pages =
          block_of(*source, from, bytes, &start) == nullptr ? 0 : source->blocks.at(start).pages;
      if (pages != 0) protect(start, pages, true);
    }
    if (pages == 0) return kIllegalAddress;
    std::memcpy(pointer(to), pointer(from), bytes);
    const Lock inner(state().mutex);
    protect(start, pages, false);
    return kSuccess;
  };
  return push(stream, std::move(task));
}

// ---------------------------------------------------------------- streams and events

EXPORT cuStreamCreate(void** handle, unsigned) {
  ENTER;
  auto made = std::make_unique<Stream>();
  made->device = device;
  *handle = made.get();
  Stream* key = made.get();
  state().streams[key] = std::move(made);
  return kSuccess;
}
EXPORT cuStreamDestroy_v2(void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr) return kInvalidHandle;
  state().hurry = true;
  state().work.notify_all();
  state().done.wait(lock,
                    [&] { return device->hung || (stream->tasks.empty() && !stream->running); });
  state().queued -= stream->tasks.size();
  state().streams.erase(stream);
  return kSuccess;
}
EXPORT cuStreamWaitEvent(void* handle, void* event, unsigned) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  Task task;
  task.wait = event_of(event);
  if (stream == nullptr || !task.wait) return kInvalidHandle;
  task.count = task.wait->asked;
  return push(stream, std::move(task));
}
EXPORT cuEventCreate(void** event, unsigned flags) {
  ENTER;
  auto made = std::make_shared<Event>();
  made->timed = (flags & 2) == 0;
  *event = made.get();
  state().events[made.get()] = made;
  return kSuccess;
}
EXPORT cuEventRecord(void* event, void* handle) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  Task task;
  task.record = event_of(event);
  if (stream == nullptr || !task.record) return kInvalidHandle;
  task.count = ++task.record->asked;
  return push(stream, std::move(task));
}
EXPORT cuEventQuery(void* event) {
  ENTER;
  const std::shared_ptr<Event> asked = event_of(event);
  if (!asked) return kInvalidHandle;
  if (asked->done >= asked->asked) return kSuccess;
  state().hurry = true;
  state().work.notify_all();
  // Each query waits for a moment, so that a caller that polls does not query thousands of times.
  state().done.wait_for(lock, std::chrono::microseconds(200));
  if (device->error != kSuccess) return device->error;
  return asked->done >= asked->asked ? kSuccess : kNotReady;
}
EXPORT cuEventElapsedTime(float* ms, void* begin, void* end) {
  ENTER;
  const std::shared_ptr<Event> from = event_of(begin), to = event_of(end);
  if (!from || !to || !from->timed || !to->timed || from->asked == 0 || to->asked == 0) {
    return kInvalidHandle;
  }
  if (from->done < from->asked || to->done < to->asked) return kNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return kSuccess;
}
EXPORT cuEventDestroy_v2(void* event) {
  ENTER;
  return state().events.erase(static_cast<Event*>(event)) == 1 ? kSuccess : kInvalidHandle;
}

// ---------------------------------------------------------------- kernels

EXPORT cuModuleLoadData(void** module, const void* image) {
  ENTER;
  auto* made = new std::shared_ptr<Library>(load(image, &error));
  if (error != kSuccess) {
    delete made;
    return error;
  }
  *module = made;
  return kSuccess;
}
EXPORT cuModuleUnload(void* module) {
  ENTER;
  auto* library = static_cast<std::shared_ptr<Library>*>(module);
  for (const auto& [stream, owned] : state().streams) {
    for (const Task& task : stream->tasks) {
      // The call would run a kernel whose library is unloaded.
      if (task.library == *library) return illegal(device);
    }
  }
  delete library;
  return kSuccess;
}
EXPORT cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER;
  const auto& library = *static_cast<std::shared_ptr<Library>*>(module);
  void* const thread = symbol(*library, std::string(name) + "_thread");
  if (thread == nullptr) return kNotFound;
  static std::deque<Call>* const calls = new std::deque<Call>;  // lives as long as the process
  Call& call = calls->emplace_back();
  call.library = library;
  call.kernel.thread = reinterpret_cast<void (*)(const void*)>(thread);
  call.kernel.current =
      static_cast<teletensor::backends::cuda::EmulatedThread*>(symbol(*library, "tt_current"));
  call.kernel.barriers = symbol(*library, std::string(name) + "_barriers") != nullptr;
  *function = &call;
  return kSuccess;
}
EXPORT cuFuncSetAttribute(void* function, int attribute, int value) {
  ENTER;
  if (attribute != 8 || value < 0 || value > 227 * 1024) return kInvalidValue;
  static_cast<Call*>(function)->shared_bytes = static_cast<unsigned>(value);
  return kSuccess;
}
EXPORT cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      void* handle, void** parameters, void** extra) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr) return kInvalidHandle;
  const Call& call = *static_cast<Call*>(function);
  const unsigned long long threads = 1ull * block_x * block_y * block_z;
  if (threads == 0 || threads > 1024 || block_z > 64 || grid_x == 0 || grid_x > 0x7fffffffu ||
      grid_y == 0 || grid_y > 65535 || grid_z == 0 || grid_z > 65535 ||
      shared_bytes > call.shared_bytes || parameters != nullptr || extra == nullptr ||
      extra[0] != pointer(1) || extra[2] != pointer(2) || extra[4] != nullptr) {
    return kInvalidValue;
  }
  const std::size_t bytes = *static_cast<std::size_t*>(extra[3]);
  if (bytes > 4096) return kInvalidValue;
  // The copy consists of 8-byte numbers, so that it is aligned like the structure of parameters
  // that a kernel reads from it.
  std::vector<std::uint64_t> copy((bytes + 7) / 8);
  std::memcpy(copy.data(), extra[1], bytes);
  Task task;
  task.kernel = true;
  task.library = call.library.lock();
  if (!task.library) return kInvalidHandle;  // the library is unloaded
  task.run = [=, kernel = call.kernel] {
    const teletensor::backends::cuda::LaunchShape shape{
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    teletensor::backends::cuda::emulate(kernel, shape, copy.data());
    return kSuccess;
  };
  return push(stream, std::move(task), reinterpret_cast<std::uintptr_t>(call.kernel.thread));
}

// ---------------------------------------------------------------- graphs

EXPORT cuStreamBeginCapture_v2(void* handle, int mode) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  if (stream == nullptr || mode < 0 || mode > 2) return kInvalidValue;
  if (stream->capture) return kCaptureUnsupported;
  stream->capture = std::make_unique<Graph>();
  return kSuccess;
}
EXPORT cuStreamEndCapture(void* handle, void** graph) {
  ENTER;
  Stream* stream = stream_of(device, handle);
  *graph = nullptr;
  if (stream == nullptr) return kInvalidHandle;
  if (!stream->capture) return kCaptureUnmatched;
  *graph = stream->capture.get();
  Graph* key = stream->capture.get();
  state().graphs[key] = std::move(stream->capture);
  return kSuccess;
}
EXPORT cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) {
  ENTER;
  const auto found = state().graphs.find(static_cast<Graph*>(graph));
  if (found == state().graphs.end() || flags != 0) return kInvalidValue;
  if (!config().graphs || device->full) return kOutOfMemory;
  auto made = std::make_unique<GraphExec>();
  made->device = device;
  made->graph = *found->second;
  *exec = made.get();
  GraphExec* key = made.get();
  state().execs[key] = std::move(made);
  return kSuccess;
}
EXPORT cuGraphDestroy(void* graph) {
  ENTER;
  return state().graphs.erase(static_cast<Graph*>(graph)) == 1 ? kSuccess : kInvalidValue;
}
// Accepts only a graph with the same nodes and the same kernels: a real driver may accept more, and
// the backend must not rely on that. Launches that are already queued are not affected.
EXPORT cuGraphExecUpdate_v2(void* handle, void* graph, void* why) {
  ENTER;
  const auto exec = state().execs.find(static_cast<GraphExec*>(handle));
  const auto with = state().graphs.find(static_cast<Graph*>(graph));
  if (exec == state().execs.end() || with == state().graphs.end() || why == nullptr) {
    return kInvalidValue;
  }
  const std::vector<Task>&old = exec->second->graph.nodes, &now = with->second->nodes;
  bool same = config().updates && old.size() == now.size();
  for (std::size_t i = 0; same && i < old.size(); ++i) same = old[i].kind == now[i].kind;
  if (!same) return kGraphUpdateFailure;
  exec->second->graph = *with->second;
  return kSuccess;
}
EXPORT cuGraphExecDestroy(void* handle) {
  ENTER;
  return state().execs.erase(static_cast<GraphExec*>(handle)) == 1 ? kSuccess : kInvalidValue;
}
EXPORT cuGraphLaunch(void* handle, void* where) {
  ENTER;
  Stream* stream = stream_of(device, where);
  const auto found = state().execs.find(static_cast<GraphExec*>(handle));
  if (stream == nullptr || found == state().execs.end() || found->second->device != device) {
    return kInvalidValue;
  }
  if (stream->capture) return kCaptureUnsupported;
  const Graph& graph = found->second->graph;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Task task = graph.nodes[i];
    for (const std::uintptr_t each : task.touched) {
      if (!lies_in(*device, each, 1)) return illegal(device);  // freed in the meantime
    }
    task.library = graph.libraries[i].lock();
    if (task.kernel && !task.library) return illegal(device);  // unloaded in the meantime
    push(stream, std::move(task));
  }
  return kSuccess;
}
