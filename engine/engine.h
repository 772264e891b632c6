// The engine: start here. Everything that server/ may include.
//
// An Engine owns the devices of a box and the lanes that compute on them; a Session is one client's
// world on it: names, tape, memory account, queue. No gRPC, no Python.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/activity.h"
#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/amounts.h"
#include "engine/program/command.h"
#include "engine/program/image.h"
#include "engine/program/inventory.h"
#include "engine/program/timeline.h"
#include "engine/runtime/fabric.h"
#include "engine/runtime/group_facts.h"

namespace teletensor::engine {

// What is kept free on the host for the sessions of a user.
struct Guarantee {
  std::string user;
  std::uint64_t bytes = 0;
  std::uint64_t limit = 0;  // of what they have together, as SessionOptions::user_quota
};

struct EngineOptions {
  int lanes = 0;                          // worker threads; 0: one per core
  std::uint64_t host_memory = 0;          // bytes of all sessions; 0: 80 % of the box's memory
  int sim_devices = 0;                    // simulated devices "sim:0", ... for tests
  std::uint64_t sim_memory = 1ull << 30;  // bytes each
  bool sim_null = false;                  // they compute nothing (stream benchmarks)
  std::string cuda_driver;                // the library of the GPUs' driver; "": no GPUs
  std::string cuda_compiler;              // NVRTC's library; "": where it usually is
  std::uint64_t device_memory = 0;        // bytes on each GPU; 0: 90 % of what is free there
  double device_patience = 60;            // seconds until a GPU that answers nothing is lost
  std::string kernel_cache;               // folder of compiled kernels; "": none is kept
  // What there is to tell people, from any thread; `bad`: somebody should look.
  std::function<void(bool bad, const std::string& line)> log{};
  std::vector<Guarantee> guarantees{};  // of different users
  // Kept free on the host, an 8th of it at most, for sums of groups with ranks in other daemons.
  std::uint64_t group_memory = 0;
  // Memory that is short moves to files of so many bytes in this folder; 0: none.
  std::uint64_t disk_memory = 0;
  std::uint64_t user_disk_memory = 0;  // of one user's sessions; 0: no limit
  std::string disk_dir{};
};

struct SessionOptions {
  std::uint64_t memory_quota = 0;  // bytes on each device; 0: the device's whole budget
  std::string name;                // for people
  std::string user;                // whose share of the lanes it uses; "": one for all of these
  std::uint64_t user_quota = 0;    // bytes on each device of all the user's sessions; 0: no limit
  double weight = 1;               // of that share, where the user has no session yet
  bool publishes = true;           // may share tensors under the user's name
  program::Amounts limits = program::kUsualLimits;
};

// What moved between memory and disk, or between a device and the host, so far: bytes of tensors,
// of files, and the time it took.
struct Moved {
  std::uint64_t out = 0, in = 0, written = 0;
  std::uint64_t out_ns = 0, in_ns = 0;
  std::uint64_t failures = 0;  // files that could not be written or read
};

struct MemoryUse {
  core::Device device;
  std::uint64_t used = 0, peak = 0, quota = 0;
  std::uint64_t device_used = 0, device_total = 0;  // all sessions
  // Bytes of the device's tensors that have moved away: from a GPU to the host, or on to the disk.
  // Of the host: of all that are on the disk, the bytes of their files, and how many these may be
  // (0: nothing moves there).
  std::uint64_t away = 0, disk_used = 0, disk_quota = 0;
  // From the driver or the operating system, in use or kept for whoever needs it next.
  std::uint64_t device_held = 0;
  std::uint64_t locked = 0;  // of these page-locked, for copies from and to GPUs; the host's alone
  Moved moved{};             // by all sessions between a GPU and the host
};

// A GPU.
struct Accelerator {
  core::Device device;
  std::string model;   // "NVIDIA H100 80GB HBM3"
  int capability = 0;  // 90: 9.0
  int multiprocessors = 0;
  std::uint64_t memory = 0;  // bytes of the device, those of other programs included
};

// A tensor that sessions use together (docs/sharing.md).
struct Publication {
  std::uint64_t id = 0;
  std::string name, user;  // of the session that published it
  std::string users;       // who else may have it: names with spaces between them, "*": all
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  bool writable = false;  // by the others
  std::uint64_t bytes = 0;
  std::uint64_t common = 0, owner = 0;  // Common's

