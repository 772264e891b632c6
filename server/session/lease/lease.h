// Lease is a client's claim on one engine session.
// The streams Run, Upload and Download each hold a lease. Open, attach, detach and close are
// separate operations: if a stream is lost, the lease is detached and the session continues with
// its queued commands; attach() assigns the session to the next stream and closes the older one. A
// lease ends once: when the client closes it, after an invalid frame, when no client has attached
// and nothing has run for the lease term, or with the daemon; if the term is 0, also with its
// stream. Ending a lease never waits. The session is destroyed by the lease reaper, because that
// waits for its running kernel.
// Thread-safe: each part guards its own state.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/base/limits.h"
#include "server/session/lease/client_info.h"
#include "server/session/lease/command_history.h"
#include "server/session/lease/frame_intake.h"
#include "server/session/lease/held_session.h"
#include "server/session/lease/lease_streams.h"
#include "server/session/lease/saved_file.h"
#include "server/session/lease/staging.h"
#include "server/session/outbox.h"

namespace teletensor::v1 {
class SavedHead;
class SavedBody;
}  // namespace teletensor::v1

namespace teletensor::server {

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
  LeaseStreams& streams() { return streams_; }
  const LeaseStreams& streams() const { return streams_; }
  CommandHistory& commands() { return commands_; }
  const CommandHistory& commands() const { return commands_; }
  Staging& staging() { return staging_; }
  SavedFile& saved() { return saved_; }
  const SavedFile& saved() const { return saved_; }
  // For the table of leases and its thread, which open, close and pass on the session.
  HeldSession& held() { return held_; }

  // Calls `use` with the session, which stays alive meanwhile. Returns the reason if the lease has
  // ended.
  template <class Use>
  auto with_session(Use use) -> decltype(use(std::declval<engine::Session&>())) {
    const HeldSession::User user(held_);
    if (user.session() == nullptr) return streams_.ended_status();
    return use(*user.session());
  }

  // Decodes a frame of the stream `run` and passes it to the session. A frame that was received
  // before, or that belongs to a replaced stream, is ignored. On failure the lease should end. When
  // the session has consumed the frame, wake() of the Run stream is called.
  // Precondition: streams().readable().
  core::Status submit(const LeaseCall* run, std::string_view bytes);
  // Reconnects the client and closes the existing stream (LeaseStreams::attach).
  core::Result<Attached> attach(const AttachCall& call, std::string* word);
  // Completes an error for this session's user: an out-of-memory error also names the user's
  // sessions without a client. Callable from any thread.
  core::Status advised(core::Status status) const;

  // Reports source lines for the history of commands and for the slow log.
  void set_sites(const CommandHistory::Sites& sites);
  // Commands up to `upto` whose source lines are displayed and were not reported: those of the
  // largest tensors (CommandHistory::kMaxSites), of slow log entries and of failed commands.
  // Discards the lines of tensors that no longer exist.
  std::vector<std::uint64_t> wanted_sites(std::uint64_t upto);

  // Writes the state of the lease itself into a snapshot. Precondition: all commands have run.
  void save(v1::SavedHead& head, v1::SavedBody& body);
  // Restores the state from a snapshot. Must be called before the lease is used.
  void restore(const v1::SavedHead& head, const v1::SavedBody& body, const std::string& file);
  // Sets the lease's file, which contains all commands up to `upto`, and tells the client. Returns
  // false, without a change, if the file was passed to the next lease of the session.
  bool set_file(const std::string& file, std::uint64_t upto);
  // Passes this lease's file to the next lease of the session. There may be none.
  void hand_on_file(Lease& next);

  // Time at which a command last completed.
  Clock::time_point active_at() const { return Clock::time_point(Clock::duration(active_at_)); }
  // The time since which the lease has had no client and nothing has run. The epoch if it has a
  // client or has ended.
  Clock::time_point unused_since() const;
  bool busy();  // Returns true if commands wait to run.

  // engine::SessionListener
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched fetched) override;
  void on_error(engine::LateError error) override;
  void on_raised(engine::Raised raised) override;
  void on_rank_lost(engine::LostRank lost) override;
  void on_slow(engine::SlowOp slow) override;
  bool has_client() const override { return streams_.attached(); }

 private:
  template <class Act>
  void tell(Act act);
  void wake();
  void consumed(core::Status status);

  Leases* const table_;
  FrameIntake intake_;
  Outbox outbox_;
  SavedFile saved_;
  LeaseStreams streams_;
  CommandHistory commands_;
  Staging staging_;
  std::atomic<Clock::rep> active_at_{0};  // Steady-clock time at which a command last completed.
  HeldSession held_;  // Declared last, because the session reports to the other members.
};
using LeaseRef = std::shared_ptr<Lease>;

// Returns true if command `seq` has not come although the client could have sent it for longer than
// `most`: it is attached, it knows that all its commands have run, and it has sent no further one.
bool lacks_command(const Lease& lease, std::uint64_t seq, std::chrono::milliseconds most);
// The error of a download whose command has not come for this time.
core::Status no_command_came(std::chrono::milliseconds waited);

}  // namespace teletensor::server
