#include "proto/wire/bulk.h"

#include "proto/wire/fields.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

char* put_data_head(char* at, std::uint32_t field, std::size_t size) {
  return put_varint(put_tag(at, field, WireType::kBytes), size);
}

// Reads the fields other than `data_field` with `read`, and the position of the data. If the data
// is the last field, as every protobuf library writes it, its end may be outside of `prefix`.
template <class Read>
core::Result<ChunkData> decode(std::string_view prefix, std::size_t total, std::uint32_t data_field,
                               Read read) {
  ChunkData data{total, 0};
  for (Cursor cursor(prefix); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return core::invalid("chunk: a malformed tag");
    if (field != data_field) {
      if (!read(field, type, cursor)) {
        return core::invalid("chunk: field " + std::to_string(field) + " is unknown or broken");
      }
      continue;
    }
    std::uint64_t size = 0;
    if (type != WireType::kBytes || !cursor.varint(size))
      return core::invalid("chunk: broken data");
    const std::size_t at = prefix.size() - cursor.left();
    if (size > total - at) {
      return core::invalid("chunk: its data has another length than declared");
    }
    data = {at, static_cast<std::size_t>(size)};
    if (size == total - at) return data;
    if (size > cursor.left()) return core::invalid("chunk: its data is not the last field");
    cursor = Cursor(prefix.substr(at + size));
  }
  if (prefix.size() != total) return core::invalid("chunk: the header is too long");
  return data;
}

// Reads fields 1 and 2, both varints; a missing field leaves its value unchanged, and other fields
// are skipped.
core::Status decode_two(std::string_view bytes, std::uint64_t& first, std::uint64_t& second,
                        std::string_view broken) {
  for (Cursor cursor(bytes); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return core::invalid(std::string(broken));
    const bool known = (field == 1 || field == 2) && type == WireType::kVarint;
    const bool whole = known ? cursor.varint(field == 1 ? first : second) : cursor.skip(type);
    if (!whole) return core::invalid(std::string(broken));
  }
  return {};
}

}  // namespace

std::string encode_upload_header(const UploadHeader& header, std::size_t data_size) {
  char out[kMaxChunkHeader];
  char* at = put_field(out, 1, header.bytes);
  at = put_field(at, 2, field::code_of(header.device));
  at = put_field(at, 3, header.offset);
  if (data_size != 0) at = put_data_head(at, 4, data_size);
  return {out, at};
}

std::string encode_download_header(const DownloadHeader& header, std::size_t data_size) {
  char out[kMaxChunkHeader];
  char* at = out;
  if (header.first) {
    at = put_field(at, 1, header.bytes);
    at = put_field(at, 2, static_cast<std::uint64_t>(header.dtype));
    if (!header.shape.empty()) {
      at = put_tag(at, 3, WireType::kBytes);
      char* const list = at++;
      for (std::int64_t size : header.shape) at = put_varint(at, static_cast<std::uint64_t>(size));
      at = close_length(list, at);
    }
  }
  at = put_field(at, 4, header.offset);
  if (data_size != 0) at = put_data_head(at, 5, data_size);
  return {out, at};
}

core::Result<ChunkData> decode_upload_header(std::string_view prefix, std::size_t total,
                                             UploadHeader& header) {
  header = {};
  std::uint64_t device = 0;
  const auto read = [&](std::uint32_t field, WireType type, Cursor& cursor) {
    if (field > 3 || type != WireType::kVarint) return false;
    return cursor.varint(field == 1 ? header.bytes : field == 2 ? device : header.offset);
  };
  core::Result<ChunkData> data = decode(prefix, total, 4, read);
  if (device > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + 255) {
    return core::invalid("chunk: unknown device " + std::to_string(device));
  }
  header.device = {static_cast<core::DeviceKind>(device / 256),
                   static_cast<std::uint8_t>(device % 256)};
  return data;
}

core::Result<ChunkData> decode_download_header(std::string_view prefix, std::size_t total,
                                               DownloadHeader& header) {
  header = {};
  header.first = false;
  std::uint64_t number = 0;  // of the dtype
  const auto add = [&](Cursor& list) {
    std::uint64_t size = 0;
    if (!list.varint(size) || header.shape.size() == core::kMaxRank) return false;
    header.shape.push_back(static_cast<std::int64_t>(size));
    return true;
  };
  const auto read = [&](std::uint32_t field, WireType type, Cursor& cursor) {
    if (field > 4) return cursor.skip(type);  // of a newer daemon
    if (field == 3 && type == WireType::kBytes) {
      std::string_view sizes;
      if (!cursor.bytes(sizes)) return false;
      for (Cursor list(sizes); !list.done();) {
        if (!add(list)) return false;
      }
      return true;
    }
    if (type != WireType::kVarint) return false;
    if (field == 3) return add(cursor);
    return cursor.varint(field == 1 ? header.bytes : field == 2 ? number : header.offset);
  };
  core::Result<ChunkData> data = decode(prefix, total, 5, read);
  if (!data.ok()) return data;
  if (number != 0) {
    const auto dtype = core::dtype_from_number(number);
    if (!dtype) return core::invalid("chunk: unknown dtype " + std::to_string(number));
    header.dtype = *dtype;
    header.first = true;
  }
  TT_RETURN_IF_ERROR(core::checked_numel(header.shape.span()).status());
  return data;
}

std::string encode_upload_reply(std::uint64_t upload) {
  char out[kMaxVarint + 1];
  return {out, put_field(out, 1, upload)};
}

core::Status decode_upload_reply(std::string_view bytes, std::uint64_t& upload) {
  std::uint64_t unused = 0;
  const std::string_view broken = "upload: the reply cannot be decoded";
  upload = 0;
  TT_RETURN_IF_ERROR(decode_two(bytes, upload, unused, broken));
  return upload != 0 ? core::Status() : core::invalid(std::string(broken));
}

std::string encode_staged_request(std::uint64_t key, bool give_up) {
  char out[2 * (kMaxVarint + 1)];
  return {out, put_field(put_field(out, 1, key), 2, give_up ? 1 : 0)};
}

core::Status decode_staged_reply(std::string_view bytes, StagedAnswer& answer) {
  answer = {};
  return decode_two(bytes, answer.received, answer.upload,
                    "upload: an answer about the received bytes cannot be decoded");
}

std::string encode_download_request(const DownloadAsked& asked) {
  char out[2 * (kMaxVarint + 1)];
  return {out, put_field(put_field(out, 1, asked.seq), 2, asked.offset)};
}

core::Status decode_download_request(std::string_view bytes, DownloadAsked& asked) {
  asked = {};
  return decode_two(bytes, asked.seq, asked.offset, "download: the request cannot be decoded");
}

}  // namespace teletensor::wire