  bool open_to(std::string_view whom) const;
};

// The storage of publications, which several sessions have: what a snapshot says of it.
struct Common {
  std::uint64_t id = 0;  // program::Image::Storage::common; of no other one, in no life
  core::Device device;
  std::uint64_t bytes = 0;
  std::uint64_t writes = 0;  // how often it was written
  std::uint64_t owner = 0;   // program::Image::owner of the session that published it
  std::string user;          // who is charged
};

// A storage that a session is charged for.
struct Holding {
  core::Device device;
  std::uint64_t bytes = 0;
  std::uint64_t seq = 0;  // of the command that made it
  bool away = false;      // on the disk; of a GPU also on the host
  // Of the tensor that it was made for; none: it is no tensor's, or its shape is too long to note.
  std::optional<core::DType> dtype;
  core::Dims shape;
};

// An instruction that held a lane for long.
struct SlowOp {
  std::uint64_t seq = 0;
  std::string op;
  std::uint64_t ns = 0;  // without what others ran in between
};

// A late error on its way to the client.
struct LateError {
  std::uint64_t root = 0;  // seq of the command that failed
  core::Status status;
};

// Contents that a Fetch asked for.
struct Fetched {
  std::uint64_t seq = 0;  // of the Fetch
  core::Status status;    // the root's, where the value failed; then `root` names it
  std::uint64_t root = 0;
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  std::string bytes;  // row-major
};

// Memory of a session that other processes of this machine can map.
struct Shared {
  std::uint64_t id = 0;                 // for the session's later calls
  int descriptor = -1;                  // of a file; the caller's, who closes it
  std::uint64_t offset = 0, bytes = 0;  // in that file
  std::array<std::uint64_t, 2> gpu{};   // whose memory it is, by UUID (share_copy)
  std::shared_ptr<void> hold;           // the session holds the memory as long as this, any thread
};

// Effects of a Raise: the in-place commands that did not happen, so that the mirror takes them
// back.
struct Raised {
  std::uint64_t seq = 0;  // of the Raise
  std::uint64_t root = 0;
  std::vector<std::uint64_t> rebinds;  // seqs, ascending
};

// What a session tells its client; called from lanes and from submit(). Must not block or call back
// into the session.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  virtual void on_completed(std::uint64_t seq) = 0;  // everything up to seq has run; coalesced
  virtual void on_fetched(Fetched fetched) = 0;
  virtual void on_error(LateError error) = 0;  // each root once
  virtual void on_raised(Raised raised) = 0;
  virtual void on_slow(SlowOp) {}  // 50 ms or more
};

// How far a session is that comes to rest with its groups.
enum class Rest : std::uint8_t {
  kApart,  // it has no group, or has been asked for no snapshot
  kRuns,
  kExpects,  // other ranks need commands of it that its client has not sent
  kWaits,    // for other ranks, in what it has begun
  kRests,    // all that it has begun has ended
};

// Where the next client of a session begins.
struct TakenOver {
  std::uint64_t next_seq = 1;
  program::HandleId next_id = 1;
  program::Inventory inventory;
};

class Session {
 public:
  virtual ~Session() = default;
  // Executes commands in order: names and tape at once, kernels later. `first_seq` and `first_id`
  // must be what the session expects next, 1 and 1 at first (else FAILED_PRECONDITION, nothing
  // executed). An eager error
  // here means that the client's mirror disagreed or the client is hostile: the session is broken
  // from then on and every later call returns that Status. `done` is called once the commands are
  // consumed, before submit() returns or later from another thread: the caller gives no further
  // frame before (backpressure). A session that is destroyed meanwhile drops `done` uncalled.
  virtual void submit(std::uint64_t first_seq, std::uint64_t first_id,
                      std::vector<program::Command> commands,
                      std::function<void(core::Status)> done) = 0;

