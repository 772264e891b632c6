#include "clients/session/stream/channel.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "clients/session/stream/local_call.h"
#include "clients/session/stream/socket_owner.h"
#include "proto/wire/bulk.h"

namespace teletensor::client {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr double kStagedTimeout = 10;  // Maximum time for the call Staged, in seconds.

constexpr std::int64_t kSlice = 100'000;  // Microseconds between two calls of `stop`.

Status stopped(Call& call) {
  call.api().cancel(call.get());
  return Status(Code::kCancelled, "interrupted");
}

// Waits until the write is complete. OVER is no error here; the end of the call has the reason.
Status written(Call& call, const Stop& stop, bool& over) {
  while (true) {
    const int done = call.api().written(call.get(), kSlice);
    over = done == TT_WIRE_OVER;
    if (done != TT_WIRE_TIMEOUT) return {};
    if (stop && stop()) return stopped(call);
  }
}

Status send(Call& call, const tt_wire_part* parts, std::size_t count, const Stop& stop,
            bool& over) {
  call.api().write(call.get(), parts, count);
  return written(call, stop, over);
}

// Waits for the next message. If there is none, sets `over` and returns the final status of the
// call, which is OK for a normal end.
Status receive(Call& call, const Stop& stop, tt_wire_message& message, bool& over,
               std::string* word) {
  while (true) {
    const int done = call.api().read(call.get(), kSlice, &message);
    over = done == TT_WIRE_OVER;
    if (over) return call.status(word);
    if (done == TT_WIRE_DONE) return {};
    if (stop && stop()) return stopped(call);
  }
}

std::string joined(const tt_wire_message& message) {
  std::string bytes;
  for (std::size_t i = 0; i < message.count; ++i) {
    bytes.append(static_cast<const char*>(message.parts[i].data), message.parts[i].size);
  }
  return bytes;
}

// Reads the reply and the end of a call whose only message is the reply.
Result<std::string> reply(Call& call, const Stop& stop, std::string* word) {
  tt_wire_message message{};
  bool over = false;
  TT_RETURN_IF_ERROR(receive(call, stop, message, over, word));
  if (over) return core::internal("the daemon sent no reply");
  std::string bytes = joined(message);
  call.api().forget(&message);
  TT_RETURN_IF_ERROR(receive(call, stop, message, over, word));
  if (!over) {
    call.api().forget(&message);
    return core::internal("the daemon sent two replies");
  }
  return bytes;
}

}  // namespace

Result<const tt_wire_api*> load_wire(const std::string& path) {
  int flags = RTLD_NOW | RTLD_LOCAL;
#ifdef RTLD_DEEPBIND
  flags |= RTLD_DEEPBIND;
#endif
  void* library = dlopen(path.c_str(), flags);
  if (library == nullptr) return Status(Code::kUnavailable, dlerror());
  void* symbol = dlsym(library, "teletensor_wire");
  if (symbol == nullptr) return Status(Code::kUnavailable, path + " has no teletensor_wire");
  const tt_wire_api* api = reinterpret_cast<const tt_wire_api* (*)()>(symbol)();
  if (api->version != TT_WIRE_VERSION) {
    return Status(Code::kUnavailable, path + " is of another version");
  }
  return api;
}

Status Call::status(std::string* word) const {
  const char* text = nullptr;
  const int code = api_->status(call_, &text);
  if (word != nullptr) *word = api_->trailer(call_, "teletensor-reason");
  return code == 0 ? Status() : Status(static_cast<Code>(code), text);
}

Channel::Channel(const tt_wire_api& api, const std::string& target, const tt_wire_tls* tls)
    : api_(api), target_(target), channel_(api.connect(target.c_str(), tls), api.disconnect) {}

std::unique_ptr<Call> Channel::start(const std::string& method, bool wait, std::int64_t timeout,
                                     const Metadata& more) {
  std::vector<const char*> metadata;
  for (const Metadata* each : {&std::as_const(metadata_), &more}) {
    for (const auto& [key, value] : *each) {
      metadata.push_back(key.c_str());
      metadata.push_back(value.c_str());
    }
  }
  metadata.push_back(nullptr);
  return std::make_unique<Call>(
      api_, api_.start(channel_.get(), method.c_str(), metadata.data(), wait ? 1 : 0, timeout),
      channel_);
}

std::unique_ptr<Call> Channel::run(std::uint64_t attach, const ShareAddress* local) {
  if (local != nullptr) {
    if (auto call = run_local(*local, attach)) return call;
  }
  return start("/teletensor.v1.Compute/Run", false, -1,
               {{"teletensor-attach", std::to_string(attach)}});
}

Result<std::string> Channel::unary(const std::string& method, std::string_view request,
                                   double timeout, bool wait, const Stop& stop, std::string* word) {
  // A stream follows a unary call, Hello or Attach, so that no token is sent before this check.
  TT_RETURN_IF_ERROR(check_socket_owner(target_));
  const auto call = start(method, wait, static_cast<std::int64_t>(timeout * 1e6));
  const tt_wire_part part{request.data(), request.size(), nullptr, nullptr};
  bool over = false;
  TT_RETURN_IF_ERROR(send(*call, &part, 1, stop, over));
  if (!over) TT_RETURN_IF_ERROR(send(*call, nullptr, 0, stop, over));
  return reply(*call, stop, word);
}

