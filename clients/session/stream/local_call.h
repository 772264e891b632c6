// A Run call over a plain UNIX socket of the daemon on this machine (proto/wire/share.h,
// kShareRun). It implements the functions of clients/wire/wire.h that a Stream uses, without gRPC:
// a message takes one system call on each side, and no thread passes it on.
#pragma once

#include <cstdint>
#include <memory>

#include "clients/session/stream/channel.h"
#include "clients/session/stream/share.h"

namespace teletensor::client {

// Starts the stream of attach `attach`. Null if gRPC is to be used instead: the daemon accepts no
// local stream, or TELETENSOR_LOCAL_STREAM is 0 in the environment. If the daemon does not answer,
// the returned call has ended with UNAVAILABLE, as if the connection were lost.
std::unique_ptr<Call> run_local(const ShareAddress& address, std::uint64_t attach);

// The call on a connected socket, which it owns; -1 is a call whose connection is lost.
std::unique_ptr<Call> local_call(int socket);

}  // namespace teletensor::client
