// Moves transfers sessions to peers and receives sessions from them
// (docs/design/0020-moving-sessions.md).
// A move has a source and a target. The source offers the session (OFFER), and the target refuses
// it or reserves room (ACCEPT). Then the session pauses, and its file is written and sent (DATA,
// END). The target stores the file, creates a session from it that no client can find yet, and
// answers READY. Now the source writes a SavedMove; at that moment the session becomes the
// target's. The source tells its clients the new address, and repeats COMMIT until the target has
// answered COMMITTED. After any failure before that moment, the session stays at the source and is
// resumed. A target that has answered READY asks (ASK) when it is connected to the source again,
// and the answer is COMMIT or ABORT.
// Threads: one internal thread does all the work; the public calls only post tasks to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "server/access/auth.h"
#include "server/base/task_thread.h"
#include "server/peer/peers.h"
#include "server/state/move_files.h"
#include "server/state/recovery.h"

namespace teletensor::server {

struct MoveFacts {
  std::string address;      // Address at which clients now reach the session.
  std::uint64_t bytes = 0;  // Size of the tensors in bytes.
  double seconds = 0;       // Seconds for which the session was paused.
};

struct MoveOptions {
  std::string version;            // Version of this daemon.
  std::vector<std::string> from;  // Peers that may move sessions here.
  // Address at which clients reach this daemon. If it is empty, it is the address where the daemon
  // listens.
  std::string advertise;
  bool anonymous = false;          // Whether callers on the loopback interface need no token.
  bool certificate_users = false;  // Whether client certificates identify users.
  bool socket_users = false;  // Whether other users of this machine may connect to the UNIX socket.
};

// The byte order of this machine as a word.
std::string machine();

class Moves final : public MoveReceiver {
 public:
  using Done = std::function<void(const core::Result<MoveFacts>&)>;
  // The parameters of a move.
  struct Request {
    LeaseRef lease;
    std::string peer;
    std::chrono::milliseconds patience{0};  // Maximum time to wait for a connection to the peer.
    // Called while the move waits for a connection; returns false if the caller has disconnected.
    std::function<bool()> wanted;
    Done done;  // Receives the new address of the session, or the reason why it stayed here.
  };

  // `peers` may be null if there are none. The other arguments must outlive this object.
  Moves(Leases& leases, Recovery& recovery, const Auth& auth, Peers* peers, MoveOptions options);
  ~Moves() override;  // Calls stop().

  // Read the files of an earlier daemon. restore() must be called before sessions are restored, and
  // restored() afterwards.
  void restore();
  void restored();
  // Sets the addresses where the daemon listens; empty for none. Must be called before peers are
  // started.
  void listens(const std::string& tcp, bool tls, const std::string& socket);
  // Returns an error unless sessions can be moved to a peer of this name.
  core::Status check_peer(const std::string& peer) const;
  void move(Request request);
  // Cancels moves that are not committed, and starts no more. May be called several times.
  void stop();

  // ---- MoveReceiver: messages of peers
  void met(const std::string& peer) override;
  core::Status received(const std::string& peer, v1::PeerMove move, std::string data) override;
  void lost(const std::string& peer, const std::string& why) override;

 private:
  // A move that waits for a connection.
  struct Delayed {
    Request request;
    Clock::time_point until;
  };
  // The state of a move at the source.
  struct Leaving {
    enum class Phase : std::uint8_t { kOffered, kResting, kSending } phase = Phase::kOffered;
    LeaseRef lease;
    std::string peer;
    Done done;
    std::unique_ptr<MoveFile> file;
    // Bytes of the file that were sent, and that the target has acknowledged.
    std::uint64_t sent = 0, taken = 0;
    bool ended = false;       // Whether the message END was sent.
    int tries = 0;            // Number of attempts to pause the session.
    std::uint64_t bytes = 0;  // Size of the tensors in bytes.
    Clock::time_point still;  // Time when the session was paused.
  };
  // The state of a move at the target.
  struct Coming {
    std::string peer;
    v1::PeerOffer offer;
    // The file of the session while it is received. Null after READY was sent.
    std::unique_ptr<MoveFile> file;
    // The lease of the session. Null if the session was not created yet, or if an earlier daemon
    // has created it.
    LeaseRef lease;
    v1::SavedArrival arrival;
  };

  void take(const std::string& peer, const v1::PeerMove& move, std::string_view data);
  void say(const std::string& peer, const std::string& id, v1::PeerMove::Kind kind,
           std::uint64_t bytes = 0);
  void say_no(const std::string& peer, const std::string& id, v1::PeerMove::Kind kind,
              const core::Status& why);
  void meet(const std::string& peer);
  void lose(const std::string& peer, const core::Status& why);

  // ---- the source (moves_out.cc)
  core::Status may_leave(const Lease& lease, const std::string& peer) const;
  bool linked(const std::string& peer) const;
  void begin(Delayed move);
  void begin_delayed();
  void offer(const Request& request);
  void rest(const std::string& id);
  void rested(const std::string& id, const LeaseRef& lease,
              const core::Result<SnapshotFacts>& facts);
  void send_more(const std::string& id, Leaving& leaving);
  void commit(const std::string& id, const v1::PeerMove& ready);
  void committed(const std::string& id, const std::string& peer);
  void answer_ask(const std::string& id, const std::string& peer);
  // Ends a move whose session stays at this daemon.
  void give_up(std::string id, const core::Status& why, bool tell_peer);
  // Forgets the new addresses of sessions for whose moves `over` returns true.
  void forget_moves(const std::function<bool(const v1::SavedMove&)>& over);
  void forget_old();

  // ---- the target (moves_in.cc)
  core::Status may_come(const std::string& peer, const v1::PeerOffer& offer);
  core::Status has_way_in(const v1::PeerOffer& offer) const;
  void offered(const std::string& peer, const v1::PeerMove& move);
  void append(const std::string& peer, const v1::PeerMove& move, std::string_view data);
  core::Status make_ready(const std::string& id, Coming& coming, std::uint64_t bytes);
  void end_of_file(const std::string& peer, const v1::PeerMove& move);
  void arrive(const std::string& peer, const std::string& id);
  void drop(const std::string& id);
  core::Status take_in(const std::string& id, Coming& coming);

  Leases& leases_;
  Recovery& recovery_;
  const Auth& auth_;
  Peers* const peers_;
  const MoveOptions options_;
  // The records of moves. None if there is no state directory; then no session can be moved.
  const std::optional<MoveFiles> files_;

  // ---- used by tasks of worker_ only
  std::string address_, socket_;  // Addresses at which clients reach this daemon.
  std::set<std::string> met_;     // Names of the connected peers.
  std::vector<Delayed> delayed_;
  std::map<std::string, Leaving> leaving_;
  std::set<const Lease*> resting_;  // Sessions that are being paused.
  std::map<std::string, Coming> coming_;
  std::map<std::string, v1::SavedMove> moved_;

  core::Mutex mutex_;
  // Bytes of DATA messages that wait for the worker, by peer.
  std::map<std::string, std::uint64_t> waiting_ TT_GUARDED_BY(mutex_);
  bool stopping_ TT_GUARDED_BY(mutex_) = false;  // Whether new moves are refused.
  TaskThread worker_;  // Declared last, because its tasks use the other members.
};

}  // namespace teletensor::server
