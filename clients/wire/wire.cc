// Implements the C interface on gRPC's core. Each call has its own completion queue, from which the
// waiting thread plucks its event, so that a read and a write can be awaited at the same time.
#include "clients/wire/wire.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

struct tt_wire_channel {
  grpc_channel* channel;
};

struct tt_wire_call {
  grpc_completion_queue* queue = nullptr;
  grpc_call* call = nullptr;

  // The addresses of these members are the tags of the operations.
  char opened = 0, headers = 0, wrote = 0, got = 0, finished = 0;

  bool reading = false;  // Whether a receive is in progress.
  bool writing = false;
  bool over = false;  // Whether the end of the call was plucked.
  grpc_byte_buffer* received = nullptr;
  grpc_metadata_array initial, trailing;
  grpc_status_code code = GRPC_STATUS_UNKNOWN;
  grpc_slice details = grpc_empty_slice();
  std::string text, found;
};

namespace {

constexpr int kMaxMessageBytes = 64 << 20;
// On a network that drops all packets no error is reported, so the connection is given up this long
// after the last byte. The daemon pings every 5 s, so that the client's own pings are sent only if
// the daemon's do not arrive.
constexpr int kKeepaliveMs = 10'000, kKeepaliveTimeoutMs = 5'000;

struct Message {
  grpc_byte_buffer* buffer;
  std::vector<tt_wire_part> parts;
};

gpr_timespec when(int64_t timeout) {
  if (timeout < 0) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout, GPR_TIMESPAN));
}

// Waits for the event and returns whether it came; `good` receives its success flag.
bool pluck(tt_wire_call* call, void* tag, gpr_timespec deadline, bool& good) {
  const grpc_event event = grpc_completion_queue_pluck(call->queue, tag, deadline, nullptr);
  good = event.success != 0;
  return event.type == GRPC_OP_COMPLETE;
}

void run(tt_wire_call* call, const grpc_op& op, void* tag) {
  // Starting an operation fails only if the interface is used wrongly.
  if (grpc_call_start_batch(call->call, &op, 1, tag, nullptr) != GRPC_CALL_OK) __builtin_trap();
}

