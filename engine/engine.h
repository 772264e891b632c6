// The public interface of the engine, through which server/ opens and uses sessions.
//
// An Engine owns the devices of a machine and the worker threads (lanes) that compute on them. A
// Session holds the state of one client: its named values, its autograd tape, its memory accounts
// and its queue of commands. The engine depends neither on gRPC nor on Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/activity.h"
#include "engine/program/amounts.h"
#include "engine/program/command.h"
#include "engine/program/image.h"
#include "engine/program/inventory.h"
#include "engine/program/timeline.h"
#include "engine/runtime/groups/fabric.h"
#include "engine/runtime/groups/group_facts.h"
#include "engine/transfers.h"

namespace teletensor::engine {

// Memory of the host that is reserved for the sessions of one user.
struct Guarantee {
  std::string user;
  std::uint64_t bytes = 0;
  // Maximum of all the user's sessions together, like SessionOptions::user_quota.
  std::uint64_t limit = 0;
};

struct EngineOptions {
  int lanes = 0;                          // worker threads; 0: one per core
  std::uint64_t host_memory = 0;          // bytes for all sessions; 0: 80 % of the machine's memory
  int sim_devices = 0;                    // simulated devices "sim:0", ... for tests
  std::uint64_t sim_memory = 1ull << 30;  // bytes of each simulated device
  // Simulated devices compute nothing (for benchmarks of the command stream).
  bool sim_null = false;
  std::string cuda_driver;          // path of the GPU driver's library; empty: no GPUs are used
  std::string cuda_compiler;        // path of NVRTC's library; empty: the usual place
  std::uint64_t device_memory = 0;  // bytes on each GPU; 0: 90 % of what is free there
  double device_patience = 60;      // seconds without an answer after which a GPU counts as lost
  std::string kernel_cache;         // folder of the cache of compiled kernels; empty: no cache
  // Receives lines for the operator's log, from any thread. `bad` marks lines that report a
  // problem.
  std::function<void(bool bad, const std::string& line)> log{};
  std::vector<Guarantee> guarantees{};  // at most one for each user
  // Bytes of the host reserved for reductions of groups that have ranks in other daemons; at most
  // an eighth of the host's memory is reserved.
  std::uint64_t group_memory = 0;
  // Maximum total size of the files in `disk_dir` to which tensors are moved when memory is short;
  // 0: tensors are never moved to disk.
  std::uint64_t disk_memory = 0;
  std::uint64_t user_disk_memory = 0;  // maximum for all sessions of one user; 0: no limit
  std::string disk_dir{};
};

struct SessionOptions {
  std::uint64_t memory_quota = 0;  // bytes on each device; 0: the device's whole budget
  std::string name;                // for display
  // The user whose share of the lanes the session uses; sessions without a user have one share
  // together.
  std::string user;
  std::uint64_t user_quota = 0;  // maximum on each device for all sessions of the user; 0: no limit
  double weight = 1;      // weight of the user's share, used if the user has no other session yet
  bool publishes = true;  // the session may share tensors under the user's name
  program::Amounts limits = program::kUsualLimits;
  bool templates = true;  // instructions that the client repeats run together
};

// Totals of the transfers between memory and disk, or between a device and the host, since the
// start: bytes of tensors, bytes of files, and the time spent.
struct Moved {
  std::uint64_t out = 0, in = 0, written = 0;
  std::uint64_t out_ns = 0, in_ns = 0;
  std::uint64_t failures = 0;  // number of files that could not be written or read
};

struct MemoryUse {
  core::Device device;
  std::uint64_t used = 0, peak = 0, quota = 0;
  std::uint64_t device_used = 0, device_total = 0;  // all sessions
  // Bytes of the session's tensors that are not on this device now: for a GPU, tensors that were
  // moved to the host or on to the disk; for the host, tensors on the disk. `disk_used` is the size
  // of the files on the disk and `disk_quota` their maximum (0: no disk is used); both are set for
  // the host only.
  std::uint64_t away = 0, disk_used = 0, disk_quota = 0;
  // Bytes obtained from the driver or the operating system, in use or cached for later allocations.
  std::uint64_t device_held = 0;
  // The page-locked part of device_held (for copies to and from GPUs); host only.
  std::uint64_t locked = 0;
  Moved moved{};  // transfers of all sessions between a GPU and the host
};

// Properties of a GPU.
struct Accelerator {
  core::Device device;
  std::string model;   // "NVIDIA H100 80GB HBM3"
  int capability = 0;  // compute capability times 10: 90 means 9.0
  int multiprocessors = 0;
  std::uint64_t memory = 0;  // memory of the device, including what other programs use
};

// A tensor that several sessions use together (docs/sharing.md).
struct Publication {
  std::uint64_t id = 0;
  std::string name, user;  // the publication's name and the user who published it
  std::string users;       // users that may also open it: names separated by spaces; "*": all users
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  bool writable = false;  // sessions other than the publisher's may write to it
  std::uint64_t bytes = 0;
  std::uint64_t common = 0, owner = 0;  // SharedStorage::id and SharedStorage::owner

