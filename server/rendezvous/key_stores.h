// KeyStores: the stores of all users, values by keys, by which the processes of a program find each
// other (proto/teletensor/v1/store.proto). With a folder each store is also a file there, which has
// every change before it is answered, and the next daemon restores the stores from the files.
//
// A store belongs to a user and has a name. It is removed when no call has used it, or waited in
// it, for an hour. Calls that wait occupy no thread: the call that stores the missing key answers
// them. Thread-safe.
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
  // One user's keys, values and awaited keys, with a fixed cost for each.
  std::uint64_t user_bytes = std::uint64_t{64} << 20;
  std::uint64_t user_answers = std::uint64_t{256} << 20;  // bytes of answers not yet sent
  std::size_t user_stores = 256;
  std::size_t user_waits = 16'384;                  // calls that wait at once
  std::size_t stores = 1024;                        // of all users
  std::size_t answer_bytes = std::size_t{2} << 20;  // values of one answer, about
  std::size_t clients = 16'384;                     // of a store, whose last change is remembered
  std::chrono::seconds idle{3600};
};

class KeyStores {
 public:
  using Clock = core::Clock;
  using Now = std::function<Clock::time_point()>;

  // Which store a call is about; the user is the caller.
  struct Ref {
    std::string user, name;
    std::uint64_t generation = 0;
  };
  // A change that is made once, however often it is asked for; client 0: as often as it is asked.
  struct Call {
    std::uint64_t client = 0, number = 0;
  };
  struct Found {
    bool there = false;
    std::vector<std::string> values;
    std::uint64_t generation = 0;  // of join()
    std::uint64_t bytes = 0;       // of the values; for sent()
  };
  enum class Way : std::uint8_t { kShare, kBegin, kNew };
  using Done = std::function<void(core::Result<Found>)>;
  // A call that waits. Its `done` is called once, by any thread, unless cancel() has been faster.
  class Wait;
  using WaitRef = std::shared_ptr<Wait>;

  explicit KeyStores(KeyStoreLimits limits = {}, Now now = Clock::now);
  ~KeyStores();  // as close()
  KeyStores(const KeyStores&) = delete;
  KeyStores& operator=(const KeyStores&) = delete;

  // Keeps stores in `stores` of that folder from now on, and takes up those that are there. Before
  // the first call. UNAVAILABLE where another daemon has the folder, PERMISSION_DENIED where other
  // users can write there: the stores are then kept in memory alone.
  core::Status keep_in(const std::string& state_dir);

  // The generation of the store. A store that is made has `ref.generation`.
  core::Result<std::uint64_t> open(const Ref& ref, Way way);
  // Waits until there is a store of this name.
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
  // Are all keys there, now? The values, or as many as one answer holds, if `values` and so.
  core::Result<Found> find(const Ref& ref, const std::vector<std::string_view>& keys, bool values);
  // The same, as soon as all keys are there. `done` may be called before this returns.
  core::Result<WaitRef> wait(const Ref& ref, const std::vector<std::string_view>& keys, bool values,
                             Done done);
  // The caller of a waiting call is gone. True: `done` is not called any more.
  bool cancel(const WaitRef& wait);
  // The answer of a find() or wait() with so many bytes has been sent, or was given up.
  void sent(const std::string& user, std::uint64_t bytes);

  // Removes stores that no call has used for `idle`. The class's own thread calls it every minute.
  void sweep();
  // Fails calls that wait, and all later ones: the daemon ends.
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
  // The use of one user.
  struct Book {
    std::uint64_t bytes = 0, answers = 0;
    std::size_t stores = 0, waits = 0;
  };
  class Ready;  // calls whose answers are given when the lock is no longer held
  using Name = std::pair<std::string, std::string>;  // user, name
  using Change = KeyStoreFile::Change;

  core::Status check(const Ref& ref) const TT_REQUIRES(mutex_);
  core::Status check_entry(std::string_view key, std::string_view value) const;
  core::Result<Store*> find_store(const Ref& ref) TT_REQUIRES(mutex_);
  // The store of a change, and that change if it has been made already.
  core::Result<Making> begin(const Ref& ref, Call call) TT_REQUIRES(mutex_);
  core::Result<Store*> make(const Ref& ref) TT_REQUIRES(mutex_);
  void drop(Store& store, const core::Status& why, Ready& ready) TT_REQUIRES(mutex_);
  core::Status charge(const std::string& user, std::uint64_t more) TT_REQUIRES(mutex_);
  void refund(const std::string& user, std::uint64_t bytes) TT_REQUIRES(mutex_);
  void tidy(const std::string& user) TT_REQUIRES(mutex_);
  // Charges the change, writes it down and makes it.
  core::Status change(Store& store, const std::vector<Change>& changes, Ready& ready)
      TT_REQUIRES(mutex_);
  void apply(Store& store, const Change& change) TT_REQUIRES(mutex_);
  void compact(Store& store) TT_REQUIRES(mutex_);
  void remember(Store& store, const Change& change) TT_REQUIRES(mutex_);
  void wake(Store& store, std::string_view key, Ready& ready) TT_REQUIRES(mutex_);
  // The answer once no key is missing; else queues it for the first that is.
  void look(Store& store, const WaitRef& wait, Ready& ready) TT_REQUIRES(mutex_);
  core::Result<Found> values_of(const Store& store, const std::vector<std::string>& keys)
      TT_REQUIRES(mutex_);
  void end(const WaitRef& wait) TT_REQUIRES(mutex_);
  core::Result<WaitRef> new_wait(const Ref& ref, const std::vector<std::string_view>& keys,
                                 bool values, Done done) TT_REQUIRES(mutex_);
  void restore(const std::string& path) TT_REQUIRES(mutex_);
  void keep_house();

  const KeyStoreLimits limits_;
  const Now now_;
  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::string folder_ TT_GUARDED_BY(mutex_);  // "": none
  int lock_ TT_GUARDED_BY(mutex_) = -1;
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  std::map<Name, std::unique_ptr<Store>> stores_ TT_GUARDED_BY(mutex_);
  std::map<Name, std::vector<WaitRef>> joining_ TT_GUARDED_BY(mutex_);
  std::map<std::string, Book> books_ TT_GUARDED_BY(mutex_);
  std::thread house_;
};

}  // namespace teletensor::server
