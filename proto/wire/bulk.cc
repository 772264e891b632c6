#include "proto/wire/bulk.h"

#include "proto/wire/fields.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

char* put_data_head(char* at, std::uint32_t field, std::size_t size) {
  return put_varint(put_tag(at, field, WireType::kBytes), size);
}

// Reads the fields below `data_field` with `read`, and then the tag and length of the data, which
// must be the last field and extend exactly to `total`.
template <class Read>
core::Result<ChunkData> decode(std::string_view prefix, std::size_t total, std::uint32_t data_field,
                               Read read) {
  Cursor cursor(prefix);
  std::uint32_t last = 0;
  while (!cursor.done()) {
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type) || field <= last || field > data_field) {
      return core::invalid("chunk: a field is unknown or out of order");
    }
    last = field;
    if (field != data_field) {
      if (!read(field, type, cursor)) {
        return core::invalid("chunk: field " + std::to_string(field) + " is broken");
      }
      continue;
    }
    std::uint64_t size = 0;
    if (type != WireType::kBytes || !cursor.varint(size))
      return core::invalid("chunk: broken data");
    const std::size_t at = prefix.size() - cursor.left();
    if (size != total - at) {
      return core::invalid("chunk: its data has another length than declared");
    }
    return ChunkData{at, static_cast<std::size_t>(size)};
  }
  if (prefix.size() != total) return core::invalid("chunk: the header is too long");
  return ChunkData{total, 0};
}

// Reads fields 1 and 2, both varints; a missing field leaves its value unchanged.
core::Status decode_two(std::string_view bytes, std::uint64_t& first, std::uint64_t& second,
                        std::string_view broken) {
  for (Cursor cursor(bytes); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    std::uint64_t value = 0;
    if (!cursor.tag(field, type) || type != WireType::kVarint || field > 2 ||
        !cursor.varint(value)) {
      return core::invalid(std::string(broken));
    }
    (field == 1 ? first : second) = value;
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
  return decode(prefix, total, 4, [&](std::uint32_t field, WireType type, Cursor& cursor) {
    std::uint64_t value = 0;
    if (type != WireType::kVarint || !cursor.varint(value)) return false;
    if (field == 1) header.bytes = value;
    if (field == 3) header.offset = value;
    if (field == 2) {
      if (value > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + 255) return false;
      header.device = {static_cast<core::DeviceKind>(value / 256),
                       static_cast<std::uint8_t>(value % 256)};
    }
    return true;
  });
}

core::Result<ChunkData> decode_download_header(std::string_view prefix, std::size_t total,
                                               DownloadHeader& header) {
  header = {};
  header.first = false;
  return decode(prefix, total, 5, [&](std::uint32_t field, WireType type, Cursor& cursor) {
    if (field == 3) {
      std::string_view sizes;
      if (type != WireType::kBytes || !cursor.bytes(sizes)) return false;
      for (Cursor list(sizes); !list.done();) {
        std::uint64_t size = 0;
        if (!list.varint(size) || header.shape.size() == core::kMaxRank) return false;
        header.shape.push_back(static_cast<std::int64_t>(size));
      }
      return core::checked_numel(header.shape.span()).ok();
    }
    std::uint64_t value = 0;
    if (type != WireType::kVarint || !cursor.varint(value)) return false;
    if (field == 1) header.bytes = value;
    if (field == 4) header.offset = value;
    if (field == 2) {
      const auto dtype = core::dtype_from_number(value);
      if (!dtype) return false;
      header.dtype = *dtype;
      header.first = true;
    }
    return true;
  });
}

std::string encode_upload_reply(std::uint64_t upload) {
  char out[kMaxVarint + 1];
  return {out, put_field(out, 1, upload)};
}

core::Status decode_upload_reply(std::string_view bytes, std::uint64_t& upload) {
  Cursor cursor(bytes);
  std::uint32_t field = 0;
  WireType type{};
  if (!cursor.tag(field, type) || field != 1 || type != WireType::kVarint ||
      !cursor.varint(upload)) {
    return core::invalid("upload: the reply cannot be decoded");
  }
  return {};
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
