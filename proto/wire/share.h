// Messages on the socket for shared memory, which is next to the daemon's UNIX socket: records of
// fixed size in the byte order of the machine, between processes of one machine. docs/wire.md
// ("Shared memory") explains the protocol.
#pragma once

#include <cstdint>
#include <type_traits>

namespace teletensor::wire {

inline constexpr std::uint32_t kShareMagic = 0x31535454;  // "TTS1"
inline constexpr char kShareSuffix[] = ".share";          // appended to the socket's path
inline constexpr int kTicketDigits = 32;
// Maximum number of bytes in one kShareUpload, because other connections wait meanwhile.
inline constexpr std::uint64_t kMaxShareUpload = 8ull << 20;

enum ShareKind : std::uint32_t {
  // Must be the first message of a connection: requests the value of bulk fetch `number` for
  // reading. The reply comes with a file descriptor; the value does not change until the connection
  // ends.
  kShareTake = 1,
  // Must be the first message of a connection: requests new memory of `bytes` bytes, which the
  // client may write until the connection ends.
  kShareOpen = 2,
  // After kShareOpen or kShareWay: copies the bytes [from, from + bytes) of the memory to `offset`
  // of upload `number`. Number 0 starts a new upload of `total` bytes for `device`. The reply is
  // sent when the bytes have been copied.
  kShareUpload = 3,
  // Like kShareOpen, but the memory is a staging buffer: uploads of data elsewhere in the client's
  // memory pass through it, one after another. The daemon closes the connection after at most a
  // second without an upload.
  kShareWay = 4,
  // Must be the first message of a connection: requests a copy, in memory of the same GPU, of the
  // value of bulk fetch `number`, which is on a GPU. The reply comes with a descriptor for
  // cuMemImportFromShareableHandle; its number and offset are the UUID of the GPU.
  kShareTakeGpu = 5,
  // Must be the first message of a connection: after a reply with code 0 the connection is the Run
  // stream of attach `number`. The client then sends frames, and the daemon sends progress messages
  // and one LocalEnd, each after a LocalHeader.
  kShareRun = 6,
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
  std::uint32_t code = 0;    // a google.rpc.Code
  std::uint64_t number = 0;  // of the upload
  std::uint64_t offset = 0;  // in the file of the descriptor
  std::uint64_t bytes = 0;
};

// Precedes each message of a local stream. `size` is the number of bytes that follow.
struct LocalHeader {
  static constexpr std::uint32_t kMessage = 0, kEnd = 1;
  std::uint32_t kind = kMessage;
  std::uint32_t size = 0;
};

// The contents of the daemon's last message, of kind kEnd, followed by the reason in one word and
// then the text. `word` is the number of bytes of the reason.
struct LocalEnd {
  std::uint32_t code = 0;  // a google.rpc.Code
  std::uint32_t word = 0;
};

static_assert(std::is_trivially_copyable_v<ShareRequest> && sizeof(ShareRequest) == 96);
static_assert(std::is_trivially_copyable_v<ShareReply> && sizeof(ShareReply) == 32);

}  // namespace teletensor::wire
