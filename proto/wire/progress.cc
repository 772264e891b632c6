#include "proto/wire/progress.h"

#include "engine/program/text.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

// Appends fields to a string; like proto3, omits zeroes.
class Out {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    char at[2 * kMaxVarint];
    bytes_.append(at, put_field(at, field, value));
  }
  void text(std::uint32_t field, std::string_view value) {
    if (!value.empty()) message(field, value);
  }
  template <class List>
  void packed(std::uint32_t field, const List& values) {
    Out list;
    for (auto value : values) {
      char at[kMaxVarint];
      list.bytes_.append(at, put_varint(at, static_cast<std::uint64_t>(value)));
    }
    text(field, list.bytes_);
  }
  void message(std::uint32_t field, std::string_view body) {
    head(field, body.size());
    bytes_.append(body);
  }
  void head(std::uint32_t field, std::size_t size) {
    char at[2 * kMaxVarint];
    bytes_.append(at, put_varint(put_tag(at, field, WireType::kBytes), size));
  }
  void append(std::string_view bytes) { bytes_.append(bytes); }
  void reserve(std::size_t size) { bytes_.reserve(size); }
  std::size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }
  std::string_view view() const { return bytes_; }

 private:
  std::string bytes_;
};

void put_status(Out& out, const core::Status& status) {
  out.number(2, static_cast<std::uint64_t>(status.code()));
  // protobuf allows only UTF-8 in a text; one that is not would end the client's stream.
  out.text(3, program::shown_lines(status.message()));
}

// Makes a status from its two fields; codes that gRPC does not have become kUnknown.
core::Status status_of(std::uint64_t code, std::string_view text) {
  if (code == 0) return {};
  const bool known = code <= static_cast<std::uint64_t>(core::Code::kDataLoss);
  return {known ? static_cast<core::Code>(code) : core::Code::kUnknown, std::string(text)};
}

bool read_list(std::string_view bytes, std::vector<std::uint64_t>& values) {
  for (Cursor list(bytes); !list.done();) {
    std::uint64_t value = 0;
    if (!list.varint(value)) return false;
    values.push_back(value);
  }
  return true;
}

// One submessage: its numbers and byte fields by field number, and one list of numbers, packed or
// not. All other fields are skipped.
struct Entry {
  static constexpr std::uint32_t kFields = 8;
  std::uint64_t number[kFields] = {};
  std::string_view bytes[kFields];
  std::vector<std::uint64_t> list;

  // Calls message(field, body) for each field from kFields on that has bytes; false ends.
  template <class OnMessage>
  bool read(std::string_view body, std::uint32_t list_field, OnMessage message) {
    for (Cursor cursor(body); !cursor.done();) {
      std::uint32_t field = 0;
      WireType type{};
      std::string_view part;
      if (!cursor.tag(field, type)) return false;
      if (field == list_field && type == WireType::kVarint) {
        if (!cursor.varint(list.emplace_back())) return false;
      } else if (field == list_field && type == WireType::kBytes) {
        if (!cursor.bytes(part) || !read_list(part, list)) return false;
      } else if (field >= kFields && type == WireType::kBytes) {
        if (!cursor.bytes(part) || !message(field, part)) return false;
      } else if (field < kFields && type == WireType::kVarint) {
        if (!cursor.varint(number[field])) return false;
      } else if (field < kFields && type == WireType::kBytes) {
        if (!cursor.bytes(bytes[field])) return false;
      } else if (!cursor.skip(type)) {
        return false;
      }
    }
    return true;
  }
  bool read(std::string_view body, std::uint32_t list_field = 0) {
    return read(body, list_field, [](std::uint32_t, std::string_view) { return true; });
  }
};

bool read_description(std::string_view body, FetchedValue::Description& description) {
  Entry entry;
  if (!entry.read(body, 2) || entry.list.size() > core::kMaxRank) return false;
  description.device = entry.bytes[1];
  for (std::uint64_t stride : entry.list) description.strides.push_back(unzigzag(stride));
  description.requires_grad = entry.number[3] != 0;
  return true;
}

std::string encode_description(const FetchedValue::Description& description) {
  Out body;
  std::vector<std::uint64_t> strides;
  for (std::int64_t stride : description.strides) strides.push_back(zigzag(stride));
  body.text(1, description.device);
  body.packed(2, strides);
  body.number(3, description.requires_grad);
  return body.take();
}

