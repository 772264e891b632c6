// The source lines of a client's program that a lease keeps for lists of tensors, instructions and
// errors.
#include <set>

#include "server/session/leases/lease.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::MutexLock;
using core::Status;

namespace {

// The source line of a tensor is kept as long as the tensor is one of the session's kKeptTensors
// largest. A tensor may move up in the list when larger ones are freed, and the client may have
// forgotten its line by then.
constexpr std::size_t kKeptTensors = 500;
// Maximum number of lines, regardless of how many a client reports.
constexpr std::size_t kMaxKept = 1000;

}  // namespace

void Lease::set_sites(const Sites& sites) {
  for (const auto& [seq, text] : sites) table_->slow_log().set_site(client.id, seq, text);
  MutexLock lock(mutex_);
  for (const auto& [seq, text] : sites) {
    if (sites_.size() < kMaxKept) sites_.insert_or_assign(seq, text);
  }
}

std::vector<std::uint64_t> Lease::wanted_sites(std::uint64_t upto) {
  const std::vector<std::uint64_t> slow = table_->slow_log().without_site(client.id);
  std::set<std::uint64_t> wanted(slow.begin(), slow.end()), kept;
  (void)with_session([&](engine::Session& session) {
    std::size_t rank = 0;
    for (const engine::Holding& held : session.largest(kKeptTensors)) {
      kept.insert(held.seq);
      if (rank++ < kMaxSites) wanted.insert(held.seq);
    }
    return Status();
  });
  MutexLock lock(mutex_);
  for (const Error& error : errors_) {
    wanted.insert(error.seq);
    kept.insert(error.seq);
  }
  std::erase_if(sites_, [&](const auto& site) { return !kept.contains(site.first); });
  std::erase_if(wanted, [&](std::uint64_t seq) TT_REQUIRES(mutex_) {
    return seq == 0 || seq > upto || sites_.contains(seq);
  });
  return {wanted.begin(), wanted.end()};
}

std::string Lease::site_of(std::uint64_t seq) const {
  MutexLock lock(mutex_);
  const auto found = sites_.find(seq);
  return found == sites_.end() ? "" : found->second;
}

}  // namespace teletensor::server
