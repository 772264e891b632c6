#include "server/net/http_connections.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "engine/core/threads.h"

namespace teletensor::server {

using core::Clock;
using core::MutexLock;

namespace {

constexpr std::size_t kNetworkBytes = 8;  // A host may choose the rest of its IPv6 address.

std::string address_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.ss_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(&address)->sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  if (address.ss_family != AF_INET6) return "";
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  const auto* const bytes = reinterpret_cast<const char*>(&v6);
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return {bytes + 12, 4};
  return {bytes, kNetworkBytes};
}

using Counts = std::map<std::string, std::size_t>;

Counts counts_of(const std::list<std::shared_ptr<HttpConnections::Connection>>& connections) {
  Counts counts;
  for (const auto& each : connections) ++counts[each->peer];
  return counts;
}

std::size_t most_of(const Counts& counts) {
  std::size_t most = 0;
  for (const auto& [peer, count] : counts) most = std::max(most, count);
  return most;
}

}  // namespace

HttpConnections::HttpConnections(Serve serve, Counters& counters)
    : serve_(std::move(serve)), counters_(counters) {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kFirstThreads; ++i) {
    threads_.push_back(core::start_thread([this] { work(); }));
  }
  scheduler_ = core::start_thread([this] { schedule(); });
}

void HttpConnections::admit(int socket) { admit(socket, address_of_peer(socket)); }

void HttpConnections::admit(int socket, std::string peer) {
  {
    MutexLock lock(mutex_);
    const bool room = !end_ && make_room(peer);
    if (!room && !end_) counters_.refused(Refusal::kHttpPlaces);
    if (!room) {
      close(socket);
      return;
    }
    pending_.push_back(std::make_shared<Connection>(socket, std::move(peer)));
  }
  moved_.notify_one();
}

bool HttpConnections::make_room(const std::string& peer) {
  Counts counts = counts_of(pending_);
  if (counts[peer] >= kPendingShare) {
    const auto first = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const auto& each) { return each->peer == peer; });
    if (make_place(peer, {}).count() > 0) return false;
    start(first);
    return true;
  }
  if (pending_.size() < kMaxPending) return true;
  const std::size_t most = most_of(counts);
  if (counts[peer] == most) return false;
  const auto last = std::find_if(pending_.rbegin(), pending_.rend(),
                                 [&](const auto& each) { return counts[each->peer] == most; });
  counters_.refused(Refusal::kHttpPlaces);
  close((*last)->socket);
  pending_.erase(std::next(last).base());
  return true;
}

HttpConnections::Connections::iterator HttpConnections::start(Connections::iterator connection) {
  (*connection)->waits_since = Clock::now();
  open_.push_back(*connection);
  waiting_.push_back(*connection);
  changed_.notify_one();
  return pending_.erase(connection);
}

Clock::duration HttpConnections::start_pending() {
  Clock::duration next = kGrace;
  std::set<std::string> later;  // Peers for which there is no place now.
  for (auto each = pending_.begin(); each != pending_.end();) {
    const auto& peer = (*each)->peer;
    const auto left = later.contains(peer) ? kGrace : make_place(peer, kGrace);
    if (left.count() == 0) {
      each = start(each);
      continue;
    }
    next = std::min<Clock::duration>(next, left);
    later.insert(peer);
    ++each;
  }
  return next;
}

std::size_t HttpConnections::places() {
  if (open_.size() >= threads_.size() && threads_.size() < kPlaces) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // The system permits no more threads now.
    }
  }
  return threads_.size();
}

Clock::duration HttpConnections::make_place(const std::string& peer, Clock::duration grace) {
  Counts counts = counts_of(open_);
  const bool share_used = counts[peer] >= kShare;
  if (!share_used && open_.size() < places()) return {};
  const std::size_t most = most_of(counts);
  auto victim = open_.end();
  Clock::time_point longest = Clock::time_point::max();
  for (auto each = open_.begin(); each != open_.end(); ++each) {
    if (share_used ? (*each)->peer != peer : counts[(*each)->peer] < most) continue;
    const Clock::time_point since = (*each)->waits_since;
    if (since >= longest) continue;
    longest = since;
    victim = each;
  }
  if (victim == open_.end()) return kGrace;  // All of them are being answered.
  const auto waited = Clock::now() - longest;
  if (waited < grace) return grace - waited;
  counters_.refused(Refusal::kHttpReplaced);
  end_one(victim);
  return {};
}

void HttpConnections::end_one(Connections::iterator victim) {
  const auto queued = std::find(waiting_.begin(), waiting_.end(), *victim);
  if (queued != waiting_.end()) {
    waiting_.erase(queued);
    close((*victim)->socket);
  } else {
    shutdown((*victim)->socket, SHUT_RDWR);  // Its thread closes it.
  }
  open_.erase(victim);
}

void HttpConnections::end() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    end_ = true;
    for (const auto& each : pending_) close(each->socket);
    pending_.clear();
    while (!open_.empty()) end_one(open_.begin());
    threads.swap(threads_);
  }
  changed_.notify_all();
  moved_.notify_all();
  if (scheduler_.joinable()) scheduler_.join();
  for (std::thread& thread : threads) thread.join();
}

void HttpConnections::schedule() {
  MutexLock lock(mutex_);
  while (!end_) {
    const Clock::duration next = start_pending();
    if (pending_.empty()) {
      moved_.wait(mutex_);
    } else {
      moved_.wait_for(mutex_, next);
    }
  }
}

void HttpConnections::work() {
  mutex_.lock();
  while (true) {
    while (waiting_.empty() && !end_) changed_.wait(mutex_);
    if (waiting_.empty()) break;
    const std::shared_ptr<Connection> mine = waiting_.front();
    waiting_.pop_front();
    mutex_.unlock();
    serve_(*mine);
    mutex_.lock();
    open_.remove(mine);
    close(mine->socket);
    moved_.notify_one();
  }
  mutex_.unlock();
}

}  // namespace teletensor::server
