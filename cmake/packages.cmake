# Finds the packages of the distribution that the daemon uses (deploy/packages.txt), and defines one
# target for each.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenMP REQUIRED)
find_package(PkgConfig REQUIRED)

# oneDNN is found without its CMake package, which requires OpenCL, because the CPU engine does not
# use OpenCL.
find_library(TELETENSOR_DNNL dnnl REQUIRED)
find_path(TELETENSOR_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
add_library(tt_onednn INTERFACE)
target_include_directories(tt_onednn SYSTEM INTERFACE "${TELETENSOR_DNNL_INCLUDE}")
target_link_libraries(tt_onednn INTERFACE "${TELETENSOR_DNNL}" OpenMP::OpenMP_CXX)

find_library(TELETENSOR_HWY hwy REQUIRED)
find_library(TELETENSOR_HWY_CONTRIB hwy_contrib REQUIRED)
add_library(tt_highway INTERFACE)
target_compile_definitions(tt_highway INTERFACE HWY_SHARED_DEFINE)
target_link_libraries(tt_highway INTERFACE "${TELETENSOR_HWY_CONTRIB}" "${TELETENSOR_HWY}")

# OpenBLAS with its LAPACK, in a variant that several threads may call. It creates no threads
# itself, because the kernels run in their own. The LAPACK headers are those of liblapacke-dev.
find_library(TELETENSOR_OPENBLAS openblas REQUIRED)
find_path(TELETENSOR_CBLAS_INCLUDE cblas.h REQUIRED)
find_path(TELETENSOR_LAPACK_INCLUDE lapack.h REQUIRED)
add_library(tt_lapack INTERFACE)
target_include_directories(tt_lapack SYSTEM INTERFACE "${TELETENSOR_CBLAS_INCLUDE}"
                                                      "${TELETENSOR_LAPACK_INCLUDE}")
target_link_libraries(tt_lapack INTERFACE "${TELETENSOR_OPENBLAS}")

# Flags for kernels: vectorization, and only those floating-point assumptions that do not change any
# bit of a result.
add_library(tt_kernel_flags INTERFACE)
target_compile_options(tt_kernel_flags INTERFACE $<$<CONFIG:Release>:-O3> -fno-math-errno
                                                 -fno-trapping-math)
# Without this flag, g++ moves calls of vectorizable functions into branches, where they stay
# scalar. Their vector forms are in glibc's libmvec.
target_compile_options(tt_kernel_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fno-tree-sink>)
# clang treats TT_INDEPENDENT as an order to vectorize and warns about each loop that stays scalar.
# It also takes `&` between conditions, which keeps branches out of such loops, for a mistake.
target_compile_options(tt_kernel_flags INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed -Wno-bitwise-instead-of-logical>)
find_library(TELETENSOR_MVEC mvec)
if(TELETENSOR_MVEC)
  target_link_libraries(tt_kernel_flags INTERFACE "${TELETENSOR_MVEC}")
endif()

# Snapshots and spilled tensors: checksums and compression.
pkg_check_modules(TELETENSOR_ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(TELETENSOR_XXHASH REQUIRED IMPORTED_TARGET libxxhash)
add_library(tt_block_file INTERFACE)
target_link_libraries(tt_block_file INTERFACE PkgConfig::TELETENSOR_ZSTD
                                              PkgConfig::TELETENSOR_XXHASH)

# HTTP, metrics, tokens and the dashboard's charts.
find_path(TELETENSOR_CHART_JS chart.min.js PATHS /usr/share/javascript/chart.js REQUIRED)
pkg_check_modules(TELETENSOR_HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
pkg_check_modules(TELETENSOR_PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)

# Command line, TOML, JSON and logs. spdlog uses the fmt library that Debian built it with.
find_path(TELETENSOR_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_path(TELETENSOR_TOML_INCLUDE toml++/toml.h REQUIRED)
find_path(TELETENSOR_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
add_library(tt_daemon_packages INTERFACE)
target_link_libraries(tt_daemon_packages INTERFACE gRPC::grpc++
                                                   protobuf::libprotobuf spdlog::spdlog
                                                   OpenSSL::Crypto SQLite::SQLite3
                                                   PkgConfig::TELETENSOR_PROMETHEUS
                                                   PkgConfig::TELETENSOR_HTTPLIB
                                                   Threads::Threads)
