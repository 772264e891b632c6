// The headers of bulk chunks (UploadChunk, DownloadChunk): the bytes before the data. They are
// encoded and decoded separately, so that the data itself is passed on without a copy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"

namespace teletensor::wire {

// Maximum length of the header of either chunk.
inline constexpr std::size_t kMaxChunkHeader = 192;

struct UploadHeader {
  std::uint64_t bytes = 0;  // size of the whole upload; only in the first chunk
  core::Device device;      // only in the first chunk
  std::uint64_t offset = 0;
};

struct DownloadHeader {
  // Size of the whole download; like dtype and shape, only in the first chunk.
  std::uint64_t bytes = 0;
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  std::uint64_t offset = 0;
  bool first = true;  // if set, dtype and shape are written
};

// Encodes a header that is followed by `data_size` bytes of data.
std::string encode_upload_header(const UploadHeader& header, std::size_t data_size);
std::string encode_download_header(const DownloadHeader& header, std::size_t data_size);

// The position of the data in a chunk of `total` bytes that begins with `prefix` (the whole chunk,
// or at least kMaxChunkHeader bytes). An error for a prefix says only that the whole chunk is
// needed: as protobuf permits, fields may follow the data.
struct ChunkData {
  std::size_t data_at = 0, data_size = 0;
};
core::Result<ChunkData> decode_upload_header(std::string_view prefix, std::size_t total,
                                             UploadHeader& header);
core::Result<ChunkData> decode_download_header(std::string_view prefix, std::size_t total,
                                               DownloadHeader& header);

// UploadReply.
std::string encode_upload_reply(std::uint64_t upload);
core::Status decode_upload_reply(std::string_view bytes, std::uint64_t& upload);

// StagedRequest and StagedReply.
struct StagedAnswer {
  std::uint64_t received = 0, upload = 0;
};
std::string encode_staged_request(std::uint64_t key, bool give_up);
core::Status decode_staged_reply(std::string_view bytes, StagedAnswer& answer);

// DownloadRequest.
struct DownloadAsked {
  std::uint64_t seq = 0, offset = 0;
};
std::string encode_download_request(const DownloadAsked& asked);
core::Status decode_download_request(std::string_view bytes, DownloadAsked& asked);

}  // namespace teletensor::wire
