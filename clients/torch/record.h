// The interface between the PyTorch extension, which is compiled against the torch of the machine,
// and the native half of the client: plain C records and one table of functions. No header of
// torch, and no C++ type, crosses it.
//
// Every function is called under Python's lock, but new_storage and drop_storage, which any thread
// may call at any time: torch allocates without that lock. A function that returns an int returns
// 0, or -1 with a Python error set. Numbers of dtypes are those of c10::ScalarType.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TT_TORCH_VERSION 2
#define TT_TORCH_CAPSULE "teletensor._core.torch_bridge"
#define TT_STEP_CAPSULE "teletensor._core.torch_step"

#ifdef __cplusplus
extern "C" {
#endif

/* The contents of one storage of torch. */
typedef struct tt_storage tt_storage;

/* A tensor on a storage. Strides and offset count elements. */
typedef struct tt_tensor {
  tt_storage* storage; /* null: an undefined tensor */
  int32_t dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t offset;
} tt_tensor;

enum tt_kind {
  TT_NONE = 0,
  TT_TENSOR = 1,
  TT_BOOL = 2,
  TT_INT = 3,
  TT_REAL = 4,
  TT_COMPLEX = 5,
  TT_INTS = 6,
  TT_REALS = 7,
  TT_TEXT = 8,
  TT_TENSORS = 9,
  TT_CPU_SCALAR = 10, /* a tensor of no dimensions in host memory, with a dtype of its own */
  TT_GENERATOR = 11,
  TT_NUMBERS = 12 /* a list of Python numbers: `numbers` */
};

/* An argument. The memory that it points to must stay valid until the call has returned. */
typedef struct tt_value {
  int32_t kind;
  int32_t dtype; /* of a TT_CPU_SCALAR */
  size_t count;  /* of a list's elements, of a text's bytes */
  tt_tensor tensor;
  int64_t integer; /* also a bool */
  double real;
  double imaginary;
  const int64_t* ints;
  const double* reals;
  const char* text;
  const tt_tensor* tensors;
  const struct tt_value* numbers;
  unsigned char bytes[16]; /* of a TT_CPU_SCALAR */
  void* generator;         /* null: the default one */
} tt_value;

/* A result: a TT_TENSOR on a new storage, which is the caller's; TT_NONE, an undefined tensor; or a
 * TT_INT. */
typedef struct tt_result {
  int32_t kind;
  tt_tensor tensor;
  uint64_t storage_bytes;
  int64_t integer;
} tt_result;

/* How a call delivers its results. */
enum tt_form {
  TT_FUNCTIONAL = 0,
  TT_IN_PLACE = 1 /* the result is written to argument 0; no results are returned */
};

/* One operator of torch, as its schema says. */
typedef struct tt_schema {
  const char* name; /* without "aten::" and without the overload */
  /* Of arguments. Those for results are left out; in their place comes the last one, `out`: a
   * TT_INT, the dtype of the first of them. */
  size_t count;
  const char* const* arguments; /* their names */
  int32_t form;
} tt_schema;

/* The random numbers of a generator of torch: a seed, and the first of `count` ordinals, which are
 * taken. */
typedef void (*tt_random)(void* generator, uint64_t count, int64_t* seed, int64_t* ordinal);

typedef struct tt_bridge {
  uint32_t version; /* TT_TORCH_VERSION */
  /* The row that serves this operator; -1 where there is none. Cannot fail. */
  int (*resolve)(const tt_schema* schema);
  /* Runs a row. The results, and the memory that they point to, stay valid until the next call.
   * Returns 1, without an error and without effect, if the daemon has no such op for these
   * operands.
   */
  int (*call)(int row, const tt_value* arguments, const tt_result** results, size_t* count);
  /* Makes a storage, which has no contents until it is first used. Cannot fail. */
  tt_storage* (*new_storage)(uint64_t bytes);
  void (*drop_storage)(tt_storage* storage);
  /* Changes the size of a storage; its first `bytes` bytes keep their contents. */
  int (*resize_storage)(tt_storage* storage, uint64_t bytes);
  /* Copies, casts and broadcasts elements. If `last` is set, `from` is not used again, and `to` may
   * take its memory. */
  int (*copy)(const tt_tensor* to, const tt_tensor* from, int last);
  /* Row-major elements of the tensor's dtype. The bytes are copied before the return. */
  int (*upload)(const tt_tensor* to, const void* bytes, uint64_t count);
  int (*read)(const tt_tensor* from, void* bytes, uint64_t count);
  void (*set_random)(tt_random random);
  /* Calls a captured step, the contents of a capsule TT_STEP_CAPSULE. The results are as those of
   * `call`. Returns 1, without an effect, if the step is not valid for these arguments. */
  int (*run)(void* step, const tt_tensor* arguments, size_t count, const tt_result** results,
             size_t* made);
} tt_bridge;

#ifdef __cplusplus
}
#endif
