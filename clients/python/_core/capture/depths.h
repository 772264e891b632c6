// Computes how many values are on a Python frame's stack at each instruction. This depends only on
// the code that CPython's compiler has produced. A running frame does not provide the number in
// every version: 3.12 and 3.13 keep it in a register during opcode events.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

namespace teletensor::client {

// Reads the tables of Python's module `opcode`. Must be called before stack_depths() is called from
// a trace function, where nothing can be imported.
void load_opcodes();

// The number of values on the stack before each instruction, indexed by half its offset in `bytes`
// (co_code), also at its prefixes and inline caches. -1 for unreachable instructions. Throws
// python_error.
std::vector<int> stack_depths(PyCodeObject* code, std::string_view bytes);

}  // namespace teletensor::client
