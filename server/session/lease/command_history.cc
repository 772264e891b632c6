#include "server/session/lease/command_history.h"

#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

using core::Clock;
using core::MutexLock;
using core::Status;

namespace {

// Maximum number of source lines, regardless of how many a client reports.
constexpr std::size_t kMaxKeptSites = 1000;
constexpr std::size_t kMaxOpenErrors = 1000;  // Maximum number of errors that a client is told.

}  // namespace

void CommandHistory::add_sites(const Sites& sites) {
  MutexLock lock(mutex_);
  for (const auto& [seq, text] : sites) {
    if (sites_.size() < kMaxKeptSites) sites_.insert_or_assign(seq, text);
  }
}

std::string CommandHistory::site_of(std::uint64_t seq) const {
  MutexLock lock(mutex_);
  const auto found = sites_.find(seq);
  return found == sites_.end() ? "" : found->second;
}

std::vector<std::uint64_t> CommandHistory::without_site(std::set<std::uint64_t> wanted,
                                                        std::set<std::uint64_t> kept,
                                                        std::uint64_t upto) {
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

void CommandHistory::failed(std::uint64_t seq, const Status& status) {
  MutexLock lock(mutex_);
  if (open_errors_.size() < kMaxOpenErrors) open_errors_.emplace(seq, status);
  if (errors_.size() == kMaxErrors) errors_.pop_back();
  errors_.push_front({Clock::now(), seq, status.message().substr(0, kMaxErrorText), false});
}

void CommandHistory::raised(std::uint64_t seq) {
  MutexLock lock(mutex_);
  open_errors_.erase(seq);
  for (Error& error : errors_) error.raised |= error.seq == seq;
}

std::vector<CommandHistory::Error> CommandHistory::errors() const {
  MutexLock lock(mutex_);
  return {errors_.begin(), errors_.end()};
}

CommandHistory::OpenErrors CommandHistory::hand_on(CommandHistory& next) {
  OpenErrors errors;
  std::map<std::uint64_t, std::string> sites;
  {
    MutexLock lock(mutex_);
    errors.swap(open_errors_);
    sites.swap(sites_);
  }
  MutexLock lock(next.mutex_);
  next.sites_.swap(sites);
  return errors;
}

void CommandHistory::save(v1::SavedBody& body) const {
  MutexLock lock(mutex_);
  for (const auto& [root, status] : open_errors_) {
    v1::SavedError& error = *body.add_open_errors();
    error.set_root(root);
    error.set_code(static_cast<std::uint32_t>(status.code()));
    error.set_text(status.message());
  }
  for (const auto& [seq, text] : sites_) {
    v1::SavedSite& site = *body.add_sites();
    site.set_seq(seq);
    site.set_text(text);
  }
}

void CommandHistory::restore(const v1::SavedBody& body) {
  MutexLock lock(mutex_);
  for (const v1::SavedError& error : body.open_errors()) {
    open_errors_.emplace(error.root(),
                         Status(static_cast<core::Code>(error.code() % 17), error.text()));
  }
  for (const v1::SavedSite& site : body.sites()) sites_.emplace(site.seq(), site.text());
}

}  // namespace teletensor::server