  // Bulk. Upload storage is admitted at begin (RESOURCE_EXHAUSTED before any byte travels); chunks
  // may come in any thread, in order of offset. An unfinished upload is freed by abort or with the
  // session.
  virtual core::Result<std::uint64_t> begin_upload(core::Device device, std::uint64_t bytes) = 0;
  // The same where begin_upload() has no room, but others' idle memory could be moved to the disk
  // first: `done` is called at once, or later from another thread, also when the session ends.
  virtual void admit_upload(core::Device device, std::uint64_t bytes,
                            std::function<void(core::Result<std::uint64_t>)> done) {
    done(begin_upload(device, bytes));
  }
  virtual core::Status upload_chunk(std::uint64_t upload, std::uint64_t offset,
                                    std::string_view bytes) = 0;
  virtual core::Status finish_upload(std::uint64_t upload) = 0;
  virtual void abort_upload(std::uint64_t upload) = 0;
  // The row-major bytes that a bulk Fetch bound to `seq`; `ready` runs once they exist (or failed).
  // They are then copied `into` by download_chunk and freed by end_download, or by the client's
  // command Taken. Who comes later takes the place of who waits: then, and with the session,
  // `ready` ends as CANCELLED.
  virtual void begin_download(std::uint64_t seq,
                              std::function<void(core::Result<Fetched>)> ready) = 0;
  virtual core::Status download_chunk(std::uint64_t seq, std::uint64_t offset,
                                      std::span<char> into) = 0;
  virtual void end_download(std::uint64_t seq) = 0;
  // Instead of its chunks: what a bulk Fetch bound to `seq` as memory that others may look at. It
  // never changes, and counts as held by the session, whoever has it. UNIMPLEMENTED where it is
  // no memory of the host, or too small; then chunks are the way.
  virtual core::Result<Shared> share_download(std::uint64_t) {
    return core::Status(core::Code::kUnimplemented, "this session shares no memory");
  }
  // Of a value on a GPU: a copy in memory of that GPU, which others may map and write to.
  // Waits for the copy. UNIMPLEMENTED on other devices.
  virtual core::Result<Shared> share_copy(std::uint64_t) {
    return core::Status(core::Code::kUnimplemented, "this session shares no memory");
  }
  // New zeroed memory that others may write to; what they write counts until the session goes to
  // another client.
  virtual core::Result<Shared> share_new(std::uint64_t) {
    return core::Status(core::Code::kUnimplemented, "this session shares no memory");
  }
  // As upload_chunk(), with bytes [from, from + bytes) of the memory `share` of share_new().
  virtual core::Status upload_shared(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                                     std::uint64_t) {
    return core::Status(core::Code::kUnimplemented, "this session shares no memory");
  }

  // Drops queued instructions (their results fail with CANCELLED) and asks running ones to stop.
  // `upto`: the last of them, which may not have come yet; 0: what has come.
  virtual void interrupt(std::uint64_t upto = 0) = 0;
  // Groups that the session is in end for all their ranks, because "rank n `why`".
  virtual void leave_groups(const std::string& why) { (void)why; }
  // A new client takes the session over, once the frame that came last is consumed; no frame comes
  // meanwhile. Named tensors stay, everything else that only the old client knew goes: handles,
  // history, uploads, downloads, answers to its fetches. What is queued runs. `done` may be called
  // at once, or later from another thread; with CANCELLED when the session is destroyed first.
  virtual void take_over(std::function<void(core::Result<TakenOver>)> done) {
    done(core::Status(core::Code::kUnimplemented, "this session cannot be taken over"));
  }
  // What the session is once the frame that came last is consumed and everything has run. The
  // image holds the bytes as they are then. `hold`: the session stands still from there on and
  // consumes nothing any more. `done` as take_over()'s; with ABORTED while another one waits.
  virtual void snapshot(bool hold, std::function<void(core::Result<program::Image>)> done) {
    (void)hold;
    done(core::Status(core::Code::kUnimplemented, "this session cannot be written down"));
  }
  // As snapshot(true), for a session that may go on here after all: it stands still until resume(),
  // or until it is taken over. FAILED_PRECONDITION for a session with a group, whose other ranks
  // would wait.
  virtual void rest(std::function<void(core::Result<program::Image>)> done) {
    done(core::Status(core::Code::kUnimplemented, "this session cannot be written down"));
  }
  // Where the session has groups, snapshot(true) takes its image when all sessions' groups are at
  // rest. come_to_rest() lets the session continue as far as other ranks need it, or by one command
  // with a collective where `push` is set and something in its groups is open, and says how far it
  // is. It is called again and again, by one thread.
  virtual Rest come_to_rest(bool push) {
    (void)push;
    return Rest::kApart;
  }
  // Takes the image. Precondition: come_to_rest() was kRests, and Engine::rest_groups() was true.
  virtual void stay_at_rest() {}
  // Ends rest(), if that has called `done` with an image. Any thread.
  virtual void resume() {}
  virtual std::vector<MemoryUse> memory() const = 0;
  // MemoryUse::peak begins again at what is used.
  virtual void reset_peaks() {}
  virtual std::uint64_t completed_upto() const = 0;
  virtual std::size_t queued() const = 0;  // instructions waiting
  // Until they have run, at the pace of those before them.
  virtual double wait_seconds() const = 0;
  virtual std::size_t handles() const = 0;
  // How much there is of what SessionOptions::limits bounds.
  virtual program::Amounts amounts() const { return {}; }
  virtual std::uint64_t lane_ns() const = 0;  // time of lanes used so far, all lanes together
  virtual std::size_t ahead() const = 0;      // sessions that wait for a lane and get it before
  // What this session's user may have under "name" or "user/name", and below it ("name/..."), by
  // name; empty: nothing.
  virtual std::vector<Publication> published(std::string_view name) const {
    (void)name;
    return {};
  }
  // The `most` largest storages, largest first.
  virtual std::vector<Holding> largest(std::size_t most) const = 0;
  // Records from now on what comes and runs, or stops; turning it on drops what was recorded.
  virtual void profile(bool) {}
  // The oldest `most` spans and arrivals recorded and not taken yet.
  virtual program::Timeline take_profile(std::size_t) { return {}; }
};

