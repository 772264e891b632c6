#include "server/net/local/user_listeners.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "server/base/log.h"
#include "server/base/os/users.h"

namespace teletensor::server {

using core::MutexLock;

namespace {

// Maximum number of listeners, including those that end at this moment.
constexpr std::size_t kMaxUsers = 256;
// Maximum number of them for users without an account. A user may own 65,536 subordinate user
// ids, which have no accounts; all of them together must leave room for users with an account.
constexpr std::size_t kMaxWithoutAccount = 128;
// Up to this number, listeners without connections stay, so that a user whose programs come and go
// does not need a new one each time.
constexpr std::size_t kKeptUsers = 16;

}  // namespace

UserListeners::UserListeners(Create create)
    : create_(std::move(create)), thread_(core::start_thread([this] { end_listeners(); })) {}

UserListeners::~UserListeners() { stop(); }

bool UserListeners::take(uid_t id, int connection) {
  struct stat info {};
  if (fstat(connection, &info) != 0) return false;
  MutexLock lock(mutex_);
  User* const user = this->user(id);
  if (user == nullptr) return false;
  user->connections.push_back({connection, info.st_ino});
  user->listener->take(connection);
  return true;
}

// The user with a listener. Null if there is no room for another listener, or if it cannot start.
UserListeners::User* UserListeners::user(uid_t id) {
  const auto found = users_.find(id);
  if (found != users_.end()) {
    User& user = found->second;
    std::erase_if(user.connections, [](const Connection& each) { return !each.open(); });
    return &user;
  }
  if (users_.size() >= kKeptUsers) end_idle();
  const bool has_account = server::has_account(id);
  if (!room(has_account)) return nullptr;
  auto listener = create_(user_name(id));
  if (!listener.ok()) {
    log_error("socket_user_failed", {{"reason", listener.status().message()}});
    return nullptr;
  }
  (*listener)->set_serving(serving_);
  return &users_.emplace(id, User{std::move(*listener), has_account, {}}).first->second;
}

bool UserListeners::room(bool has_account) const {
  const std::size_t leaving = idle_.size() + ending_;
  if (users_.size() + leaving >= kMaxUsers) return false;
  const auto without = std::count_if(users_.begin(), users_.end(),
                                     [](const auto& each) { return !each.second.has_account; });
  return has_account || static_cast<std::size_t>(without) + leaving < kMaxWithoutAccount;
}

// Hands the listeners without a connection to the thread that ends them.
void UserListeners::end_idle() {
  for (auto at = users_.begin(); at != users_.end();) {
    const auto& connections = at->second.connections;
    if (std::none_of(connections.begin(), connections.end(),
                     [](const Connection& each) { return each.open(); })) {
      idle_.push_back(std::move(at->second.listener));
      at = users_.erase(at);
    } else {
      ++at;
    }
  }
  changed_.notify_one();
}

void UserListeners::end_listeners() {
  while (true) {
    std::vector<std::unique_ptr<Listener>> leaving;
    {
      MutexLock lock(mutex_);
      ending_ = 0;
      while (idle_.empty() && !stopped_) changed_.wait(mutex_);
      if (idle_.empty()) return;
      leaving.swap(idle_);
      ending_ = leaving.size();
    }
    while (!leaving.empty()) {
      leaving.pop_back();
      MutexLock lock(mutex_);
      ending_ = leaving.size();
    }
  }
}

void UserListeners::set_serving(bool serving) {
  MutexLock lock(mutex_);
  serving_ = serving;
  for (const auto& [id, user] : users_) user.listener->set_serving(serving);
}

void UserListeners::stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (auto& [id, user] : users_) idle_.push_back(std::move(user.listener));
    users_.clear();
  }
  changed_.notify_one();
  thread_.join();
}

bool UserListeners::Connection::open() const {
  struct stat info {};
  return fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == inode;
}

}  // namespace teletensor::server
