// Lease is a client's claim on one engine session.
// The streams Run, Upload and Download each hold a lease. Open, attach, detach and close are
// separate operations: if a stream is lost, the lease is detached and the session continues with
// its queued commands; attach() assigns the session to the next stream and closes the older one. A
// lease ends once: when the client closes it, after an invalid frame, when no client has attached
// and nothing has run for the lease term, or with the daemon; if the term is 0, also with its
// stream. Ending a lease never waits. The session is destroyed by a thread of the lease table,
// because that waits for its running kernel.
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
#include "proto/wire/protocol.h"
#include "server/base/limits.h"
#include "server/session/frame_intake.h"
#include "server/session/leases/saved_file.h"
#include "server/session/outbox.h"
#include "server/session/relay.h"
#include "server/session/staging.h"

namespace teletensor::v1 {
class SavedHead;
class SavedBody;
}  // namespace teletensor::v1

namespace teletensor::server {

using core::Clock;

// The reason why a session or a stream has ended: a sentence, and one word for programs
// (docs/wire.md).
struct Ending {
  core::Status status;
  std::string word;
};

// A call that holds a lease.
class LeaseCall {
 public:
  virtual ~LeaseCall() = default;
  // The lease has ended, or a later attach has replaced this call. The call must finish with this
  // status. Called by any thread; must not block.
  virtual void lease_ended(const Ending& ending) = 0;
  // Called some time after lease_ended() if the call has not finished because its client reads
  // nothing. Cancels the call.
  virtual void abandon() = 0;
  // Reports that the outbox may have a message. Called by any thread, including execution lanes;
  // must not block.
  virtual void wake() {}
  // The time since which the client has not read what was written. The epoch if nothing is unread.
  virtual Clock::time_point stalled_since() const { return {}; }
  // Ends the call if it has waited for the client's next message for longer than `most`. The client
  // may continue with another call.
  virtual void end_if_silent(std::chrono::milliseconds most) { (void)most; }
};

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

class Leases;

// Returns 128 random bits as hexadecimal digits. Empty if the system has no random numbers.
std::string make_token();

class Lease final : public engine::SessionListener, public std::enable_shared_from_this<Lease> {
 public:
  Lease(Leases* table, std::string token, std::string ticket, ClientInfo client,
        const Limits& limits);
  ~Lease() override;

  // The token and the other members of this group are constant after construction.
  const std::string token;
  // Secret for requests of processes on this machine for this session (ShareServer).
  const std::string ticket;
  const ClientInfo client;
  const Clock::time_point created = Clock::now();
  // The position at which the client starts in a session that it has taken over.
  std::optional<engine::TakenOver> start;

  Outbox& outbox() { return outbox_; }
  const Outbox& outbox() const { return outbox_; }
  // Returns true while the lease has a Run stream.
  bool attached() const;
  // Seconds since the last Run stream ended; 0 while there is one.
  double detached_seconds() const;
  // Returns true if the session outlives its stream.
  bool survives() const { return client.lease.count() > 0; }

  // Calls `use` with the session, which stays alive meanwhile. Returns the reason if the lease has
  // ended.
  template <class Use>
  auto with_session(Use use) -> decltype(use(std::declval<engine::Session&>())) {
    const User user(*this);
    if (!user.entered) return ended_status();
    return use(*session_);
  }

  // ---- the Run stream
  // Decodes a frame of the stream `run` and passes it to the session. A frame that was received
  // before, or that belongs to a replaced stream, is ignored. On failure the lease should end.
  // Precondition: readable().
  core::Status submit(const LeaseCall* run, std::string_view bytes);
  // Completes an error for this session's user: an out-of-memory error also names the user's
  // sessions without a client. Callable from any thread.
  core::Status advised(core::Status status) const;
  // Returns true if the session has consumed the last frame. Otherwise wake() is called when it
  // has.
  bool readable() const { return !consuming_.load(); }
  // Returns UNAVAILABLE from the restart of the daemon until the client has called Attach.
  core::Status wants_attach() const;
  // Registers a call. With `attach`, the call is the Run stream of that attach, of which there is
  // at most one; wake() is passed on to it. `word` receives the reason in one word if the lease has
  // ended.
  core::Status join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach,
                    std::string* word = nullptr);
  // Reports that the stream has ended. Returns false if the lease has no further use and should
  // end.
  bool detach(const LeaseCall* run);

  // Reports that upload number `upload`, which the client calls `key`, is complete. An earlier
  // upload with the same key, whose answer was lost, is dropped.
  void uploaded(std::uint64_t key, std::uint64_t upload);
  // Incomplete uploads, and the answer about one of them for a client that was disconnected.
  Staging& staging() { return staging_; }
  wire::StagedAnswer staged(std::uint64_t key, bool give_up);
  // Frees incomplete uploads whose stream was lost before `before`.
  void drop_staged(Clock::time_point before);
  void abort_upload(std::uint64_t upload);

  // Reconnects the client and closes the existing stream. Returns FAILED_PRECONDITION with the word
  // "rollback" if this session is in an earlier state than the client and the client cannot send
  // the missing frames again; other words if the lease has ended.
  core::Result<Attached> attach(const AttachCall& call, std::string* word);
  // The last commands that failed, newest first; at most kMaxErrors.
  struct Error {
    Clock::time_point at;
    std::uint64_t seq = 0;  // Number of the command.
    std::string text;
    bool raised = false;  // Whether the error was raised in the client's program.
  };
  static constexpr std::size_t kMaxErrors = 20, kMaxErrorText = 1000;
  std::vector<Error> errors() const;