tt_wire_channel* connect(const char* target, const tt_wire_tls* tls) {
  // The library is kept initialized until the process ends, because its shutdown waits for its own
  // threads.
  static const bool held = (grpc_init(), true);
  (void)held;
  const auto option = [](const char* key, int value) {
    grpc_arg arg;
    arg.type = GRPC_ARG_INTEGER;
    arg.key = const_cast<char*>(key);
    arg.value.integer = value;
    return arg;
  };
  std::vector<grpc_arg> options = {
      option(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes),
      option(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, kMaxMessageBytes),
      option(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
      // Gives each channel its own connection, so that data of other sessions cannot delay it.
      option(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
      option(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
      option(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
  };
  if (!std::string_view(target).starts_with("unix:")) {
    options.push_back(option(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs));
    options.push_back(option(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs));
    options.push_back(option(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0));
  }
  const grpc_channel_args arguments = {options.size(), options.data()};
  grpc_channel_credentials* credentials = nullptr;
  if (tls == nullptr) {
    credentials = grpc_insecure_credentials_create();
  } else {
    grpc_ssl_pem_key_cert_pair own = {tls->key, tls->certificate};
    const bool mutual = tls->key != nullptr && tls->certificate != nullptr;
    credentials =
        grpc_ssl_credentials_create_ex(tls->authorities, mutual ? &own : nullptr, nullptr, nullptr);
  }
  auto* channel = new tt_wire_channel{grpc_channel_create(target, credentials, &arguments)};
  grpc_channel_credentials_release(credentials);
  return channel;
}

void disconnect(tt_wire_channel* channel) {
  grpc_channel_destroy(channel->channel);
  delete channel;
}

tt_wire_call* start(tt_wire_channel* channel, const char* method, const char* const* metadata,
                    int wait, int64_t timeout) {
  auto* call = new tt_wire_call;
  call->queue = grpc_completion_queue_create_for_pluck(nullptr);
  const grpc_slice name = grpc_slice_from_copied_string(method);
  call->call = grpc_channel_create_call(channel->channel, nullptr, GRPC_PROPAGATE_DEFAULTS,
                                        call->queue, name, nullptr, when(timeout), nullptr);
  grpc_slice_unref(name);
  grpc_metadata_array_init(&call->initial);
  grpc_metadata_array_init(&call->trailing);

  std::vector<grpc_metadata> sent;
  for (; metadata != nullptr && *metadata != nullptr; metadata += 2) {
    grpc_metadata entry{};
    entry.key = grpc_slice_from_copied_string(metadata[0]);
    entry.value = grpc_slice_from_copied_string(metadata[1]);
    sent.push_back(entry);
  }
  grpc_op op{};
  op.op = GRPC_OP_SEND_INITIAL_METADATA;
  op.flags = wait ? GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                        GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET
                  : 0;
  op.data.send_initial_metadata.count = sent.size();
  op.data.send_initial_metadata.metadata = sent.data();
  run(call, op, &call->opened);
  for (const grpc_metadata& entry : sent) {
    grpc_slice_unref(entry.key);
    grpc_slice_unref(entry.value);
  }
  op = {};
  op.op = GRPC_OP_RECV_INITIAL_METADATA;
  op.data.recv_initial_metadata.recv_initial_metadata = &call->initial;
  run(call, op, &call->headers);
  op = {};
  op.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
  op.data.recv_status_on_client.trailing_metadata = &call->trailing;
  op.data.recv_status_on_client.status = &call->code;
  op.data.recv_status_on_client.status_details = &call->details;
  run(call, op, &call->finished);
  return call;
}

void write(tt_wire_call* call, const tt_wire_part* parts, size_t count) {
  grpc_op op{};
  grpc_byte_buffer* message = nullptr;
  if (parts == nullptr) {
    op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
  } else {
    std::vector<grpc_slice> slices;
    slices.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const tt_wire_part& part = parts[i];
      slices.push_back(
          part.drop == nullptr
              ? grpc_slice_from_copied_buffer(static_cast<const char*>(part.data), part.size)
              : grpc_slice_new_with_user_data(const_cast<void*>(part.data), part.size, part.drop,
                                              part.owner));
    }
    message = grpc_raw_byte_buffer_create(slices.data(), slices.size());
    for (const grpc_slice& slice : slices) grpc_slice_unref(slice);
    op.op = GRPC_OP_SEND_MESSAGE;
    op.data.send_message.send_message = message;
  }
  run(call, op, &call->wrote);
  if (message != nullptr) grpc_byte_buffer_destroy(message);
  call->writing = true;
}

int written(tt_wire_call* call, int64_t timeout) {
  bool good = false;
  if (!pluck(call, &call->wrote, when(timeout), good)) return TT_WIRE_TIMEOUT;
  call->writing = false;
  return good ? TT_WIRE_DONE : TT_WIRE_OVER;
}

int read(tt_wire_call* call, int64_t timeout, tt_wire_message* message) {
  if (!call->reading) {
    grpc_op op{};
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->received;
    run(call, op, &call->got);
    call->reading = true;
  }
  bool good = false;
  if (!pluck(call, &call->got, when(timeout), good)) return TT_WIRE_TIMEOUT;
  call->reading = false;
  grpc_byte_buffer* buffer = call->received;
  call->received = nullptr;
  if (!good || buffer == nullptr) return TT_WIRE_OVER;
  // gRPC decompresses messages before they reach this interface.
  const grpc_slice_buffer& slices = buffer->data.raw.slice_buffer;
  auto* owner = new Message{buffer, {}};
  owner->parts.reserve(slices.count);
  for (size_t i = 0; i < slices.count; ++i) {
    owner->parts.push_back({GRPC_SLICE_START_PTR(slices.slices[i]),
                            GRPC_SLICE_LENGTH(slices.slices[i]), nullptr, nullptr});
  }
  *message = {owner->parts.data(), owner->parts.size(), owner};
  return TT_WIRE_DONE;
}

void forget(tt_wire_message* message) {
  auto* owner = static_cast<Message*>(message->owner);
  grpc_byte_buffer_destroy(owner->buffer);
  delete owner;
  *message = {nullptr, 0, nullptr};
}

int status(tt_wire_call* call, const char** text) {
  bool good = false;
  if (!call->over) {
    pluck(call, &call->finished, when(-1), good);
    call->over = true;
    call->text.assign(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(call->details)),
                      GRPC_SLICE_LENGTH(call->details));
  }
  if (text != nullptr) *text = call->text.c_str();
  return call->code;
}

const char* trailer(tt_wire_call* call, const char* key) {
  for (size_t i = 0; i < call->trailing.count; ++i) {
    const grpc_metadata& entry = call->trailing.metadata[i];
    if (grpc_slice_str_cmp(entry.key, key) != 0) continue;
    call->found.assign(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(entry.value)),
                       GRPC_SLICE_LENGTH(entry.value));
    return call->found.c_str();
  }
  return "";
}

void cancel(tt_wire_call* call) { grpc_call_cancel(call->call, nullptr); }

void end(tt_wire_call* call) {
  bool good = false;
  if (!call->over) cancel(call);
  status(call, nullptr);
  pluck(call, &call->opened, when(-1), good);
  pluck(call, &call->headers, when(-1), good);
  if (call->writing) pluck(call, &call->wrote, when(-1), good);
  if (call->reading) pluck(call, &call->got, when(-1), good);
  if (call->received != nullptr) grpc_byte_buffer_destroy(call->received);
  grpc_metadata_array_destroy(&call->initial);
  grpc_metadata_array_destroy(&call->trailing);
  grpc_slice_unref(call->details);
  grpc_call_unref(call->call);
  grpc_completion_queue_shutdown(call->queue);
  grpc_completion_queue_destroy(call->queue);
  delete call;
}

constexpr tt_wire_api kApi = {TT_WIRE_VERSION, connect, disconnect, start,  write, written, read,
                              forget,          status,  trailer,    cancel, end};

}  // namespace

const tt_wire_api* teletensor_wire(void) { return &kApi; }
