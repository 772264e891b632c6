// KeyStores holds the key-value stores of all users, through which the processes of a program find
// each other (proto/teletensor/v1/store.proto). With a state directory, each store is also a file;
// changes are written to it before they are answered, and the next daemon restores the stores.
// A store belongs to a user and has a name. It is removed when no call has used it or waited in it
// for an hour. Waiting calls occupy no thread: the call that stores the missing key answers them.
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/rendezvous/key_store_file.h"

namespace teletensor::server {

struct KeyStoreLimits {
  std::size_t name_bytes = 256;
  std::size_t key_bytes = 4096;
  std::size_t value_bytes = std::size_t{1} << 20;
  // Maximum size of one user's keys, values and awaited keys, with a fixed overhead for each, in
  // bytes.
  std::uint64_t user_bytes = std::uint64_t{64} << 20;
  // Maximum size of one user's answers that were not sent yet, in bytes.
  std::uint64_t user_answers = std::uint64_t{256} << 20;
  std::size_t user_stores = 256;
  std::size_t user_waits = 16'384;  // Maximum number of waiting calls of one user.
  std::size_t stores = 1024;        // Maximum number of stores of all users.
  // Approximate maximum size of the values in one answer, in bytes.
  std::size_t answer_bytes = std::size_t{2} << 20;
  // Maximum number of clients of a store whose last change is remembered.
  std::size_t clients = 16'384;
  std::chrono::seconds idle{3600};
};

class KeyStores {
 public:
  using Clock = core::Clock;
  using Now = std::function<Clock::time_point()>;

  // Names the store of a call. `user` is the caller.
  struct Ref {
    std::string user, name;
    std::uint64_t generation = 0;
  };
  // Identifies a change that takes effect once even if it is requested several times. With client 0
  // every request takes effect.
  struct Call {
    std::uint64_t client = 0, number = 0;
  };
  struct Found {
    bool there = false;
    std::vector<std::string> values;
    std::uint64_t generation = 0;  // Generation of the store; set by join().
    std::uint64_t bytes = 0;       // Size of the values, to be passed to sent().
  };
  enum class Way : std::uint8_t { kShare, kBegin, kNew };
  using Done = std::function<void(core::Result<Found>)>;
  // A waiting call. Its `done` is called once, by any thread, unless cancel() succeeds before.
  class Wait;
  using WaitRef = std::shared_ptr<Wait>;

  explicit KeyStores(KeyStoreLimits limits = {}, Now now = Clock::now);
  ~KeyStores();  // Calls close().
  KeyStores(const KeyStores&) = delete;
  KeyStores& operator=(const KeyStores&) = delete;

  // Keeps stores in the folder `stores` of `state_dir` from now on, and restores the stores that
  // are there. Must precede all other calls. Returns UNAVAILABLE if another daemon uses the folder
  // and PERMISSION_DENIED if other users can write to it; stores are then kept in memory only.
  core::Status keep_in(const std::string& state_dir);

  // Finds or creates a store and returns its generation. A new store gets `ref.generation`.
  core::Result<std::uint64_t> open(const Ref& ref, Way way);
  // Waits until a store of this name exists.
  core::Result<WaitRef> join(const Ref& ref, Done done);
  core::Status drop(const Ref& ref);

  using Entry = std::pair<std::string_view, std::string_view>;
  core::Status set(const Ref& ref, const std::vector<Entry>& entries);
  core::Result<std::int64_t> add(const Ref& ref, Call call, std::string_view key,
                                 std::int64_t amount);
  core::Status append(const Ref& ref, Call call, std::string_view key, std::string_view value);
  core::Result<std::string> compare_set(const Ref& ref, Call call, std::string_view key,
                                        std::string_view expected, std::string_view desired);
  core::Result<bool> erase(const Ref& ref, Call call, std::string_view key);
  core::Result<std::uint64_t> count(const Ref& ref);
  // Tests whether all keys exist now. With `values`, also returns as many of their values as one
  // answer holds.
  core::Result<Found> find(const Ref& ref, const std::vector<std::string_view>& keys, bool values);
  // Like find(), but answers as soon as all keys exist. `done` may be called before wait() returns.
  core::Result<WaitRef> wait(const Ref& ref, const std::vector<std::string_view>& keys, bool values,
                             Done done);
  // Cancels a waiting call whose caller has disconnected. Returns true if `done` will not be
  // called.
  bool cancel(const WaitRef& wait);
  // Reports that an answer of find() or wait() with this many bytes was sent or dropped.
  void sent(const std::string& user, std::uint64_t bytes);

