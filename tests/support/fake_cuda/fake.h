// The fake driver of tests: a library with the functions of CUDA's driver and of NVRTC that the
// daemon asks for, on a machine without a GPU.
//
// It is a strict device: memory that the host cannot touch, filled with rubbish when it is made,
// pages that nobody may touch around every allocation; streams that run as late as they may and in
// any order that events allow; calls without a context, launches beyond the limits and freed memory
// are refused. Kernels are compiled by the C++ compiler behind emulate.cuh and run block by block.
//
// TT_FAKE_CUDA is a list "name=value,...":
//   devices=1     how many                     memory=256   MiB on each
//   capability=90                              driver=13000, nvrtc=13.0   versions
//   compile=none  refuses every kernel, compile=empty: kernels compute nothing
//   blas=none     it has no cuBLASLt, blas=refuse: one that takes no product
//   dnn=none      it has no cuDNN, dnn=refuse: one that takes no convolution
//   cache=DIR     keeps compiled kernels there
//   emulation=FILE  emulate.cuh, where it is not in the checkout that this was built from
//   pace=N        a task takes N us by the device's clock, not what it took here
//   shares=none   no memory has a descriptor
//   locks=none    no memory of the host is page-locked where it is
//   copies=FILE   a line for each copy between host and device: "out locked 4096"; in, slot
//   graphs=none   no graph is made, graphs=fixed: none takes other parameters
//   seed=1        of the order of streams      control=FILE  read and removed when it appears:
//     "sticky N"  what device N runs next ends its context (CUDA_ERROR_ILLEGAL_ADDRESS)
//     "lost N"    device N is gone at once (CUDA_ERROR_UNKNOWN)
//     "hang N"    device N runs nothing any more
//     "full N"    device N has no memory left
//     "hold N"    device N's large copies to the host stand still, until "release N"
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
  std::uint64_t asked = 0, done = 0;  // records
  bool timed = false;
  std::chrono::steady_clock::time_point at{};  // of the last one that was done
};
struct Library;  // a loaded kernel
struct Device;
struct Call {  // CUfunction
  std::weak_ptr<Library> library;
  teletensor::backends::cuda::EmulatedKernel kernel;
  unsigned shared_bytes = 48 * 1024;
};

// What a stream has still to do.
struct Task {
  std::function<int()> run;  // with the device's memory open; an Error
  bool kernel = false;       // touches memory that only it knows
  std::vector<std::uintptr_t> touched;
  std::shared_ptr<Event> wait;  // runs when it has been recorded `count` times
  std::shared_ptr<Event> record;
  std::uint64_t count = 0;
  std::shared_ptr<Library> library;
  bool leaves = false;         // a large copy to the host
  const void* host = nullptr;  // of a copy
  std::uintptr_t kind = 0;     // of a graph's node: a kernel's entry, or what else it is
};

// What a stream was asked while it was captured, one task after the other.
struct Graph {
  std::vector<Task> nodes;
  std::vector<std::weak_ptr<Library>> libraries;  // by node: a graph keeps none
};
struct GraphExec {
  Device* device = nullptr;
  Graph graph;
};

struct Stream {
  Device* device = nullptr;
  std::deque<Task> tasks;
  bool running = false;
  std::unique_ptr<Graph> capture;  // under way
};

struct Block {
  std::size_t bytes = 0;  // asked for
  std::size_t pages = 0;
  bool freed = false;  // the free stands in a stream
  // An address range (cuMemAddressReserve): `bytes` are 0 where nobody may touch it.
  bool reserved = false;
  std::uint64_t mapped = 0;  // which physical memory
};

// Memory without an address: a file, which other processes can have.
struct Physical {
  Device* device = nullptr;
  int file = -1;
  std::size_t bytes = 0;
  int holders = 1;  // the handle and mappings
  bool released = false;
};
inline constexpr std::size_t kUnit = std::size_t{2} << 20;  // of physical memory

struct Device {
  int index = 0;
  int retained = 0;
  int error = kSuccess;  // for good
  bool fail_next = false, hung = false, full = false, held = false;
  std::uintptr_t base = 0, end = 0;
  std::size_t used = 0;
  std::chrono::microseconds clock{0};  // with a pace
  std::map<std::uintptr_t, Block> blocks;
};

// One lock for everything; tasks run without it, one at a time.
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
  bool hurry = false;  // somebody waits
  std::size_t queued = 0;
};
State& state();

// The device whose context the calling thread has entered, with every check of a call; null with
// *error set.
Device* enter(std::unique_lock<std::mutex>& lock, int* error);
int set_current(void* context);
// A stream that is captured takes nothing but what `node` says: the task is a graph's then.
inline constexpr std::uintptr_t kLibraryNode = 3;
int push(Stream* stream, Task task, std::uintptr_t node = 0);
// The block that [address, address + bytes) lies in; null: none.
Block* block_of(Device& device, std::uintptr_t address, std::size_t bytes, std::uintptr_t* start);
int allocate(Device& device, std::size_t bytes, std::uintptr_t* address);
void release(Device& device, std::uintptr_t address);  // at once
// The first gap for so much that leaves a page on either side; 0: none.
std::uintptr_t find_gap(const Device& device, std::size_t pages, std::size_t alignment);
void protect(std::uintptr_t address, std::size_t pages, bool open);

// To the nearest number of 10 bits behind the point, which real ones are not promised to take.
inline float tf32(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isfinite(x)) bits = (bits + 0x1000) & ~std::uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// Kernels: a library's bytes, loaded.
std::shared_ptr<Library> load(const void* image, int* error);
void* symbol(const Library& library, const std::string& name);

}  // namespace fake
