// Converts between the messages of session.proto and the types of the engine. No other file depends
// on both.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "proto/wire/bulk.h"
#include "proto/wire/progress.h"
#include "server/base/limits.h"
#include "server/session/lease/lease.h"
#include "teletensor/v1/session.pb.h"

namespace teletensor::server {

// Properties of this run of the daemon.
struct ServerFacts {
  std::string version;
  std::uint64_t epoch = 0;
  Clock::time_point started = Clock::now();
  bool shares = false;  // Whether a ShareServer listens beside the daemon's own socket.
  std::chrono::milliseconds restart{0};  // Value of HelloReply.restart_ms.
  std::chrono::milliseconds every{0};    // Value of HelloReply.snapshot_ms.
};

// A validated HelloRequest. `unsupported` lists the operators that the daemon does not have.
struct Hello {
  ClientInfo client;
  std::vector<std::string> unsupported;
};
core::Result<Hello> read_hello(const v1::HelloRequest& request, const ops::Catalog& catalog,
                               const Limits& limits, const ServerFacts& facts);
// With `shares`, the reply has a ticket for access to the session's memory.
void fill_hello_reply(const Lease& lease, const std::vector<std::string>& unsupported,
                      engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                      bool shares, v1::HelloReply& reply);

// `declarations`: of the ops, not their names and revisions alone.
void fill_describe_reply(engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                         std::size_t sessions, bool declarations, v1::DescribeReply& reply);
// Returns the declaration of each op: an Op as one line of JSON.
std::vector<std::string> declarations(const ops::Catalog& catalog);
// Returns an error unless there are at most CommandHistory::kMaxSites entries with short, printable
// texts.
core::Result<CommandHistory::Sites> read_sites(const v1::SitesReport& report);

void fill_publication(const engine::Publication& from, v1::Publication& to);
void fill_profile_reply(const program::Timeline& timeline, const ops::Catalog& catalog,
                        v1::ProfileReply& reply);

// Converts a fetched value for a Progress message. A value that is too large for one becomes an
// error.
wire::FetchedValue to_wire(engine::Fetched fetched, const Limits& limits);

}  // namespace teletensor::server
