// The fake driver of the tests: a library with the functions of the CUDA driver and of NVRTC that
// the daemon uses, for machines without a GPU.
// It is a strict device: memory that the host cannot access, filled with garbage when it is
// allocated, with inaccessible pages around every allocation; streams that run as late as they may,
// and in any order that events allow; it refuses calls without a context, launches beyond the
// limits, and freed memory. Kernels are compiled by the C++ compiler together with emulate.cuh and
// run block by block.

// TT_FAKE_CUDA is a list "name=value,...":
//   devices=1     number of devices            memory=256   MiB on each
//   capability=90                              driver=13000, nvrtc=13.0   versions
//   compile=none  refuses every kernel, compile=empty: kernels compute nothing
//   blas=none     there is no cuBLASLt, blas=refuse: it refuses every product
//   dnn=none      there is no cuDNN, dnn=refuse: it refuses every convolution
//   cache=DIR     keeps compiled kernels there
//   emulation=FILE  emulate.cuh, if it is not in the checkout from which this was built
//   pace=N        a task takes N us by the device's clock, however long it takes here
//   shares=none   memory cannot be exported as a descriptor
//   locks=none    memory of the host cannot be page-locked in place
//   copies=FILE   gets a line for each copy between host and device: "out locked 4096"; in, slot
//   graphs=none   no graph can be made, graphs=fixed: parameters cannot be changed
//   seed=1        for the order of streams     control=FILE  read and removed when it appears:
//     "sticky N"  the next task of device N ends its context (CUDA_ERROR_ILLEGAL_ADDRESS)
//     "lost N"    device N is lost at once (CUDA_ERROR_UNKNOWN)
//     "hang N"    device N runs nothing any more
//     "full N"    device N has no memory left
//     "hold N"    device N's large copies to the host are paused until "release N"
#pragma once

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/backends/cuda/emulator_test.h"

namespace fake {

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kCaptureUnsupported = 900,
  kCaptureUnmatched = 903,
  kGraphUpdateFailure = 910,
  kUnknown = 999,
};

struct Config {
  int devices = 1, capability = 90, driver = 13000, nvrtc_major = 13, nvrtc_minor = 0;
  std::size_t memory = std::size_t{256} << 20;
  bool compiles = true, empty = false, blas = true, blas_refuses = false, dnn = true,
       dnn_refuses = false;
  bool graphs = true, updates = true, shares = true, locks = true;
  int pace = 0;
  unsigned seed = 1;
  std::string cache, control, copies, emulation = TT_FAKE_EMULATION;
};
const Config& config();

struct Event {
  std::uint64_t asked = 0, done = 0;  // numbers of records
  bool timed = false;
  std::chrono::steady_clock::time_point at{};  // time at which the last record was done
};
struct Library;  // a loaded kernel
struct Device;
struct Call {  // CUfunction
  std::weak_ptr<Library> library;
  teletensor::backends::cuda::EmulatedKernel kernel;
  unsigned shared_bytes = 48 * 1024;
};

// A task that a stream has still to run.
struct Task {
  std::function<int()> run;  // runs with the device's memory accessible; returns an Error
  bool kernel = false;       // accesses memory that only the task itself knows
  std::vector<std::uintptr_t> touched;
  std::shared_ptr<Event> wait;  // runs when the event has been recorded `count` times
  std::shared_ptr<Event> record;
  std::uint64_t count = 0;
  std::shared_ptr<Library> library;
  bool leaves = false;         // whether it is a large copy to the host
  const void* host = nullptr;  // the host's memory of a copy
  // the kind of a graph's node: the entry of a kernel, or another constant
  std::uintptr_t kind = 0;
};

// The tasks that a stream was given while it was captured, one after the other.
struct Graph {
  std::vector<Task> nodes;
  std::vector<std::weak_ptr<Library>> libraries;  // by node; a graph does not keep them alive
};
struct GraphExec {
  Device* device = nullptr;
  Graph graph;
};

struct Stream {
  Device* device = nullptr;
  std::deque<Task> tasks;
  bool running = false;
  std::unique_ptr<Graph> capture;  // the capture in progress
};

struct Block {
  std::size_t bytes = 0;  // the requested size
  std::size_t pages = 0;
  bool freed = false;  // whether the release is queued in a stream
  // An address range (cuMemAddressReserve); `bytes` is 0 where it must not be accessed.
  bool reserved = false;
  std::uint64_t mapped = 0;  // the physical memory that is mapped there
};

// Physical memory, which has no address: a file that other processes can map.
struct Physical {
  Device* device = nullptr;
  int file = -1;
  std::size_t bytes = 0;
  int holders = 1;  // the number of handles and mappings
  bool released = false;
};
inline constexpr std::size_t kUnit = std::size_t{2} << 20;  // the unit of physical memory

struct Device {
  int index = 0;
  int retained = 0;
  int error = kSuccess;  // a permanent error
  bool fail_next = false, hung = false, full = false, held = false;
  std::uintptr_t base = 0, end = 0;
  std::size_t used = 0;
  std::chrono::microseconds clock{0};  // the device's clock, if it has a pace
  std::map<std::uintptr_t, Block> blocks;
};

// All state, protected by one lock; tasks run without it, one at a time.
struct State {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<Device> devices;
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  std::map<Event*, std::shared_ptr<Event>> events;
  std::map<void*, std::size_t> pinned, registered;
  std::set<Library*> libraries;
  std::map<Graph*, std::unique_ptr<Graph>> graphs;
  std::map<GraphExec*, std::unique_ptr<GraphExec>> execs;
  std::map<std::uint64_t, Physical> physical;
  std::uint64_t last_physical = 0;
  std::mt19937 random;
  bool hurry = false;  // whether a thread is waiting
  std::size_t queued = 0;
};
State& state();

// The device whose context the calling thread has entered, after all checks of a call; null, with
// *error set, if one fails.
Device* enter(std::unique_lock<std::mutex>& lock, int* error);
int set_current(void* context);
// Kinds of graph nodes. A stream that is captured accepts only operations that `node` describes:
// the task then belongs to the graph.
inline constexpr std::uintptr_t kLibraryNode = 3;
int push(Stream* stream, Task task, std::uintptr_t node = 0);
// The block that contains [address, address + bytes), or null.
Block* block_of(Device& device, std::uintptr_t address, std::size_t bytes, std::uintptr_t* start);
int allocate(Device& device, std::size_t bytes, std::uintptr_t* address);
void release(Device& device, std::uintptr_t address);  // releases the memory at once
// The first gap of this size that leaves a page on either side, or 0.
std::uintptr_t find_gap(const Device& device, std::size_t pages, std::size_t alignment);
void protect(std::uintptr_t address, std::size_t pages, bool open);

// Rounds to the nearest number with 10 mantissa bits; real devices are not guaranteed to do so.
inline float tf32(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isfinite(x)) bits = (bits + 0x1000) & ~std::uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// Kernels: loads the bytes of a library.
std::shared_ptr<Library> load(const void* image, int* error);
void* symbol(const Library& library, const std::string& name);

}  // namespace fake
