// Transposes squares of numbers in registers.
#pragma once

namespace teletensor::backends::cpu {

// Transposes four vectors of four numbers: rows become columns.
template <class V>
void turn(V (&r)[4]) {
  const V a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const V b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const V c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const V d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

}  // namespace teletensor::backends::cpu