  bool open_to(std::string_view whom) const;
};

// A storage shared by several sessions through publications, as it is described in a snapshot.
struct SharedStorage {
  // The same as program::Image::Storage::common; never reused, not even after a restart.
  std::uint64_t id = 0;
  core::Device device;
  std::uint64_t bytes = 0;
  std::uint64_t writes = 0;  // number of writes so far
  std::uint64_t owner = 0;   // program::Image::owner of the session that published it
  std::string user;          // the user whose quota it counts against
};

// A storage that a session is charged for.
struct Holding {
  core::Device device;
  std::uint64_t bytes = 0;
  std::uint64_t seq = 0;  // seq of the command that created it
  bool away = false;      // moved to the disk, or from a GPU to the host
  // The dtype and shape of the tensor that the storage was allocated for. No dtype: the storage
  // belongs to no tensor, or the shape was too long to record.
  std::optional<core::DType> dtype;
  core::Dims shape;
};

// An instruction that occupied a lane for a long time.
struct SlowOp {
  std::uint64_t seq = 0;
  std::string op;
  std::uint64_t ns = 0;  // running time, without the time in which other sessions ran in between
};

// A deferred error that is reported to the client after its command was accepted.
struct LateError {
  std::uint64_t root = 0;  // seq of the command that failed
  core::Status status;
};

// The result of a Raise command: lists the in-place commands that did not take effect, so that the
// client undoes them in its own record.
struct Raised {
  std::uint64_t seq = 0;  // seq of the Raise command
  std::uint64_t root = 0;
  std::vector<std::uint64_t> rebinds;  // seqs of the in-place commands, ascending
};

// A rank without which an elastic group of the session continues.
struct LostRank {
  std::uint64_t group = 0;  // the session's number of the group
  std::uint32_t rank = 0;
  std::string why;  // follows "rank n " in a sentence
};

// Receives a session's events for its client. The functions are called from lanes and from
// submit(); they must not block or call the session.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // All commands up to seq have run; events are coalesced.
  virtual void on_completed(std::uint64_t seq) = 0;
  virtual void on_fetched(Fetched fetched) = 0;
  virtual void on_error(LateError error) = 0;  // at most once for each root
  virtual void on_raised(Raised raised) = 0;
  virtual void on_rank_lost(LostRank) {}
  virtual void on_slow(SlowOp) {}  // called for instructions of 50 ms or more
  // The memory of events that the client has not read, in bytes; charged to the session.
  virtual std::uint64_t unread_bytes() const { return 0; }
  // Returns true if a client is connected to the session. Any thread; it must not call the engine.
  virtual bool has_client() const { return true; }
};

// The progress of a session while all groups are brought to rest for a snapshot.
enum class Rest : std::uint8_t {
  kApart,  // the session has no group, or no snapshot was requested
  kRuns,
  kExpects,  // other ranks need commands that the session's client has not sent yet
  kWaits,    // the session's current operations wait for other ranks
  kRests,    // all operations that the session began have ended
};

// The state from which a new client continues a session.
struct TakenOver {
  std::uint64_t next_seq = 1;
  program::HandleId next_id = 1;
  program::Inventory inventory;
};

// The work that a session has given to the lanes.
struct Load {
  std::size_t queued = 0;  // number of waiting instructions
  // Estimated seconds until they have run, from the speed of the earlier ones.
  double wait_seconds = 0;
  std::uint64_t lane_ns = 0;  // time used so far, summed over all lanes
  std::size_t ahead = 0;      // number of sessions that wait for a lane and will be served earlier
  // The number of commands so far that were recognised as repetitions and ran together.
  std::uint64_t repeated = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  // Executes commands in order. Names and tape change at once; kernels run later. `first_seq` and
  // `first_id` must be the numbers that the session expects next, initially 1 and 1; otherwise the
  // call fails with FAILED_PRECONDITION and executes nothing. An eager error means that the
  // client's record of the session disagrees with the session, or that the client is hostile: the
  // session is then broken, and every later call returns that status. `done` is called once the
  // commands are consumed, either before submit() returns or later from another thread; the caller
  // must not submit the next frame before that (backpressure). If the session is destroyed first,
  // `done` is never called. With `thin` the client has no mirror: a refused command becomes a late
  // error on the ids that it declares, and the session continues.
  virtual void submit(std::uint64_t first_seq, std::uint64_t first_id,
                      std::vector<program::Command> commands,
                      std::function<void(core::Status)> done, bool thin = false) = 0;

