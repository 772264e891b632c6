// Moves: sessions that go to a peer, and those that come from one
// (docs/design/0020-moving-sessions.md).
//
// A move has a source and a target. The source offers the session (OFFER), and the target refuses
// it or has room (ACCEPT). Then the session stands still, its file is written and sent (DATA, END).
// The target writes the file, makes a session of it that no client finds yet, and says READY. Now
// the source writes a SavedMove: at that moment the session becomes the target's. The source tells
// its clients the new address, and says COMMIT until the target has said COMMITTED. Any failure
// before that moment leaves the session with the source, which resumes it; a target that was READY
// asks (ASK) when it meets the source again, and the answer is COMMIT or ABORT.
//
// Threads: one of its own does all the work; the public calls only leave it something to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/access/auth.h"
#include "server/peer/peers.h"
#include "server/state/move_files.h"
#include "server/state/recovery.h"

namespace teletensor::server {

struct MoveFacts {
  std::string address;      // where clients reach the session now
  std::uint64_t bytes = 0;  // of tensors
  double seconds = 0;       // that it stood still
};

struct MoveOptions {
  std::string version;             // of this daemon
  std::vector<std::string> from;   // peers whose sessions may come
  std::string advertise;           // where clients reach this daemon; "": where it listens
  bool anonymous = false;          // callers on loopback need no token
  bool certificate_users = false;  // client certificates name users
  bool socket_users = false;       // other users of this machine may come to the socket
};

// The byte order of this machine, in words.
std::string machine();

class Moves final : public MoveReceiver {
 public:
  using Done = std::function<void(const core::Result<MoveFacts>&)>;
  // What a caller asks for.
  struct Request {
    LeaseRef lease;
    std::string peer;
    std::chrono::milliseconds patience{0};  // while there is no connection to the peer
    std::function<bool()> wanted;           // asked while it waits; false: the caller has gone
    Done done;  // hears where the session is now, or why it has stayed here
  };

  // `peers` null: there are none. The others outlive it.
  Moves(Leases& leases, Recovery& recovery, const Auth& auth, Peers* peers, MoveOptions options);
  ~Moves() override;  // as stop()

  // Reads what an earlier daemon has written: restore() before the sessions are restored,
  // restored() afterwards.
  void restore();
  void restored();
  // Where the daemon listens; "" for none. Before peers start.
  void listens(const std::string& tcp, bool tls, const std::string& socket);
  void move(Request request);
  // Moves that are not decided end here, and no other one begins. Any number of times.
  void stop();

  // MoveReceiver
  void met(const std::string& peer) override;
  core::Status received(const std::string& peer, v1::PeerMove move, std::string data) override;
  void lost(const std::string& peer, const std::string& why) override;

 private:
  using Task = std::function<void()>;
  // A move that waits for a connection.
  struct Delayed {
    Request request;
    Clock::time_point until;
  };
  // A session that is to go.
  struct Leaving {
    enum class Phase : std::uint8_t { kOffered, kResting, kSending } phase = Phase::kOffered;
    LeaseRef lease;
    std::string peer;
    Done done;
    std::unique_ptr<MoveFile> file;
    std::uint64_t sent = 0, taken = 0;  // bytes of the file
    bool ended = false;                 // END is sent
    int tries = 0;                      // to bring it to rest
    std::uint64_t bytes = 0;            // of tensors
    Clock::time_point still;            // since when it stands still
  };
  // A session that comes.
  struct Coming {
    std::string peer;
    v1::PeerOffer offer;
    std::unique_ptr<MoveFile> file;  // null: READY has been said
    LeaseRef lease;                  // null: not made yet, or an earlier daemon has made it
    v1::SavedArrival arrival;
  };

  void post(Task task, std::chrono::milliseconds later = {});
  void run(const Task& task);
  void work();
  void take(const std::string& peer, const v1::PeerMove& move, std::string_view data);
  void say(const std::string& peer, const std::string& id, v1::PeerMove::Kind kind,
           std::uint64_t bytes = 0);
  void say_no(const std::string& peer, const std::string& id, v1::PeerMove::Kind kind,
              const core::Status& why);
  void meet(const std::string& peer);
  void lose(const std::string& peer, const core::Status& why);

  // ---- of the source (moves_out.cc)
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
  // The session stays.
  void give_up(std::string id, const core::Status& why, bool tell_peer);
  // Forgets where sessions have gone, of the moves for which `over` is true.
  void forget_moves(const std::function<bool(const v1::SavedMove&)>& over);
  void forget_old();

  // ---- of the target (moves_in.cc)
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
  const std::optional<MoveFiles> files_;  // none: nothing is kept, and no session moves

  // The worker's.
  std::string address_, socket_;  // where clients reach this daemon
  std::set<std::string> met_;     // peers
  std::vector<Delayed> delayed_;
  std::map<std::string, Leaving> leaving_;
  std::set<const Lease*> resting_;  // that are being brought to rest
  std::map<std::string, Coming> coming_;
  std::map<std::string, v1::SavedMove> moved_;

  core::Mutex mutex_;
  core::CondVar changed_;
  std::multimap<Clock::time_point, Task> tasks_ TT_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> waiting_ TT_GUARDED_BY(mutex_);  // bytes of DATA, by peer
  bool stopping_ TT_GUARDED_BY(mutex_) = false;                         // nothing begins any more
  bool over_ TT_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace teletensor::server
