// Where session.proto and the engine meet; nothing else knows both.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "proto/wire/bulk.h"
#include "proto/wire/progress.h"
#include "server/lease.h"
#include "server/limits.h"
#include "teletensor/v1/session.pb.h"

namespace teletensor::server {

// Facts about this run of the server.
struct ServerFacts {
  std::string version;
  std::uint64_t epoch = 0;
  Clock::time_point started = Clock::now();
  bool shares = false;                   // there is a ShareServer beside the daemon's own socket
  std::chrono::milliseconds restart{0};  // HelloReply.restart_ms
  std::chrono::milliseconds every{0};    // HelloReply.snapshot_ms
};

// What Hello asks for, checked. `unsupported` names the ops that the server has not.
struct Hello {
  ClientInfo client;
  std::vector<std::string> unsupported;
};
core::Result<Hello> read_hello(const v1::HelloRequest& request, const ops::Catalog& catalog,
                               const Limits& limits, const ServerFacts& facts);
// `shares`: the client is told how to come to its session's memory.
void fill_hello_reply(const Lease& lease, const std::vector<std::string>& unsupported,
                      engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                      bool shares, v1::HelloReply& reply);

// `declarations`: of the ops, not their names and revisions alone.
void fill_describe_reply(engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                         std::size_t sessions, bool declarations, v1::DescribeReply& reply);
// The declaration of each op, an Op as a line of JSON.
std::vector<std::string> declarations(const ops::Catalog& catalog);
// Checked: at most Lease::kMostSites, each text short and printable.
core::Result<Lease::Sites> read_sites(const v1::SitesReport& report);

void fill_publication(const engine::Publication& from, v1::Publication& to);
void fill_profile_reply(const program::Timeline& timeline, const ops::Catalog& catalog,
                        v1::ProfileReply& reply);

// A fetched value as it travels: an error where it is too large to travel inline.
wire::FetchedValue to_wire(engine::Fetched fetched, const Limits& limits);

}  // namespace teletensor::server
