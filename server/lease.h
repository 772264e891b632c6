// Lease: a client's claim on one engine session.
//
// The lease is what Run, Upload and Download hold. Open, attach, detach and close are four things:
// a lost stream detaches, and the session goes on with what it has; attach() gives it to the next
// stream and fences the older one. A lease ends once: by the client, by a broken frame, when nobody
// has come and nothing has run for its term, or with the server; with a term of 0 also with its
// stream. Ending is quick and never waits; the session itself, whose destruction waits for its
// running kernel, is destroyed by the table's own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "proto/wire/bulk.h"
#include "proto/wire/frame.h"
#include "server/limits.h"
#include "server/outbox.h"
#include "server/relay.h"
#include "server/staging.h"

namespace teletensor::v1 {
class SavedHead;
class SavedBody;
}  // namespace teletensor::v1

namespace teletensor::server {

using core::Clock;

// Why a session or a stream is over: a sentence, and one word for programs (docs/wire.md).
struct Ending {
  core::Status status;
  std::string word;
};

// A call that belongs to a lease.
class LeaseCall {
 public:
  virtual ~LeaseCall() = default;
  // The lease has ended, or another attach has taken the place of this call: finish with this
  // status. Any thread; must not block.
  virtual void lease_ended(const Ending& ending) = 0;
  // Some time after lease_ended(): if it is still there (its client takes nothing), cancel it.
  virtual void abandon() = 0;
  // There may be something in the outbox. Any thread, also lanes; must not block.
  virtual void wake() {}
  // Since when the client has not taken what was written; epoch: it has.
  virtual Clock::time_point stalled_since() const { return {}; }
};

// What a client said in Hello.
struct ClientInfo {
  std::string name;    // of the session
  bool named = false;  // by the client
  bool takes_over = false;
  std::string version;
  std::string peer;
  std::string description;  // "ann on host7, pid 12, train.py"; "": not told
  std::string instance;     // a random id of the client's process
  std::string user;
  bool thin = false;       // it has no rules of ops of its own: what is refused fails late
  bool by_socket = false;  // it came through a UNIX socket, without a token
  std::uint64_t id = 0;    // what operators call it; set by Leases
  std::uint64_t attach_counter = 0;
  std::uint64_t memory_asked = 0, memory_quota = 0;  // what came of it
  program::Amounts limits = program::kUsualLimits;
  std::chrono::seconds lease{0};
  std::vector<program::OpId> ops;
  std::vector<std::string> op_names;
};

// How far a session is, for a client that takes it up again.
struct Attached {
  std::uint64_t received_upto = 0;
  std::uint64_t completed_upto = 0;
  bool replay = false;  // the session is older than the client, whose frames come again
  Outbox::Credits credits;
};

// What a client says of itself in Attach.
struct AttachCall {
  std::string instance;
  std::uint64_t attach = 0;         // above all before
  std::uint64_t progress_upto = 0;  // messages that it has read
  std::uint64_t completed = 0;      // commands that it knows to have run
  std::uint64_t uploads = 0;        // its last upload
  std::uint64_t replay_from = 0;    // it can send all frames from there on again; 0: cannot
};

class Leases;

// 128 random bits in hexadecimal digits; empty if the system has none.
std::string make_token();

class Lease final : public engine::SessionListener, public std::enable_shared_from_this<Lease> {
 public:
  Lease(Leases* table, std::string token, ClientInfo client, const Limits& limits);
  ~Lease() override;

  // Constant after construction.
  const std::string token;
  const std::string ticket;  // for memory of this session (ShareServer)
  const ClientInfo client;
  const Clock::time_point created = Clock::now();
  // Where the client begins, in a session that it has taken over.
  std::optional<engine::TakenOver> start;

  Outbox& outbox() { return outbox_; }
  const Outbox& outbox() const { return outbox_; }
  // Has a Run stream.
  bool attached() const;
  // For so long it has had none; 0 while it has one.
  double detached_seconds() const;
  // The session outlives its stream.
  bool survives() const { return client.lease.count() > 0; }

  // Calls `use` with the session, which stays alive meanwhile; or says why the lease has ended.
  template <class Use>
  auto with_session(Use use) -> decltype(use(std::declval<engine::Session&>())) {
    const User user(*this);
    if (!user.entered) return ended_status();
    return use(*session_);
  }

  // ---- the Run stream's
  // Decodes a frame of the stream `run` and gives it to the session, unless it came before or
  // another stream has taken the place. On failure the lease should end. Precondition: readable().
  core::Status submit(const LeaseCall* run, std::string_view bytes);
  // The session has consumed the frame before; else wake() comes when it has.
  // `status` for this session's user: an error for want of memory names the user's sessions without
  // a client. Any thread.
  core::Status advised(core::Status status) const;
  bool readable() const { return !consuming_.load(); }
  // A call joins. As `run` it is the one that wake() goes to; there is one at most, and `attach`
  // says of which attach it is. `word`: why the lease is over, where that is why it fails.
  core::Status join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach,
                    std::string* word = nullptr);
  // The stream is over. False: the lease has no further use and should end.
  bool detach(const LeaseCall* run);

  // Upload number `upload` has all its bytes; the client calls it `key`. One that came before with
  // the same key, whose answer was lost, is dropped.
  void uploaded(std::uint64_t key, std::uint64_t upload);
  // Uploads that are not whole, and what a client that was cut is told of one.
  Staging& staging() { return staging_; }
  wire::StagedAnswer staged(std::uint64_t key, bool give_up);
  // Frees those that were cut before then, for others' bytes.
  void drop_staged(Clock::time_point before);
  void abort_upload(std::uint64_t upload);

