#include "engine/backends/cuda/cuda.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "engine/backends/cuda/cuda_backend.h"
#include "engine/backends/cuda/device_table.h"
#include "engine/backends/cuda/driver/blas.h"
#include "engine/backends/cuda/driver/dnn.h"
#include "engine/backends/cuda/driver/driver.h"
#include "engine/backends/cuda/library/convolutions.h"
#include "engine/backends/cuda/library/products.h"

namespace teletensor::backends::cuda {
namespace {

using core::Status;

constexpr int kMaxDevices = 64;

// The tables and the libraries are used until the process ends, because threads of the driver may
// outlive everything else.
struct Libraries {
  Driver driver;
  Compiler compiler;
  Blas blas;
  Dnn dnn;
  Status no_blas, no_dnn;  // why a library is missing; ok if it is loaded
  Libraries* earlier = nullptr;
};
std::atomic<Libraries*> in_use{nullptr};  // keeps them reachable for a leak checker

Status load(const Options& options, Libraries* libraries) {
  TT_RETURN_IF_ERROR(load_driver(options.driver, &libraries->driver));
  const bool both = options.compiler.empty() && libraries->driver.compiles;
  TT_RETURN_IF_ERROR(load_compiler(both ? options.driver : options.compiler, &libraries->compiler));
  // The library of the tests contains all the others.
  const std::string everything = libraries->driver.compiles ? options.driver : std::string();
  libraries->no_blas = load_blas(libraries->driver, everything, &libraries->blas);
  libraries->no_dnn = load_dnn(libraries->driver, everything, &libraries->dnn);
  return check_versions(libraries->driver, libraries->compiler);
}

// Opens a library for a device. `words` becomes for example "cuBLASLt 13.1"; or, if the library is
// missing, why our own kernels do `what`, and the result is null.
template <class Library, class Table>
std::unique_ptr<Library> open_one(const Status& missing, const Table& table, Gpu& gpu,
                                  const std::string& name, const char* what, std::string* words) {
  Status status = missing;
  if (status.ok()) {
    auto made = Library::open(table, gpu);
    if (made.ok()) {
      *words += ", " + name;
      return std::move(*made);
    }
    status = made.status();
  }
  *words += std::string(", ") + what + " by kernels of our own: " + status.message();
  return nullptr;
}

std::string version(std::size_t major, std::size_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

DeviceLibraries open_libraries(const Libraries& found, Gpu& gpu, std::string* words) {
  const auto cuda = static_cast<std::size_t>(found.driver.version);
  *words = "CUDA " + version(cuda / 1000, cuda % 1000 / 10);
  DeviceLibraries made;
  made.products = open_one<Products>(
      found.no_blas, found.blas, gpu,
      "cuBLASLt " + version(found.blas.version / 10'000, found.blas.version % 10'000 / 100),
      "matrix products", words);
  made.convolutions = open_one<Convolutions>(
      found.no_dnn, found.dnn, gpu,
      "cuDNN " + version(found.dnn.version / 10'000, found.dnn.version % 10'000 / 100),
      "convolutions", words);
  return made;
}

}  // namespace

Found find_devices(const Options& options, const ops::Catalog& catalog, const KernelTable& host) {
  Found found;
  if (options.driver.empty()) return found;
  const auto tell = [&](bool bad, const std::string& line) {
    if (options.log) options.log(bad, line);
  };
  auto* libraries = new Libraries;
  int count = 0;
  Status status = load(options, libraries);
  if (status.ok() && libraries->driver.cuDeviceGetCount(&count) != kSuccess) {
    status = Status(core::Code::kUnavailable, options.driver + " does not count its devices");
  }
  if (status.ok() && count == 0) status = Status(core::Code::kNotFound, "the driver has no device");
  if (!status.ok()) {
    // Without a driver there is nothing to report: the machine has no GPU.
    tell(status.code() != core::Code::kNotFound, "no GPU: " + status.message());
    delete libraries;
    return found;
  }
  libraries->earlier = in_use.exchange(libraries);
  for (int i = 0; i < std::min(count, kMaxDevices); ++i) {
    const auto index = static_cast<std::uint8_t>(found.devices.size());
    const core::Device device{core::DeviceKind::kCuda, index};
    auto gpu =
        Gpu::open(libraries->driver, i, core::to_string(device), {options.patience, options.log});
    if (!gpu.ok()) {
      tell(true, "a GPU is not used: " + gpu.status().message());
      continue;
    }
    const std::uint64_t free = (*gpu)->facts().free_at_start;
    const std::uint64_t memory = options.memory == 0 ? free / 10 * 9 : options.memory;
    const int capability = (*gpu)->facts().capability;
    std::string words;
    DeviceLibraries of_device = open_libraries(*libraries, **gpu, &words);
    tell(false, (*gpu)->name() + ": " + (*gpu)->facts().model + ", compute capability " +
                    std::to_string(capability / 10) + "." + std::to_string(capability % 10) + ", " +
                    std::to_string(memory >> 20) + " MiB of " + std::to_string(free >> 20) +
                    " MiB free, " + words);
    found.devices.push_back({std::make_unique<CudaBackend>(std::move(*gpu), std::move(of_device),
                                                           device, libraries->compiler, catalog,
                                                           host, options.code_folder, options.log),
                             memory});
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> paths(const ops::Catalog& catalog,
                                                       const KernelTable& host) {
  const DeviceTable table = make_device_table(catalog);
  std::vector<std::pair<std::string, std::string>> found;
  for (std::size_t i = 0; i < catalog.size(); ++i) {
    const auto op = static_cast<ops::OpId>(i);
    const DeviceKernel& kernel = table.find(op);
    const bool runs = host.find(op) != nullptr || kernel.describe != nullptr;
    found.emplace_back(catalog.at(op).name,
                       runs ? std::string(name_of(kernel.skeleton)) : std::string("view"));
  }
  return found;
}

}  // namespace teletensor::backends::cuda
