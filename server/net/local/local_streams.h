// LocalStreams runs the Run streams of clients on this machine that send frames over a plain UNIX
// socket instead of gRPC (proto/wire/share.h, kShareRun). ShareServer accepts the connections and
// checks whose they are. A few threads wait for what clients send. The thread that has a message
// for a client, usually an execution lane, sends it itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

class LocalStream;

class LocalStreams {
 public:
  // `leases` must outlive this object, and its sessions must be destroyed before it stops.
  static core::Result<std::unique_ptr<LocalStreams>> start(Leases& leases);
  ~LocalStreams();

  // Makes a connection whose client was told that its request is granted the Run stream of attach
  // `attach` of `lease`. Owns `socket`. Like a Run call of gRPC that was accepted, the stream ends
  // with a status if the lease does not take it.
  void run(int socket, LeaseRef lease, std::uint64_t attach, StreamShares::Place place);

 private:
  friend class LocalStream;

  explicit LocalStreams(Leases& leases) : leases_(leases) {}
  // Waits for events and passes them to the streams.
  void serve();
  std::shared_ptr<LocalStream> find(std::uint64_t number) const;
  void remove(std::uint64_t number);

  Leases& leases_;
  int epoll_ = -1, stop_ = -1;
  mutable core::Mutex mutex_;
  std::uint64_t last_ TT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<LocalStream>> streams_ TT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace teletensor::server
