// The parameters of a client from Hello and Attach, and what Attach returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "proto/wire/protocol.h"
#include "server/session/outbox.h"

namespace teletensor::server {

// The client's parameters from Hello.
struct ClientInfo {
  std::string name;    // Name of the session.
  bool named = false;  // Whether the client chose the name.
  bool takes_over = false;
  std::string version;
  std::string peer;
  // Description such as "ann on host7, pid 12, train.py". Empty if unknown.
  std::string description;
  std::string instance;  // Random id of the client's process.
  std::string user;
  bool thin = false;  // Whether commands that the daemon refuses fail late (HelloRequest.thin).
  std::uint32_t protocol = wire::kProtocol;  // Number that Hello has chosen.
  bool by_socket = false;  // Whether the client connected through a UNIX socket without a token.
  std::uint64_t id = 0;    // Session number for operators; set by Leases.
  std::uint64_t attach_counter = 0;
  // Memory quota that the client asked for, and the quota that it received.
  std::uint64_t memory_asked = 0, memory_quota = 0;
  program::Amounts limits = program::kUsualLimits;
  std::chrono::seconds lease{0};
  std::vector<program::OpId> ops;
  std::vector<std::string> op_names;

  // Returns true if the session outlives its stream.
  bool survives() const { return lease.count() > 0; }
};

// The progress of a session, for a client that reconnects.
struct Attached {
  std::uint64_t received_upto = 0;
  std::uint64_t completed_upto = 0;
  // The session is in an earlier state than the client, which sends its frames again.
  bool replay = false;
  Outbox::Credits credits;
};

// The client's parameters from Attach.
struct AttachCall {
  std::string instance;
  std::uint64_t attach = 0;         // Attach counter; above all earlier ones.
  std::uint64_t progress_upto = 0;  // Number of the last message that the client has read.
  std::uint64_t completed = 0;      // Number up to which the client knows that commands have run.
  std::uint64_t uploads = 0;        // Number of the last upload that the client has bound.
  // First command from which the client can send all frames again. 0 if it cannot.
  std::uint64_t replay_from = 0;
};

}  // namespace teletensor::server