  // ---- source lines of the client's program, by the number of the command (lease_sites.cc)
  using Sites = std::vector<std::pair<std::uint64_t, std::string>>;
  static constexpr std::size_t kMaxSites = 200;  // Maximum number of lines in one report.
  void set_sites(const Sites& sites);
  // Commands up to `upto` whose source lines are displayed and were not reported: those of the
  // kMaxSites largest tensors, of slow log entries and of errors(). Discards the lines of tensors
  // that no longer exist.
  std::vector<std::uint64_t> wanted_sites(std::uint64_t upto);
  // The reported source line of a command. Empty if it was not reported.
  std::string site_of(std::uint64_t seq) const;

  // ---- snapshots (lease_state.cc)
  // Writes the state of the lease itself into a snapshot. Precondition: all commands have run.
  void save(v1::SavedHead& head, v1::SavedBody& body);
  // Restores the state from a snapshot. Must be called before the lease is used.
  void restore(const v1::SavedHead& head, const v1::SavedBody& body, const std::string& file);
  const SavedFile& saved() const { return saved_; }
  SavedFile& saved() { return saved_; }
  // Sets the lease's file, which contains all commands up to `upto`, and tells the client. Returns
  // false, without a change, if the file was passed to the next lease of the session.
  bool set_file(const std::string& file, std::uint64_t upto);
  // Passes this lease's file to the next lease of the session. There may be none.
  void hand_on_file(Lease& next);
  // Returns true if the lease has ended and will not be restored by the next daemon.
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

  // A thread that uses the session. Users may nest; they never wait for long.
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
  // Makes enter() fail from now on, and waits until each thread that has entered has called
  // leave(). destroy_session() then destroys the session.
  void close();
  void destroy_session();
  core::Status ended_status() const;
  void wake();
  void consumed(core::Status status);
  // The time since which the lease has had no client and nothing has run. The epoch if it has a
  // client or runs something.
  Clock::time_point unused_since() const;
  bool busy();  // Returns true if commands wait to run.

  Leases* const table_;
  FrameIntake intake_;
  Outbox outbox_;
  Staging staging_;
  SavedFile saved_;
  std::atomic<bool> consuming_{false};    // Whether the session is processing a frame.
  std::atomic<Clock::rep> active_at_{0};  // Steady-clock time at which a command last completed.

  // Forwards the session's reports to this lease. Set before the lease is in the table, and taken
  // over by the next lease.
  std::unique_ptr<Relay> relay_;
  // The session. Set before the lease is in the table, and taken over by the next lease.
  std::unique_ptr<engine::Session> session_;

  mutable core::Mutex mutex_;
  core::CondVar left_;
  int users_ TT_GUARDED_BY(mutex_) = 0;
  bool closed_ TT_GUARDED_BY(mutex_) = false;  // Whether enter() is refused.
  bool ended_ TT_GUARDED_BY(mutex_) = false;
  Ending ending_ TT_GUARDED_BY(mutex_);
  std::uint64_t attach_ TT_GUARDED_BY(mutex_);  // Counter of the last attach.
  bool awaited_ TT_GUARDED_BY(mutex_) = true;   // Whether the first stream is still expected.
  // How the lease began: by Hello, or restored from a file, without and with an Attach since. Until
  // that Attach a restored lease refuses Run and Upload. A Run call may follow an Attach at the
  // previous daemon that is later than the snapshot, and the numbers of new uploads would hide from
  // Attach that the client knows an upload that the snapshot lacks.
  enum class Origin : std::uint8_t { kHello, kRestored, kAttached };
  Origin origin_ TT_GUARDED_BY(mutex_) = Origin::kHello;
  bool met_ TT_GUARDED_BY(mutex_) = false;  // Whether there has been a stream.
  Clock::time_point detached_at_ TT_GUARDED_BY(mutex_) = Clock::now();
  std::weak_ptr<LeaseCall> run_ TT_GUARDED_BY(mutex_);
  // The call *run_, kept for comparison.
  const LeaseCall* run_now_ TT_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::weak_ptr<LeaseCall>> calls_ TT_GUARDED_BY(mutex_);
  // Number of the last upload of the earlier daemon from whose file the session was restored.
  std::uint64_t restored_uploads_ TT_GUARDED_BY(mutex_) = 0;
  // Whether the session was restored with tensors that are shared with other sessions. Its commands
  // must not be replayed: they would see later writes of other sessions and their own writes twice.
  bool no_replay_ TT_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, std::string> sites_ TT_GUARDED_BY(mutex_);
  // Errors that were not raised yet.
  std::map<std::uint64_t, core::Status> open_errors_ TT_GUARDED_BY(mutex_);
  std::deque<Error> errors_ TT_GUARDED_BY(mutex_);  // The last errors, newest first.
  std::deque<std::pair<std::uint64_t, std::uint64_t>> uploads_
      TT_GUARDED_BY(mutex_);  // Client's key and number of each finished upload.
};
using LeaseRef = std::shared_ptr<Lease>;

// Returns true if command `seq` has not come although the client could have sent it for longer than
// `most`: it is attached, it knows that all its commands have run, and it has sent no further one.
bool lacks_command(const Lease& lease, std::uint64_t seq, std::chrono::milliseconds most);
// The error of a download whose command has not come for this time.
core::Status no_command_came(std::chrono::milliseconds waited);

}  // namespace teletensor::server
