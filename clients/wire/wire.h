// The C interface behind which gRPC stands: calls that carry messages of plain bytes.
//
// One shared library without a C++ symbol or a protobuf class to the outside, because notebooks
// load other copies of gRPC, protobuf and Abseil into the same process. `_core` loads it with
// RTLD_LOCAL | RTLD_DEEPBIND (clients/session/wire.h), clients/cpp links it.
//
// A call is used by one writer and one reader at a time; cancel() may come from any thread. Whoever
// waits for a call also does its I/O, on its own thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TT_WIRE_VERSION 1

typedef struct tt_wire_channel tt_wire_channel;
typedef struct tt_wire_call tt_wire_call;

// Bytes to send. With `drop` they are not copied: drop(owner) comes, from any thread, when nobody
// will read them any more.
typedef struct {
  const void* data;
  size_t size;
  void (*drop)(void* owner);
  void* owner;
} tt_wire_part;

// A received message. Valid until forget().
typedef struct {
  const tt_wire_part* parts;  // drop and owner unused
  size_t count;
  void* owner;
} tt_wire_message;

// PEM texts; NULL: the system's authorities, no certificate of the client's own.
typedef struct {
  const char* authorities;
  const char* certificate;
  const char* key;
} tt_wire_tls;

// What a wait ends with.
enum { TT_WIRE_OVER = -1, TT_WIRE_TIMEOUT = 0, TT_WIRE_DONE = 1 };

// Times are microseconds from now; negative: without end.
typedef struct {
  int version;
  // "host:port", or "unix:" and a path escaped as in a URI; not encrypted where `tls` is NULL.
  // Connects with its first call.
  tt_wire_channel* (*connect)(const char* target, const tt_wire_tls* tls);
  // Precondition: all of its calls have ended.
  void (*disconnect)(tt_wire_channel* channel);

  // Metadata: key and value in turn, then NULL. `wait`: for the connection, up to `timeout`,
  // instead of failing at once.
  tt_wire_call* (*start)(tt_wire_channel* channel, const char* method, const char* const* metadata,
                         int wait, int64_t timeout);
  // Begins to send one message; after the last one, `parts` is NULL. Precondition: written() has
  // seen the one before it.
  void (*write)(tt_wire_call* call, const tt_wire_part* parts, size_t count);
  // Waits until the write has left. OVER: the call has ended.
  int (*written)(tt_wire_call* call, int64_t timeout);
  // Waits for the next message. OVER: there is none, and status() says why.
  int (*read)(tt_wire_call* call, int64_t timeout, tt_wire_message* message);
  void (*forget)(tt_wire_message* message);
  // The end of a call: its code (0: good) and text, which lives until end(). Precondition: read()
  // has said OVER.
  int (*status)(tt_wire_call* call, const char** text);
  // The value of a key in the trailing metadata, or ""; lives until end(). After status().
  const char* (*trailer)(tt_wire_call* call, const char* key);
  void (*cancel)(tt_wire_call* call);
  // Cancels what is still under way and frees the call. Precondition: nobody else uses it.
  void (*end)(tt_wire_call* call);
} tt_wire_api;

__attribute__((visibility("default"))) const tt_wire_api* teletensor_wire(void);

#ifdef __cplusplus
}
#endif
