// Emulator: runs device kernels on the host. g++ compiles their texts (text/emulate.cuh), and the
// threads of grids and blocks run one after another between barriers. Used by unit tests and the
// fake driver.
#pragma once

#include <dlfcn.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/codegen/texts.h"

namespace teletensor::backends::cuda {

// Must equal the type of this name in text/emulate.cuh.
struct EmulatedIndex {
  unsigned x, y, z;
};
struct EmulatedThread {
  EmulatedIndex thread, block, block_size, grid_size;
  void (*barrier)();
};

// One compiled kernel.
struct EmulatedKernel {
  void (*thread)(const void*) = nullptr;
  EmulatedThread* current = nullptr;
  bool barriers = false;
};

// Runs the threads of a block up to their next barrier, again and again, in varying order.
class BlockOfFibers {
 public:
  void run(const EmulatedKernel& kernel, const void* params, unsigned count,
           const std::function<EmulatedIndex(unsigned)>& index) {
    while (fibers_.size() < count) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.resize(kStack);
    }
    kernel_ = &kernel;
    params_ = params;
    self() = this;
    kernel.current->barrier = &BlockOfFibers::barrier;
    for (unsigned i = 0; i < count; ++i) {
      Fiber& fiber = *fibers_[i];
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &BlockOfFibers::enter, 0);
    }
    unsigned left = count;
    for (unsigned round = 0; left > 0; ++round) {
      for (unsigned n = 0; n < count; ++n) {
        const unsigned i = round % 2 == 0 ? count - 1 - n : n;
        if (fibers_[i]->done) continue;
        now_ = fibers_[i].get();
        kernel.current->thread = index(i);
        swapcontext(&scheduler_, &now_->context);
        if (now_->done) --left;
      }
    }
  }

 private:
  static constexpr std::size_t kStack = 128 << 10;
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
  };
  static BlockOfFibers*& self() {
    static thread_local BlockOfFibers* block = nullptr;
    return block;
  }
  static void enter() {
    BlockOfFibers& block = *self();
    block.kernel_->thread(block.params_);
    block.now_->done = true;
    swapcontext(&block.now_->context, &block.scheduler_);
  }
  static void barrier() {
    BlockOfFibers& block = *self();
    Fiber& fiber = *block.now_;
    const EmulatedIndex index = block.kernel_->current->thread;
    swapcontext(&fiber.context, &block.scheduler_);
    block.kernel_->current->thread = index;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_;
  Fiber* now_ = nullptr;
  const EmulatedKernel* kernel_ = nullptr;
  const void* params_ = nullptr;
};

inline void emulate(const EmulatedKernel& kernel, const LaunchShape& shape, const void* params) {
  static thread_local BlockOfFibers fibers;
  EmulatedThread& current = *kernel.current;
  const auto& [gx, gy, gz] = shape.grid;
  const auto& [bx, by, bz] = shape.block;
  current.grid_size = {gx, gy, gz};
  current.block_size = {bx, by, bz};
  const auto index = [&](unsigned i) {
    return EmulatedIndex{i % shape.block[0], i / shape.block[0] % shape.block[1],
                         i / (shape.block[0] * shape.block[1])};
  };
  const unsigned count = bx * by * bz;
  for (unsigned block = 0; block < gx * gy * gz; ++block) {
    current.block = {block % gx, block / gx % gy, block / (gx * gy)};
    if (kernel.barriers) {
      fibers.run(kernel, params, count, index);
      continue;
    }
    for (unsigned i = count; i-- > 0;) {
      current.thread = index(i);
      kernel.thread(params);
    }
  }
}

// Compiles many texts at once and keeps the libraries. A library that an earlier run made from the
// same text is used again (from the folder $TELETENSOR_EMULATED, or else a folder of this process).
class Emulator {
 public:
  // Fills `kernels` with the loaded functions. Returns an empty string, or the message of g++.
  std::string compile(std::span<const KernelSource> sources, std::vector<EmulatedKernel>& kernels) {
    std::string text = std::string(texts::kEmulate) + std::string(prelude());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      // Each text gets a namespace and a name of its own.
      const std::string n = std::to_string(i), &name = sources[i].name;
      text += "\n#define " + name + " tt_emulated_" + n + "\nnamespace kernel_" + n + " {\n" +
              sources[i].text + "\n}\n#undef " + name + "\n";
    }
    const std::string base = folder() + "/" + std::to_string(std::hash<std::string>()(text));
    const std::string library = base + ".so";
    if (::access(library.c_str(), R_OK) != 0) {
      std::ofstream(base + ".cc") << text;
      const std::string command = "g++ -std=c++20 -O1 -ffp-contract=off -fPIC -shared -w -o " +
                                  base + ".tmp " + base + ".cc > " + base + ".log 2>&1";
      if (std::system(command.c_str()) != 0) {
        std::ifstream log(base + ".log");
        std::string line, message;
        for (int lines = 0; lines < 20 && std::getline(log, line); ++lines) message += line + "\n";
        return command + "\n" + message;
      }
      std::rename((base + ".tmp").c_str(), library.c_str());
    }
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return ::dlerror();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::string name = "tt_emulated_" + std::to_string(i);
      EmulatedKernel kernel;
      kernel.thread =
          reinterpret_cast<void (*)(const void*)>(::dlsym(handle, (name + "_thread").c_str()));
      kernel.current = static_cast<EmulatedThread*>(::dlsym(handle, "tt_current"));
      kernel.barriers = ::dlsym(handle, (name + "_barriers").c_str()) != nullptr;
      if (kernel.thread == nullptr || kernel.current == nullptr) return "no " + name;
      kernels.push_back(kernel);
    }
    return {};
  }

 private:
  static std::string folder() {
    static const std::string made = [] {
      if (const char* set = std::getenv("TELETENSOR_EMULATED")) {
        ::mkdir(set, 0700);
        return std::string(set);
      }
      char pattern[] = "/tmp/teletensor-emulated-XXXXXX";
      const char* name = ::mkdtemp(pattern);
      return std::string(name == nullptr ? "." : name);
    }();
    return made;
  }
};

}  // namespace teletensor::backends::cuda
