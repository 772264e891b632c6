// How many values lie on a Python frame's stack at each instruction: a fact of the code alone, as
// CPython's compiler has made it. A running frame does not say so itself in every version (3.12 and
// 3.13 keep the number in a register while opcode events are told).
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

namespace teletensor::client {

// Reads the tables of Python's module `opcode`. Precondition of stack_depths() where a trace
// function calls it: nothing can be imported there.
void load_opcodes();

// By half the instruction's offset in `bytes` (co_code): values on the stack before it runs, at its
// prefixes and inline caches as well; -1 where no instruction leads. Throws python_error.
std::vector<int> stack_depths(PyCodeObject* code, std::string_view bytes);

}  // namespace teletensor::client
