// LocalStreams runs the Run streams of clients on this machine that send frames over a plain UNIX
// socket instead of gRPC (proto/wire/share.h, kShareRun). ShareServer accepts the connections and
// checks whose they are. A few threads wait for what clients send. The thread that has a message
// for a client, usually an execution lane, sends it itself.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/os/unique_fd.h"
#include "engine/core/status.h"
#include "server/base/socket_loop.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

class LocalStream;

class LocalStreams {
 public:
  // `leases` must outlive this object, and its sessions must be destroyed before it stops.
  static core::Result<std::unique_ptr<LocalStreams>> start(Leases& leases);

  // Makes a connection whose client was told that its request is granted the Run stream of attach
  // `attach` of `lease`. Owns `socket`. Like a Run call of gRPC that was accepted, the stream ends
  // with a status if the lease does not take it.
  void run(core::UniqueFd socket, LeaseRef lease, std::uint64_t attach, StreamShares::Place place);

 private:
  friend class LocalStream;

  LocalStreams(Leases& leases, std::unique_ptr<SocketLoop> loop)
      : leases_(leases), loop_(std::move(loop)) {}

  Leases& leases_;
  const std::unique_ptr<SocketLoop> loop_;
};

}  // namespace teletensor::server
