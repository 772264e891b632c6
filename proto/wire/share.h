// What travels on the socket beside the daemon's UNIX socket, between processes of one machine:
// records of fixed size in its own byte order; docs/wire.md ("Shared memory") tells the story.
#pragma once

#include <cstdint>
#include <type_traits>

namespace teletensor::wire {

inline constexpr std::uint32_t kShareMagic = 0x31535454;  // "TTS1"
inline constexpr char kShareSuffix[] = ".share";          // of the socket's path
inline constexpr int kTicketDigits = 32;
// At most so many bytes in one kShareUpload: others wait meanwhile.
inline constexpr std::uint64_t kMaxShareUpload = 8ull << 20;

enum ShareKind : std::uint32_t {
  // First on a connection: the value of bulk fetch `number`, to look at. The reply comes with a
  // descriptor; the value stays as it is until the connection ends.
  kShareTake = 1,
  // First on a connection: new memory of `bytes`, to write to until the connection ends.
  kShareOpen = 2,
  // After kShareOpen and kShareWay: bytes [from, from + bytes) of the memory go to `offset` of
  // upload `number`;
  // 0: of a new one, of `total` bytes for `device`. The reply comes when they have been copied.
  kShareUpload = 3,
  // As kShareOpen, for uploads of what lies elsewhere, one after the other: the daemon ends it when
  // none has come for a second at most.
  kShareWay = 4,
  // First on a connection: the value of bulk fetch `number`, which lies on a GPU, copied to memory
  // of that GPU. The reply comes with a descriptor for cuMemImportFromShareableHandle; number and
  // offset are the GPU's UUID.
  kShareTakeGpu = 5,
};

struct ShareRequest {
  std::uint32_t magic = kShareMagic;
  std::uint32_t kind = 0;
  std::uint64_t session = 0;  // HelloReply.session_id
  char ticket[kTicketDigits] = {};
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t from = 0;
  std::uint64_t total = 0;
  std::uint64_t device = 0;  // kind * 256 + index
};

struct ShareReply {
  std::uint32_t magic = kShareMagic;
  std::uint32_t code = 0;    // of google.rpc.Code
  std::uint64_t number = 0;  // of the upload
  std::uint64_t offset = 0;  // in the file behind the descriptor
  std::uint64_t bytes = 0;
};

static_assert(std::is_trivially_copyable_v<ShareRequest> && sizeof(ShareRequest) == 96);
static_assert(std::is_trivially_copyable_v<ShareReply> && sizeof(ShareReply) == 32);

}  // namespace teletensor::wire
