// The C interface to gRPC: calls that carry messages as plain bytes.
// It is a separate shared library that exports no C++ symbol and no protobuf class, because
// notebooks load other copies of gRPC, protobuf and Abseil into the same process. `_core` loads it
// with RTLD_LOCAL | RTLD_DEEPBIND (clients/session/wire.h); clients/cpp links it.
// One writer and one reader at a time may use a call; cancel() may be called by any thread. A
// thread that waits for a call does the call's I/O itself.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TT_WIRE_VERSION 1

typedef struct tt_wire_channel tt_wire_channel;
typedef struct tt_wire_call tt_wire_call;

// Bytes to send. With `drop` they are not copied: drop(owner) is called, by any thread, when they
// are not needed any more.
typedef struct {
  const void* data;
  size_t size;
  void (*drop)(void* owner);
  void* owner;
} tt_wire_part;

// A received message. Valid until forget().
typedef struct {
  const tt_wire_part* parts;  // `drop` and `owner` are not used.
  size_t count;
  void* owner;
} tt_wire_message;

// PEM texts. NULL means the system's authorities, or no client certificate.
typedef struct {
  const char* authorities;
  const char* certificate;
  const char* key;
} tt_wire_tls;

// Results of waiting functions.
enum { TT_WIRE_OVER = -1, TT_WIRE_TIMEOUT = 0, TT_WIRE_DONE = 1 };

// Times are microseconds from now. Negative values mean no limit.
typedef struct {
  int version;
  // Creates a channel to "host:port", or to "unix:" and a path that is escaped as in a URI. Not
  // encrypted if `tls` is NULL. It connects when the first call is started.
  tt_wire_channel* (*connect)(const char* target, const tt_wire_tls* tls);
  // Frees the channel. Precondition: all of its calls have ended.
  void (*disconnect)(tt_wire_channel* channel);

  // Starts a call. `metadata` has keys and values alternately, followed by NULL. With `wait`, it
  // waits for a connection up to `timeout` instead of failing at once.
  tt_wire_call* (*start)(tt_wire_channel* channel, const char* method, const char* const* metadata,
                         int wait, int64_t timeout);
  // Starts to send one message; NULL as `parts` ends the client's messages. Precondition: written()
  // has reported the previous write.
  void (*write)(tt_wire_call* call, const tt_wire_part* parts, size_t count);
  // Waits until the write is complete. Returns OVER if the call has ended.
  int (*written)(tt_wire_call* call, int64_t timeout);
  // Waits for the next message. Returns OVER if there are no more messages; status() has the
  // reason.
  int (*read)(tt_wire_call* call, int64_t timeout, tt_wire_message* message);
  void (*forget)(tt_wire_message* message);
  // The final status code of a call (0: OK) and its text, which is valid until end(). Precondition:
  // read() has returned OVER.
  int (*status)(tt_wire_call* call, const char** text);
  // The value of a key in the trailing metadata, or an empty string; valid until end(). Must follow
  // status().
  const char* (*trailer)(tt_wire_call* call, const char* key);
  void (*cancel)(tt_wire_call* call);
  // Cancels running operations and frees the call. Precondition: no other thread uses it.
  void (*end)(tt_wire_call* call);
} tt_wire_api;

__attribute__((visibility("default"))) const tt_wire_api* teletensor_wire(void);

#ifdef __cplusplus
}
#endif