  // The transfers of large values.
  virtual Uploads& uploads() = 0;
  virtual Downloads& downloads() = 0;

  // Drops queued instructions, whose results fail with CANCELLED, and asks running ones to stop.
  // Applies to all commands up to `upto`, including those not yet received; 0: to all received
  // commands.
  virtual void interrupt(std::uint64_t upto = 0) = 0;
  // Ends all groups that the session belongs to, for all their ranks, with the reason "rank n
  // `why`".
  virtual void leave_groups(const std::string& why) { (void)why; }
  // Lets a new client take over the session, once the last submitted frame is consumed; no frame
  // may be submitted until then. Named tensors stay. Everything that only the old client could
  // refer to is dropped: handles, history, uploads, downloads, and replies to its fetches. Queued
  // instructions still run. `done` may be called at once, or later from another thread; it receives
  // CANCELLED if the session is destroyed first.
  virtual void take_over(std::function<void(core::Result<TakenOver>)> done) {
    done(core::Status(core::Code::kUnimplemented, "this session cannot be taken over"));
  }
  // Takes a snapshot of the session after the last submitted frame is consumed and everything has
  // run. The image refers to the bytes as they are at that time. With `hold`, the session is paused
  // from then on and consumes nothing more. `done` is called like that of take_over(), and with
  // ABORTED if another snapshot is pending.
  virtual void snapshot(bool hold, std::function<void(core::Result<program::Image>)> done) {
    (void)hold;
    done(core::Status(core::Code::kUnimplemented, "this session does not support snapshots"));
  }
  // Like snapshot(true), for a session that may continue in this process: it is paused until
  // resume() or take_over() is called. `done` receives FAILED_PRECONDITION if the session has a
  // group, because the other ranks would have to wait.
  virtual void rest(std::function<void(core::Result<program::Image>)> done) {
    done(core::Status(core::Code::kUnimplemented, "this session does not support snapshots"));
  }
  // For sessions with groups, snapshot(true) takes its image only when the groups of all sessions
  // are at rest. come_to_rest() lets the session continue as far as other ranks need it and returns
  // its progress. With `push`, it also runs one command that contains a collective, if an operation
  // of its groups is incomplete. It is called repeatedly, by one thread.
  virtual Rest come_to_rest(bool push) {
    (void)push;
    return Rest::kApart;
  }
  // Lets the session begin no further command, for an image with what waits for other ranks.
  // Returns kRuns, kRests, kApart, or kWaits if the session stops before an instruction, or will.
  virtual Rest stop_here() { return Rest::kApart; }
  // Returns true if an image can contain all that waits. Precondition: stop_here() returned kWaits.
  virtual bool may_stay() { return true; }
  // Takes the image. Precondition: come_to_rest() returned kRests and Engine::rest_groups()
  // returned true; or after Engine::hold_groups() returned true, stop_here() returned neither kRuns
  // nor kApart.
  virtual void stay_at_rest() {}
  // Ends the pause of rest(), if rest() called `done` with an image. Lets a restored session begin
  // with what it had left to run. Any thread.
  virtual void resume() {}
  virtual std::vector<MemoryUse> memory() const = 0;
  // Sets MemoryUse::peak to the current use.
  virtual void reset_peaks() {}
  virtual std::uint64_t completed_upto() const = 0;
  virtual Load load() const = 0;
  virtual std::size_t handles() const = 0;
  // Current values of the quantities that SessionOptions::limits bounds.
  virtual program::Amounts amounts() const { return {}; }
  // The publications that this session's user may open under the given "name" or "user/name", and
  // below that name ("name/..."), sorted by name; empty if there are none.
  virtual std::vector<Publication> published(std::string_view name) const {
    (void)name;
    return {};
  }
  // The largest storages, at most `most`, in descending order of size.
  virtual std::vector<Holding> largest(std::size_t most) const = 0;
  // Starts or stops recording which commands arrive and which instructions run; starting discards
  // the earlier records.
  virtual void profile(bool) {}
  // Removes and returns the oldest recorded spans and arrivals, at most `most`.
  virtual program::Timeline take_profile(std::size_t) { return {}; }
};

// How each operator of the catalog runs on a GPU: pairs of its name and "view" (nothing runs),
// "host", or the kind of its GPU kernel.
std::vector<std::pair<std::string, std::string>> gpu_paths();

