#include "clients/cpp/hello.h"

#include "proto/wire/protocol.h"
#include "proto/wire/varint.h"

namespace teletensor::client {

using wire::Cursor;
using wire::WireType;

namespace {

// Maximum size of the frames kept since the last snapshot, in bytes; the same as in the Python
// client.
constexpr std::size_t kRetainedBytes = 32u << 20;

void put(std::string& out, std::uint32_t field, std::uint64_t value) {
  char bytes[2 * wire::kMaxVarint];
  out.append(bytes, wire::put_field(bytes, field, value));
}

void put(std::string& out, std::uint32_t field, std::string_view value) {
  if (value.empty()) return;
  char bytes[2 * wire::kMaxVarint];
  out.append(bytes, wire::put_varint(wire::put_tag(bytes, field, WireType::kBytes), value.size()));
  out.append(value);
}

// Calls number(field, value) and text(field, bytes) for each field; skips other types.
template <class OnNumber, class OnText>
bool read(std::string_view message, OnNumber number, OnText text) {
  for (Cursor cursor(message); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    std::uint64_t value = 0;
    std::string_view bytes;
    if (!cursor.tag(field, type)) return false;
    if (type == WireType::kVarint) {
      if (!cursor.varint(value)) return false;
      number(field, value);
    } else if (type == WireType::kBytes) {
      if (!cursor.bytes(bytes)) return false;
      text(field, bytes);
    } else if (!cursor.skip(type)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string encode_hello(const HelloAsked& asked, const ops::Catalog& catalog) {
  std::string out;
  put(out, 1, wire::kProtocolMin);
  put(out, 2, wire::kProtocol);
  put(out, 3, asked.version);
  put(out, 4, asked.instance);
  put(out, 5, 1);
  put(out, 6, asked.name);
  put(out, 7, asked.memory);
  put(out, 8, asked.lease_seconds);
  for (std::size_t i = 0; i < catalog.size(); ++i) {
    const ops::OpDef& def = catalog.at(static_cast<ops::OpId>(i));
    std::string op;
    put(op, 1, def.name);
    put(op, 2, static_cast<std::uint64_t>(def.revision));
    put(out, 9, op);
  }
  std::string client;
  put(client, 1, asked.user);
  put(client, 2, asked.host);
  put(client, 3, asked.pid);
  put(client, 4, asked.program);
  put(out, 11, client);
  return out;
}

core::Status decode_hello(std::string_view bytes, HelloAnswer& answer) {
  SessionLimits& limits = answer.limits;
  const auto nothing = [](std::uint32_t, auto) {};
  const auto on_limit = [&](std::uint32_t field, std::uint64_t value) {
    if (field == 1) limits.credit_upto = value;
    if (field == 2) limits.credit_bytes = value;
    if (field == 3) limits.frame.bytes = value;
    if (field == 4) limits.frame.commands = value;
    if (field == 5) limits.frame.items = value;
    if (field == 6) limits.frame.inline_bytes = value;
    if (field == 7 && value != 0) answer.chunk_bytes = value;
    if (field == 8) limits.most.programs = value;
    if (field == 9) limits.most.program_steps = value;
    if (field == 10) limits.most.program_bytes = value;
    if (field == 11) limits.most.kept = value;
    if (field == 12) limits.most.handles = value;
  };
  bool good = true;
  const auto on_number = [&](std::uint32_t field, std::uint64_t value) {
    if (field == 1) limits.protocol = static_cast<std::uint32_t>(value);
    if (field == 3) answer.epoch = value;
    if (field == 6) answer.lease_seconds = value;
    if (field == 10) limits.quota = value;
    if (field == 11) answer.session = value;
    if (field == 13) answer.restart = std::chrono::milliseconds(value);
    if (field == 14) answer.snapshots = value != 0;
  };
  const auto on_text = [&](std::uint32_t field, std::string_view text) {
    if (field == 2) answer.server_version = text;
    if (field == 4) answer.token = text;
    if (field == 5) answer.name = text;
    if (field == 30) answer.ticket = text;
    if (field == 7) good = good && read(text, on_limit, nothing);
    if (field == 8) {
      good = good && read(text, nothing, [&](std::uint32_t inner, std::string_view name) {
               if (inner == 1) answer.devices.emplace_back(name);
             });
    }
  };
  good = read(bytes, on_number, on_text) && good && !answer.token.empty();
  if (good && wire::common_protocol(limits.protocol, limits.protocol) == 0) {
    return core::internal("the daemon has chosen protocol " + std::to_string(limits.protocol) +
                          ", and this client offered " + std::to_string(wire::kProtocolMin) +
                          " to " + std::to_string(wire::kProtocol));
  }
  limits.keeps = answer.lease_seconds > 0;
  if (answer.restart.count() > 0) limits.retained_bytes = kRetainedBytes;
  return good ? core::Status() : core::internal("the daemon's answer to Hello cannot be decoded");
}

std::string encode_attach(const AttachAsked& asked) {
  std::string out;
  put(out, 1, asked.instance);
  put(out, 2, asked.attach);
  put(out, 3, asked.epoch);
  put(out, 4, asked.progress_upto);
  put(out, 5, asked.completed_upto);
  put(out, 6, asked.uploads);
  put(out, 7, asked.replay_from);
  return out;
}

core::Status decode_attach(std::string_view bytes, AttachAnswer& answer) {
  const auto on_number = [&](std::uint32_t field, std::uint64_t value) {
    if (field == 1) answer.epoch = value;
    if (field == 3) answer.received_upto = value;
    if (field == 6) answer.replay = value != 0;
    if (field == 7) answer.credit_upto = value;
    if (field == 8) answer.credit_bytes = value;
    if (field == 9) answer.bytes_received = value;
  };
  const auto on_text = [&](std::uint32_t field, std::string_view text) {
    if (field == 10) answer.moved_to = text;
  };
  return read(bytes, on_number, on_text)
             ? core::Status()
             : core::internal("the daemon's answer to Attach cannot be decoded");
}

std::string encode_published(std::string_view name) {
  std::string out;
  put(out, 1, name);
  return out;
}

core::Result<std::vector<PublishedAnswer>> decode_published(std::string_view bytes) {
  std::vector<PublishedAnswer> out;
  bool good = true;
  const auto add_size = [&](core::Dims& shape, std::uint64_t size) {
    good = good && shape.size() < core::kMaxRank;
    if (good) shape.push_back(static_cast<std::int64_t>(size));
  };
  const auto one = [&](std::uint32_t field, std::string_view body) {
    if (field != 1) return;
    PublishedAnswer& answer = out.emplace_back();
    program::Published& described = answer.described;
    const auto on_number = [&](std::uint32_t inner, std::uint64_t value) {
      if (inner == 1) described.publication = value;
      if (inner == 5) {
        const auto dtype = core::dtype_from_number(value);
        good = good && dtype.has_value();
        if (dtype) described.dtype = *dtype;
      }
      if (inner == 7) add_size(described.shape, value);
      if (inner == 8) described.writable = value != 0;
    };
    const auto on_text = [&](std::uint32_t inner, std::string_view text) {
      if (inner == 2) answer.name = text;
      if (inner == 6) {
        const auto device = core::device_from_name(text);
        good = good && device.has_value();
        if (device) described.device = *device;
      }
      if (inner != 7) return;
      for (Cursor cursor(text); !cursor.done() && good;) {  // The field is a packed list.
        std::uint64_t size = 0;
        good = cursor.varint(size);
        add_size(described.shape, size);
      }
    };
    good = good && read(body, on_number, on_text);
  };
  good = read(
             bytes, [](std::uint32_t, std::uint64_t) {}, one) &&
         good;
  if (!good) return core::internal("the daemon's answer to Published cannot be decoded");
  return out;
}

}  // namespace teletensor::client