// How each op of the catalog runs on a GPU: its name, and "view" (nothing runs), "host" or the kind
// of its kernel there.
std::vector<std::pair<std::string, std::string>> gpu_paths();

class Engine {
 public:
  // Null, and `why`: the memory is less than what is guaranteed, or the folder for what moves to
  // the disk cannot be made.
  static std::unique_ptr<Engine> create(const EngineOptions& options, core::Status* why = nullptr);
  virtual ~Engine() = default;
  virtual const ops::Catalog& catalog() const = 0;
  virtual std::vector<core::Device> devices() const = 0;
  virtual int lanes() const { return 1; }  // worker threads that compute at once
  virtual std::vector<MemoryUse> memory() const = 0;
  virtual std::vector<Accelerator> accelerators() const { return {}; }
  // Of each of the accelerators.
  virtual std::vector<std::pair<core::Device, core::Activity>> activity() const { return {}; }
  virtual Moved moved() const { return {}; }
  virtual std::vector<Publication> publications() const { return {}; }
  virtual std::vector<runtime::GroupFacts> groups() { return {}; }
  // Brings all groups to rest on all daemons, so that they can go on after a restart of this one.
  // True: they are at rest, or have ended. Else it is called again. Precondition: no session here
  // that has groups is kRuns now.
  virtual bool rest_groups() { return true; }
  // Ends the groups that are not at rest, because "rank n `why`".
  virtual void end_moving_groups(const std::string& why) { (void)why; }
  // Gives memory of the host back to the operating system that no session has needed since the last
  // call. Called every few seconds.
  virtual void release_idle() {}
  // Groups may have ranks in other daemons from here on (see Fabric). The fabric outlives all
  // sessions. Null: the engine has no groups. Precondition: there is no session.
  virtual runtime::Fabric::Receiver* connect(runtime::Fabric& fabric) {
    (void)fabric;
    return nullptr;
  }
  // Not ok once a device is lost, with the cause; it stays so. Any thread.
  virtual core::Status health() const { return {}; }
  // The listener must outlive the session. Destroying a Session interrupts it, waits for its
  // running instruction, and gives all its memory back before it returns.
  virtual core::Result<std::unique_ptr<Session>> open(const SessionOptions& options,
                                                      SessionListener* listener) = 0;

  // Some of the bytes of a live image's storage. Any thread.
  virtual core::Status read_storage(const program::Image::Storage& storage, std::uint64_t offset,
                                    void* to, std::size_t bytes) {
    (void)storage, (void)offset, (void)to, (void)bytes;
    return core::Status(core::Code::kUnimplemented, "no storages here");
  }
  // The same of a common one, for the time of `act`: nobody writes to it meanwhile, until `act`
  // calls `done`.
  using Act = std::function<core::Status(const Common& facts, const std::function<void()>& done)>;
  virtual core::Status hold(const program::Image::Storage& storage, const Act& act) {
    (void)storage, (void)act;
    return core::Status(core::Code::kUnimplemented, "no storages here");
  }
  // How often publications() has changed.
  virtual std::uint64_t publications_changed() const { return 0; }
  // Gives the next bytes of a snapshot, those of one storage after the other. `lost` not OK: there
  // are no more of this storage, which could not be written, and why.
  using ReadBytes = std::function<core::Status(void* to, std::size_t bytes, core::Status& lost)>;
  // Before the first session: what earlier lives have written down. Numbers of sessions and of
  // publications begin with `first`, which is more than any that is restored.
  virtual void number_from(std::uint64_t first) { (void)first; }
  // A common storage, for the images that name it; `user_quota` as SessionOptions'. Whatever is not
  // restored is an error of each tensor that needs it.
  virtual core::Status restore_common(const Common& facts, std::uint64_t user_quota,
                                      const ReadBytes& read) {
    (void)facts, (void)user_quota, (void)read;
    return core::Status(core::Code::kUnimplemented, "nothing is restored here");
  }
  // A name of one of those, behind them.
  virtual void restore_publication(Publication publication) { (void)publication; }
  // Behind the last session: what nobody has taken goes.
  virtual void restored() {}
  // The session that an image was taken of, where it was. `options` as for open(). Fails where the
  // image makes no sense, its devices are not here, or the memory does not suffice.
  virtual core::Result<std::unique_ptr<Session>> restore(const SessionOptions& options,
                                                         SessionListener* listener,
                                                         program::Image image,
                                                         const ReadBytes& read) {
    (void)options, (void)listener, (void)image, (void)read;
    return core::Status(core::Code::kUnimplemented, "nothing is restored here");
  }
};

}  // namespace teletensor::engine