  // Removes stores that no call has used for `idle`. An internal thread calls it every minute.
  void sweep();
  // Fails waiting calls and all later calls. Called when the daemon ends.
  void close();

  struct Total {
    std::size_t stores = 0, waits = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Total&) const = default;
  };
  Total total() const;

 private:
  struct Store;
  struct Making;
  // Resource use of one user.
  struct Book {
    std::uint64_t bytes = 0, answers = 0;
    std::size_t stores = 0, waits = 0;
  };
  class Ready;  // Collects calls that are answered after the lock is released.
  using Name = std::pair<std::string, std::string>;  // User and name of a store.
  using Change = KeyStoreFile::Change;

  core::Status check(const Ref& ref) const TT_REQUIRES(mutex_);
  core::Status check_entry(std::string_view key, std::string_view value) const;
  core::Result<Store*> find_store(const Ref& ref) TT_REQUIRES(mutex_);
  // The store of a change, and the earlier record of that change if it was already made.
  core::Result<Making> begin(const Ref& ref, Call call) TT_REQUIRES(mutex_);
  core::Result<Store*> make(const Ref& ref) TT_REQUIRES(mutex_);
  void drop(Store& store, const core::Status& why, Ready& ready) TT_REQUIRES(mutex_);
  core::Status charge(const std::string& user, std::uint64_t more) TT_REQUIRES(mutex_);
  void refund(const std::string& user, std::uint64_t bytes) TT_REQUIRES(mutex_);
  void tidy(const std::string& user) TT_REQUIRES(mutex_);
  // Charges the change to the user, writes it to the file and applies it.
  core::Status change(Store& store, const std::vector<Change>& changes, Ready& ready)
      TT_REQUIRES(mutex_);
  void apply(Store& store, const Change& change) TT_REQUIRES(mutex_);
  void compact(Store& store) TT_REQUIRES(mutex_);
  void remember(Store& store, const Change& change) TT_REQUIRES(mutex_);
  void wake(Store& store, std::string_view key, Ready& ready) TT_REQUIRES(mutex_);
  // Answers the call if no key is missing; otherwise queues it at its first missing key.
  void look(Store& store, const WaitRef& wait, Ready& ready) TT_REQUIRES(mutex_);
  core::Result<Found> values_of(const Store& store, const std::vector<std::string>& keys)
      TT_REQUIRES(mutex_);
  void end(const WaitRef& wait) TT_REQUIRES(mutex_);
  core::Result<WaitRef> new_wait(const Ref& ref, const std::vector<std::string_view>& keys,
                                 bool values, Done done) TT_REQUIRES(mutex_);
  void restore(const std::string& path) TT_REQUIRES(mutex_);
  void run_maintenance();

  const KeyStoreLimits limits_;
  const Now now_;
  mutable core::Mutex mutex_;
  core::CondVar changed_;
  // The folder of the stores. Empty if stores are kept in memory only.
  std::string folder_ TT_GUARDED_BY(mutex_);
  int lock_ TT_GUARDED_BY(mutex_) = -1;
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  std::map<Name, std::unique_ptr<Store>> stores_ TT_GUARDED_BY(mutex_);
  std::map<Name, std::vector<WaitRef>> joining_ TT_GUARDED_BY(mutex_);
  std::map<std::string, Book> books_ TT_GUARDED_BY(mutex_);
  std::thread maintenance_thread_;
};

}  // namespace teletensor::server
