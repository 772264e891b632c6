# Functions and flags that the daemon's build (in the root folder) shares with the Python client's
# build, which compiles some of the same folders with only a C++20 compiler. Needs no package.
include_guard(GLOBAL)

get_filename_component(TELETENSOR_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
option(TELETENSOR_WERROR "Warnings are errors" OFF)
option(TELETENSOR_TESTS "Build the unit tests" OFF)
set(TELETENSOR_SANITIZE "" CACHE STRING "address (with undefined) or thread")

# Release builds keep internal checks, so -DNDEBUG is not set.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g")  # the sanitizers' builds

# Flags for every target. The bits of a result must not depend on contraction, hence
# -ffp-contract=off. No library replaces a function of ours, so functions of one file may be inlined
# into each other although they are compiled for a shared library (-fno-semantic-interposition).
add_library(tt_flags INTERFACE)
target_compile_features(tt_flags INTERFACE cxx_std_20)
target_include_directories(tt_flags INTERFACE "${TELETENSOR_ROOT}")
target_compile_options(tt_flags INTERFACE -ffp-contract=off -fno-semantic-interposition -Wall
                                         -Wextra)
if(TELETENSOR_WERROR)
  target_compile_options(tt_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(tt_flags INTERFACE -Wthread-safety)
endif()
if(TELETENSOR_SANITIZE STREQUAL "address")
  target_compile_options(tt_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                            -fno-omit-frame-pointer)
  target_link_options(tt_flags INTERFACE -fsanitize=address,undefined)
elseif(TELETENSOR_SANITIZE STREQUAL "thread")
  target_compile_options(tt_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(tt_flags INTERFACE -fsanitize=thread)
elseif(TELETENSOR_SANITIZE)
  message(FATAL_ERROR "TELETENSOR_SANITIZE is address or thread, not ${TELETENSOR_SANITIZE}")
endif()
if(TELETENSOR_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tt_flags INTERFACE -Wno-maybe-uninitialized)  # wrong at -O1
endif()

option(TELETENSOR_TOGETHER "Compile several files of a library at once" ON)
set(TELETENSOR_TOGETHER_DIR "${CMAKE_BINARY_DIR}/together" CACHE PATH
    "Where the files that include others are written; the same for two builds that share ccache")

# tt_together(OUT NAME SIZE SOURCES...)
#
# Sets OUT to files that each include up to SIZE of SOURCES. Most of the compile time is spent on
# headers, mainly those of gRPC, which are then read once. Therefore names in anonymous namespaces
# must be unique within a library.
function(tt_together out name size)
  set(sources ${ARGN})
  if(TELETENSOR_TOGETHER)
    set(sources)
    list(LENGTH ARGN count)
    set(at 0)
    while(at LESS count)
      list(SUBLIST ARGN ${at} ${size} part)
      list(TRANSFORM part REPLACE "^${TELETENSOR_ROOT}/" "")
      list(TRANSFORM part REPLACE "(.+)" "#include \"\\1\"\n")
      string(JOIN "" text ${part})
      set(file "${TELETENSOR_TOGETHER_DIR}/${name}_${at}.cc")
      file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
      list(APPEND sources "${file}")
      math(EXPR at "${at} + ${size}")
    endwhile()
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# tt_library(NAME FOLDER [LINKS...] [TOGETHER SIZE] [ROOMS FOLDERS...] [PRIVATE LINKS...]
#            [TEST LINKS...])
#
# Defines the static library NAME from FOLDER's *.cc (without *_test.cc and main.cc), or an
# interface library if there are none. FOLDER's *_test.cc become one executable, <NAME without
# tt_>_test, which ctest runs with the label `unit`. ROOMS names folders within FOLDER whose files
# belong to the same library. TOGETHER is the number of files that are compiled at once (default: 8).
# A file that Highway compiles once per instruction set is compiled separately.
# The links are the layer rules of the project, which tests/policy also checks.
function(tt_library name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TOGETHER" "ROOMS;PRIVATE;TEST")
  if(NOT arg_TOGETHER)
    set(arg_TOGETHER 8)
  endif()
  set(links ${arg_UNPARSED_ARGUMENTS})
  set(base "${TELETENSOR_ROOT}/${folder}")
  set(patterns "${base}/*.cc")
  foreach(room ${arg_ROOMS})
    list(APPEND patterns "${base}/${room}/*.cc")
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    set(apart)
    foreach(source ${sources})
      file(STRINGS "${source}" targets REGEX "hwy/foreach_target" LIMIT_COUNT 1)
      if(targets)
        list(APPEND apart "${source}")
      endif()
    endforeach()
    list(REMOVE_ITEM sources ${apart} "")
    tt_together(sources ${name} ${arg_TOGETHER} ${sources})
    add_library(${name} STATIC ${sources} ${apart})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${name} PUBLIC tt_flags ${links} PRIVATE ${arg_PRIVATE})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE tt_flags ${links} ${arg_PRIVATE})
  endif()
  if(tests AND TELETENSOR_TESTS)
    string(REGEX REPLACE "^tt_" "" short ${name})
    tt_test(${short}_test SOURCES ${tests} LINKS ${name} ${arg_TEST})
  endif()
endfunction()

# tt_test(NAME SOURCES ... LINKS ... [LABEL unit])
#
# Defines a gtest executable and registers it with ctest.
function(tt_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "SOURCES;LINKS")
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS} tt_flags GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${name}
           COMMAND ${name} --gtest_output=xml:${CMAKE_BINARY_DIR}/results/${name}.xml)
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 1800)
endfunction()

# The libraries that the Python client's build shares. They depend on the standard library only.
macro(tt_client_libraries)
  tt_library(tt_core engine/core ROOMS memory os)
  tt_library(tt_program engine/program tt_core)
  tt_library(tt_ops engine/ops tt_program
             ROOMS pointwise reduction nn linalg windows arrangement random)
  tt_library(tt_autograd engine/autograd tt_ops ROOMS known snapshot trace)
  tt_library(tt_passes engine/passes tt_ops)
  # With canonical.cc in its unit the compiler inlines less in the reader of frames, which then
  # executes 7 % more instructions.
  tt_library(tt_wire proto/wire TOGETHER 1 tt_program tt_core ROOMS reader TEST ${TELETENSOR_WIRE_TEST_LINKS})
  tt_library(tt_client clients/session tt_autograd tt_passes tt_wire
             ROOMS programs stream frames transforms)
  tt_library(tt_torch clients/torch tt_client ROOMS rows)
endmacro()

# Defines _wire, gRPC behind the C interface of clients/wire: a module that is loaded by its path.
# It is not built if gRPC's core is not installed; the Python client then uses grpcio.
function(tt_wire_module)
  find_library(TELETENSOR_GRPC grpc)
  find_library(TELETENSOR_GPR gpr)
  find_path(TELETENSOR_GRPC_INCLUDE grpc/grpc.h)
  if(NOT TELETENSOR_GRPC OR NOT TELETENSOR_GPR OR NOT TELETENSOR_GRPC_INCLUDE)
    message(STATUS "gRPC's core is not installed: no _wire")
    return()
  endif()
  add_library(_wire MODULE "${TELETENSOR_ROOT}/clients/wire/wire.cc")
  set_target_properties(_wire PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden)
  target_include_directories(_wire SYSTEM PRIVATE "${TELETENSOR_GRPC_INCLUDE}")
  target_link_libraries(_wire PRIVATE tt_flags "${TELETENSOR_GRPC}" "${TELETENSOR_GPR}")
endfunction()