class Engine {
 public:
  // Returns null and sets `why` if the memory is smaller than the guarantees, or if the folder for
  // spilled tensors cannot be created.
  static std::unique_ptr<Engine> create(const EngineOptions& options, core::Status* why = nullptr);
  virtual ~Engine() = default;
  virtual const ops::Catalog& catalog() const = 0;
  virtual std::vector<core::Device> devices() const = 0;
  virtual int lanes() const { return 1; }  // number of worker threads that compute in parallel
  virtual std::vector<MemoryUse> memory() const = 0;
  virtual std::vector<Accelerator> accelerators() const { return {}; }
  // The activity of each accelerator.
  virtual std::vector<std::pair<core::Device, program::Activity>> activity() const { return {}; }
  virtual Moved moved() const { return {}; }
  virtual std::vector<Publication> publications() const { return {}; }
  virtual std::vector<runtime::GroupFacts> groups() { return {}; }
  // Brings all groups to rest on all daemons, so that they can continue after a restart of this
  // daemon. Returns true if all groups are at rest or have ended; otherwise it must be called
  // again. Precondition: no session of this daemon that has groups is kRuns now.
  virtual bool rest_groups() { return true; }
  // Ends the groups that are not at rest, with the reason "rank n `why`".
  virtual void end_moving_groups(const std::string& why) { (void)why; }
  // Lets no group change any more, although collectives are open, or ends the groups for which this
  // is not possible, with the reason "rank n `why`". Returns false if groups with ranks in other
  // daemons are not held yet; it must be called again then.
  virtual bool hold_groups(const std::string& why) {
    (void)why;
    return true;
  }
  // Returns host memory to the operating system that no session has needed since the last call.
  // Called every few seconds.
  virtual void release_idle() {}
  // Enables groups with ranks in other daemons (see Fabric). The fabric must outlive all sessions.
  // Returns null if the engine has no groups. Precondition: no session exists.
  virtual runtime::Fabric::Receiver* connect(runtime::Fabric& fabric) {
    (void)fabric;
    return nullptr;
  }
  // Returns an error with the cause once a device is lost; the error is permanent. Any thread.
  virtual core::Status health() const { return {}; }
  // Returns true if all lanes compute, so that a new instruction may have to wait. Any thread.
  virtual bool busy() const { return false; }
  // The listener must outlive the session. Destroying a Session interrupts it, waits for its
  // running instruction, and frees all its memory before returning.
  virtual core::Result<std::unique_ptr<Session>> open(const SessionOptions& options,
                                                      SessionListener* listener) = 0;

  // Reads a part of a storage that a live image refers to. Any thread.
  virtual core::Status read_storage(const program::Image::Storage& storage, std::uint64_t offset,
                                    void* to, std::size_t bytes) {
    (void)storage, (void)offset, (void)to, (void)bytes;
    return core::Status(core::Code::kUnimplemented, "this engine cannot read storages");
  }
  // Like read_storage(), for a storage shared by several sessions: calls `act` while no session can
  // write to the storage. Writes are allowed again when `act` calls `done`. While it waits for the
  // sessions that use the storage, it calls `check` several times a second, and ends with its
  // error.
  using Act =
      std::function<core::Status(const SharedStorage& facts, const std::function<void()>& done)>;
  using Check = std::function<core::Status()>;
  virtual core::Status hold(const program::Image::Storage& storage, const Check& check,
                            const Act& act) {
    (void)storage, (void)check, (void)act;
    return core::Status(core::Code::kUnimplemented, "this engine cannot read storages");
  }
  // Number of changes of publications() so far.
  virtual std::uint64_t publications_changed() const { return 0; }
  // Supplies the next bytes of a snapshot, one storage after another. If `lost` is set to an error,
  // the rest of this storage is missing because it could not be written, for the reason given.
  using ReadBytes = std::function<core::Status(void* to, std::size_t bytes, core::Status& lost)>;
  // Prepares the restoration of what earlier runs of the daemon saved; called before the first
  // session is created. The numbers of new sessions and publications begin with `first`, which must
  // exceed all restored ones.
  virtual void number_from(std::uint64_t first) { (void)first; }
  // Restores a shared storage for the images that refer to it. `user_quota` is that of
  // SessionOptions. Every tensor that needs a storage which is not restored is an error value.
  virtual core::Status restore_common(const SharedStorage& facts, std::uint64_t user_quota,
                                      const ReadBytes& read) {
    (void)facts, (void)user_quota, (void)read;
    return core::Status(core::Code::kUnimplemented, "this engine does not support restoring");
  }
  // Restores a publication of a shared storage; called after restore_common().
  virtual void restore_publication(Publication publication) { (void)publication; }
  // Ends the restoration, after the last session: frees shared storages that no session uses.
  virtual void restored() {}
  // Recreates the session from which an image was taken. `options` is used as in open(). Fails if
  // the image is invalid, its devices are missing, or the memory does not suffice.
  virtual core::Result<std::unique_ptr<Session>> restore(const SessionOptions& options,
                                                         SessionListener* listener,
                                                         program::Image image,
                                                         const ReadBytes& read) {
    (void)options, (void)listener, (void)image, (void)read;
    return core::Status(core::Code::kUnimplemented, "this engine does not support restoring");
  }
};

}  // namespace teletensor::engine