Result<std::uint64_t> Channel::upload(core::Device device, std::string_view bytes,
                                      std::size_t chunk_bytes, std::uint64_t key, bool again,
                                      const Stop& stop, std::string* word, Moved* moved) {
  wire::UploadHeader header{bytes.size(), device, 0};
  if (again) {
    const Result<std::string> reply =
        unary("/teletensor.v1.Compute/Staged", wire::encode_staged_request(key, false),
              kStagedTimeout, false, stop, word);
    wire::StagedAnswer staged;
    if (reply.ok()) {
      TT_RETURN_IF_ERROR(wire::decode_staged_reply(*reply, staged));
      // UNIMPLEMENTED comes from an older daemon: the upload starts from the beginning.
    } else if (reply.status().code() != Code::kUnimplemented) {
      return reply.status();
    }
    if (staged.upload != 0) return staged.upload;
    header.offset = std::min<std::uint64_t>(staged.received, bytes.size());
  }
  const auto call = start("/teletensor.v1.Compute/Upload", false, -1,
                          {{"teletensor-upload", std::to_string(key)}});
  const std::size_t most = chunk_bytes > 512 ? chunk_bytes - 256 : 256;
  bool over = false;
  do {
    const std::string_view chunk = bytes.substr(header.offset, most);
    const std::string head = wire::encode_upload_header(header, chunk.size());
    const tt_wire_part parts[] = {{head.data(), head.size(), nullptr, nullptr},
                                  {chunk.data(), chunk.size(), nullptr, nullptr}};
    TT_RETURN_IF_ERROR(send(*call, parts, 2, stop, over));
    header = {0, {}, header.offset + chunk.size()};
    if (moved != nullptr) moved->store(header.offset, std::memory_order_relaxed);
  } while (!over && header.offset < bytes.size());
  if (!over) TT_RETURN_IF_ERROR(send(*call, nullptr, 0, stop, over));
  const Result<std::string> answer = reply(*call, stop, word);
  if (!answer.ok()) return answer.status();
  std::uint64_t upload = 0;
  return wire::decode_upload_reply(*answer, upload).ok()
             ? Result<std::uint64_t>(upload)
             : core::internal("the daemon sent no upload reply");
}

Status Channel::download(std::uint64_t seq, char* out, std::size_t size, std::size_t& at,
                         const Stop& stop, std::string* word, Moved* moved) {
  const auto call = start("/teletensor.v1.Compute/Download", false, -1);
  const std::string request = wire::encode_download_request({seq, at});
  const tt_wire_part part{request.data(), request.size(), nullptr, nullptr};
  bool over = false;
  TT_RETURN_IF_ERROR(send(*call, &part, 1, stop, over));
  if (!over) TT_RETURN_IF_ERROR(send(*call, nullptr, 0, stop, over));
  while (true) {
    tt_wire_message message{};
    TT_RETURN_IF_ERROR(receive(*call, stop, message, over, word));
    if (over) break;
    std::string prefix;
    std::size_t total = 0;
    for (std::size_t i = 0; i < message.count; ++i) {
      const std::string_view slice(static_cast<const char*>(message.parts[i].data),
                                   message.parts[i].size);
      total += slice.size();
      if (prefix.size() < wire::kMaxChunkHeader) {
        prefix.append(slice.substr(0, wire::kMaxChunkHeader - prefix.size()));
      }
    }
    wire::DownloadHeader header;
    Result<wire::ChunkData> data = wire::decode_download_header(prefix, total, header);
    if (!data.ok() && prefix.size() < total) {  // The data need not be the last field.
      prefix.clear();
      for (std::size_t i = 0; i < message.count; ++i) {
        prefix.append(static_cast<const char*>(message.parts[i].data), message.parts[i].size);
      }
      data = wire::decode_download_header(prefix, total, header);
    }
    Status status = data.status();
    if (status.ok() && (header.offset != at || data->data_size > size - at)) {
      status = core::internal("download: the daemon sent a chunk at the wrong offset");
    }
    std::size_t skip = status.ok() ? data->data_at : 0, left = status.ok() ? data->data_size : 0;
    for (std::size_t i = 0; status.ok() && i < message.count; ++i) {
      const tt_wire_part& slice = message.parts[i];
      const std::size_t from = std::min(skip, slice.size);
      const std::size_t taken = std::min(left, slice.size - from);
      skip -= from;
      left -= taken;
      std::memcpy(out + at, static_cast<const char*>(slice.data) + from, taken);
      at += taken;
    }
    if (moved != nullptr) moved->store(at, std::memory_order_relaxed);
    call->api().forget(&message);
    TT_RETURN_IF_ERROR(status);
  }
  if (at == size) return {};
  return Status(Code::kUnavailable, "a download ended after " + std::to_string(at) + " of " +
                                        std::to_string(size) + " bytes");
}

}  // namespace teletensor::client
