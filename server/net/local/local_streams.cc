#include "server/net/local/local_streams.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "server/net/local/local_stream.h"

namespace teletensor::server {

using core::Result;

namespace {

// There are more threads than cores, so that a client need not wait until the frames of other
// clients are decoded.
constexpr unsigned kMinThreads = 4, kMaxThreads = 16;

}  // namespace

Result<std::unique_ptr<LocalStreams>> LocalStreams::start(Leases& leases) {
  auto loop = SocketLoop::start(
      std::clamp(2 * std::thread::hardware_concurrency(), kMinThreads, kMaxThreads));
  if (!loop.ok()) return loop.status();
  return std::unique_ptr<LocalStreams>(new LocalStreams(leases, std::move(*loop)));
}

void LocalStreams::run(core::UniqueFd socket, LeaseRef lease, std::uint64_t attach,
                       StreamShares::Place place) {
  const int number_of_socket = socket.get();
  const auto stream =
      std::make_shared<LocalStream>(*this, std::move(socket), attach, std::move(place));
  const auto number = loop_->add(number_of_socket, stream);
  if (!number.ok()) return;  // The client sees that the connection was closed.
  stream->start(*number, std::move(lease));
}

}  // namespace teletensor::server