bool read_fetched(std::string_view body, FetchedValue& value) {
  Entry entry;
  std::string description;  // the occurrences of field 8, which protobuf merges
  bool described = false;
  const auto on_message = [&](std::uint32_t field, std::string_view part) {
    if (field != 8) return true;
    described = true;
    description += part;
    return true;
  };
  if (!entry.read(body, 6, on_message)) return false;
  value.seq = entry.number[1];
  value.status = status_of(entry.number[2], entry.bytes[3]);
  value.root = entry.number[4];
  if (!value.status.ok()) return true;
  const auto dtype = core::dtype_from_number(entry.number[5]);
  if (!dtype || entry.list.size() > core::kMaxRank) return false;
  value.dtype = *dtype;
  for (std::uint64_t size : entry.list) value.shape.push_back(static_cast<std::int64_t>(size));
  if (described) {
    return entry.bytes[7].empty() && read_description(description, value.description.emplace());
  }
  const core::Result<std::int64_t> elements = core::checked_numel(value.shape.span());
  const std::size_t unit = core::size_of(*dtype);
  if (!elements.ok() || entry.bytes[7].size() % unit != 0 ||
      entry.bytes[7].size() / unit != static_cast<std::uint64_t>(*elements)) {
    return false;
  }
  value.data = entry.bytes[7];
  return true;
}

}  // namespace

std::string encode_progress(const Progress& progress) {
  Out out;
  std::size_t size = 64;
  for (const FetchedValue& value : progress.fetched) size += value.data.size() + 160;
  out.reserve(size);
  out.number(1, progress.completed_upto);
  out.number(2, progress.received_upto);
  out.number(3, progress.credit_upto);
  out.number(4, progress.credit_bytes);
  for (const FetchedValue& value : progress.fetched) {
    Out head;
    head.number(1, value.seq);
    put_status(head, value.status);
    head.number(4, value.root);
    if (value.status.ok()) {
      head.number(5, static_cast<std::uint64_t>(value.dtype));
      head.packed(6, value.shape);
      if (value.description) {
        head.message(8, encode_description(*value.description));
      } else if (!value.data.empty()) {
        head.head(7, value.data.size());
      }
    }
    const std::size_t data = value.status.ok() ? value.data.size() : 0;
    out.head(5, head.size() + data);
    out.append(head.view());
    if (data != 0) out.append(value.data);
  }
  for (const ErrorEvent& error : progress.errors) {
    Out body;
    body.number(1, error.root);
    put_status(body, error.status);
    out.message(6, body.view());
  }
  for (const RaisedEvent& raised : progress.raised) {
    Out body;
    body.number(1, raised.seq);
    body.number(2, raised.root);
    body.packed(3, raised.rebinds);
    out.message(7, body.view());
  }
  out.number(8, progress.number);
  out.number(9, progress.snapshot_upto);
  for (const LostRankEvent& lost : progress.lost_ranks) {
    Out body;
    body.number(1, lost.group);
    body.number(2, lost.rank);
    body.text(3, program::shown_lines(lost.why));
    out.message(10, body.view());
  }
  return out.take();
}

core::Status decode_progress(std::string_view bytes, Progress& progress) {
  progress = {};
  const auto broken = [] {
    return core::invalid("progress: a message of the server is malformed");
  };
  for (Cursor cursor(bytes); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return broken();
    std::uint64_t number = 0;
    std::string_view body;
    if ((field <= 4 || field == 8 || field == 9) && type == WireType::kVarint) {
      if (!cursor.varint(number)) return broken();
      switch (field) {
        case 1:
          progress.completed_upto = number;
          break;
        case 2:
          progress.received_upto = number;
          break;
        case 3:
          progress.credit_upto = number;
          break;
        case 4:
          progress.credit_bytes = number;
          break;
        case 8:
          progress.number = number;
          break;
        default:
          progress.snapshot_upto = number;
      }
    } else if (((field >= 5 && field <= 7) || field == 10) && type == WireType::kBytes) {
      if (!cursor.bytes(body)) return broken();
      if (field == 5) {
        if (!read_fetched(body, progress.fetched.emplace_back())) return broken();
        continue;
      }
      Entry entry;
      if (!entry.read(body, field == 7 ? 3 : 0)) return broken();
      if (field == 10) {
        progress.lost_ranks.push_back({entry.number[1], static_cast<std::uint32_t>(entry.number[2]),
                                       std::string(entry.bytes[3])});
      } else if (field == 6) {
        progress.errors.push_back({entry.number[1], status_of(entry.number[2], entry.bytes[3])});
      } else {
        RaisedEvent& raised = progress.raised.emplace_back();
        raised.seq = entry.number[1];
        raised.root = entry.number[2];
        raised.rebinds = std::move(entry.list);
      }
    } else if (!cursor.skip(type)) {
      return broken();
    }
  }
  return {};
}

}  // namespace teletensor::wire