  // The client comes again. Fences the stream that is there. FAILED_PRECONDITION, `word`
  // "rollback", where this session is older than the client and its frames do not reach back to it;
  // another `word` where the lease is over.
  core::Result<Attached> attach(const AttachCall& call, std::string* word);
  // The last commands that failed, the newest first, at most kMostErrors.
  struct Error {
    Clock::time_point at;
    std::uint64_t seq = 0;  // of the command
    std::string text;
    bool raised = false;  // the program has been told where it read a value
  };
  static constexpr std::size_t kMostErrors = 20, kMostErrorText = 1000;
  std::vector<Error> errors() const;

  // ---- lines of the client's program, by the number of the command that each issued
  // (lease_sites.cc)
  using Sites = std::vector<std::pair<std::uint64_t, std::string>>;
  static constexpr std::size_t kMostSites = 200;  // in one report
  void set_sites(const Sites& sites);
  // Commands up to `upto` whose lines are shown to users and have not been reported: of the
  // kMostSites largest tensors, of entries of the slow log, and of errors(). Forgets lines of
  // tensors that have gone.
  std::vector<std::uint64_t> wanted_sites(std::uint64_t upto);
  std::string site_of(std::uint64_t seq) const;  // "": not reported

  // ---- snapshots (lease_state.cc)
  // Writes the state of the lease itself into a snapshot. Precondition: all commands have run.
  void save(v1::SavedHead& head, v1::SavedBody& body);
  // Goes on where a saved one was. Before anybody has it.
  void restore(const v1::SavedBody& body, const std::string& file);
  // Its file in the store; "": none yet.
  std::string file() const;
  std::uint64_t written_upto() const;  // commands up to here are in it
  // False, and nothing is set, where the next lease has it already.
  bool set_file(const std::string& file, std::uint64_t upto);
  // Gives the next lease of the session this one's file, or that there is none.
  void hand_on_file(Lease& next);
  bool handed_on() const;
  // It has ended, and not to come back with another daemon.
  bool over() const;
  Clock::time_point active_at() const { return Clock::time_point(Clock::duration(active_at_)); }

  // engine::SessionListener
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched fetched) override;
  void on_error(engine::LateError error) override;
  void on_raised(engine::Raised raised) override;
  void on_slow(engine::SlowOp slow) override;

 private:
  friend class Leases;

  // Somebody who uses the session. Users may nest; they never wait for long.
  struct User {
    explicit User(Lease& lease) : lease(lease), entered(lease.enter()) {}
    ~User() {
      if (entered) lease.leave();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    Lease& lease;
    const bool entered;
  };

  template <class Act>
  void tell(Act act);
  bool enter();
  void leave();
  // Refuses enter() from now on, and waits until each thread that has entered has called leave().
  // destroy_session() then destroys the session.
  void close();
  void destroy_session();
  core::Status ended_status() const;
  void wake();
  void consumed(core::Status status);
  // Since when nobody is here and nothing runs; epoch: somebody is, or something does.
  Clock::time_point deserted_since() const;
  bool busy();  // something waits to run

  Leases* const table_;
  const wire::FrameReader reader_;
  Outbox outbox_;
  Staging staging_;
  std::atomic<bool> consuming_{false};    // the session has a frame under way
  std::atomic<Clock::rep> active_at_{0};  // of the steady clock: when something ran last

  std::unique_ptr<Relay> relay_;              // to this lease; both set before the lease is in the
  std::unique_ptr<engine::Session> session_;  // table, and taken by the next one

  mutable core::Mutex mutex_;
  core::CondVar left_;
  int users_ TT_GUARDED_BY(mutex_) = 0;
  bool closed_ TT_GUARDED_BY(mutex_) = false;  // to users
  bool ended_ TT_GUARDED_BY(mutex_) = false;
  Ending ending_ TT_GUARDED_BY(mutex_);
  std::uint64_t attach_ TT_GUARDED_BY(mutex_);  // the last attach
  bool awaited_ TT_GUARDED_BY(mutex_) = true;   // its stream has not come yet
  // No Attach has come since an earlier daemon wrote the lease down. A Run call may be on its way
  // that follows an Attach at that one, which may have come after the snapshot.
  bool restored_ TT_GUARDED_BY(mutex_) = false;
  bool met_ TT_GUARDED_BY(mutex_) = false;  // there has been a stream
  Clock::time_point detached_at_ TT_GUARDED_BY(mutex_) = Clock::now();
  std::weak_ptr<LeaseCall> run_ TT_GUARDED_BY(mutex_);
  const LeaseCall* run_now_ TT_GUARDED_BY(mutex_) = nullptr;  // *run_, to compare
  std::vector<std::weak_ptr<LeaseCall>> calls_ TT_GUARDED_BY(mutex_);
  std::string file_ TT_GUARDED_BY(mutex_);
  std::uint64_t written_upto_ TT_GUARDED_BY(mutex_) = 0;
  bool handed_on_ TT_GUARDED_BY(mutex_) = false;
  std::uint64_t uploads_upto_ TT_GUARDED_BY(mutex_) = 0;  // the last upload's number
  // Restored with tensors that other sessions have as well: run again, its commands would meet
  // others' writes, and their own, in another order.
  bool never_again_ TT_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, std::string> sites_ TT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, core::Status> open_errors_ TT_GUARDED_BY(mutex_);  // not raised yet
  std::deque<Error> errors_ TT_GUARDED_BY(mutex_);                           // newest first
  std::deque<std::pair<std::uint64_t, std::uint64_t>> uploads_
      TT_GUARDED_BY(mutex_);  // key, number
};
using LeaseRef = std::shared_ptr<Lease>;

}  // namespace teletensor::server
