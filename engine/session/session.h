// Session: the state and the execution of one client's commands. Its front end (names and tape)
// runs in the frame consumer; its back end (kernels) runs on lanes.
//
// The frame consumer executes the commands of one frame at a time, on the thread that submitted it.
// If it must wait (for room in the queue, or for a Raise), it returns, and the lane that ends the
// wait continues the frame. Hence no thread except the destructor's ever waits for kernels here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "engine/runtime/back/back.h"
#include "engine/session/charge.h"
#include "engine/session/restored_storages.h"
#include "engine/session/shares.h"

namespace teletensor::session {

class Session final : public engine::Session, private runtime::BackEvents, private autograd::Sink {
 public:
  // Maximum number of uploads that have begun and are not yet bound by a command.
  static constexpr std::size_t kMaxUploads = 256;
  // Maximum number of requested downloads, whether or not their Fetch has run.
  static constexpr std::size_t kMaxDownloads = 1024;
  // While an error waits for its Raise, later failures and the values that the Raise could restore
  // are kept, up to these limits.
  static constexpr std::size_t kMaxFailures = 1u << 20;
  static constexpr std::uint64_t kMaxCommandsKept = 1u << 22;
  // The memory of names, tape, queue, late errors and programs is charged to the host's account
  // (charge.h). If the account refuses, instructions fail. A client that still adds names or
  // programs breaks its session once the overdraft does not cover them.
  static constexpr std::uint64_t kFreeBookkeeping = Charge::kFree;
  // Reports that the client has not read are charged likewise, with a delay. If the account has no
  // room for what exceeds this number, the fetch of a further value fails.
  static constexpr std::uint64_t kFreeUnread = 8u << 20;
  // The excess over the limits of handles and of tape at which the session is broken.
  static constexpr std::uint64_t kMaxExcess = 1u << 18, kMaxTapeExcess = 256u << 20;

  // `owner` > 0 is unique in the process. The other arguments must outlive the session.
  Session(const ops::Catalog& catalog, runtime::Devices& devices, runtime::Lanes& lanes,
          runtime::Publications& publications, memory::OwnerId owner,
          const engine::SessionOptions& options, engine::SessionListener* listener,
          runtime::Tiers* tiers = nullptr, runtime::Groups* groups = nullptr);
  ~Session() override;

  void submit(std::uint64_t first_seq, std::uint64_t first_id,
              std::vector<program::Command> commands, std::function<void(core::Status)> done,
              bool thin = false) override;

  core::Result<std::uint64_t> begin_upload(core::Device device, std::uint64_t bytes) override;
  void admit_upload(core::Device device, std::uint64_t bytes,
                    std::function<void(core::Result<std::uint64_t>)> done) override;
  core::Status upload_chunk(std::uint64_t upload, std::uint64_t offset,
                            std::string_view bytes) override;
  core::Status finish_upload(std::uint64_t upload) override;
  void abort_upload(std::uint64_t upload) override;
  void begin_download(std::uint64_t seq,
                      std::function<void(core::Result<engine::Fetched>)> ready) override;
  core::Status download_chunk(std::uint64_t seq, std::uint64_t offset,
                              std::span<char> into) override;
  void end_download(std::uint64_t seq) override;
  core::Result<engine::Shared> share_download(std::uint64_t seq) override;
  core::Result<engine::Shared> share_copy(std::uint64_t seq) override;
  core::Result<engine::Shared> share_new(std::uint64_t bytes) override;
  core::Status upload_shared(std::uint64_t upload, std::uint64_t offset, std::uint64_t share,
                             std::uint64_t from, std::uint64_t bytes) override;

  void interrupt(std::uint64_t upto) override;
  void leave_groups(const std::string& why) override { back_.groups().end_all(why); }
  void take_over(std::function<void(core::Result<engine::TakenOver>)> done) override;
  void snapshot(bool hold, std::function<void(core::Result<program::Image>)> done) override;
  void rest(std::function<void(core::Result<program::Image>)> done) override;
  void resume() override;
  engine::Rest come_to_rest(bool push) override;
  engine::Rest stop_here() override;
  bool may_stay() override;
  void stay_at_rest() override;
  // Restores the session from an image. Precondition: the session is new. If this fails, the
  // session must not be used.
  core::Status restore_contents(program::Image image, const engine::Engine::ReadBytes& read,
                                const RestoredStorages& restored);
  std::vector<engine::MemoryUse> memory() const override;
  void reset_peaks() override;
  std::uint64_t completed_upto() const override { return back_.completed_upto(); }
  std::size_t queued() const override { return back_.load().entries(); }
  double wait_seconds() const override { return back_.load().wait_seconds(); }
  std::size_t handles() const override { return handles_.load(std::memory_order_relaxed); }
  program::Amounts amounts() const override;
  std::uint64_t lane_ns() const override { return lanes_.used_ns(back_); }
  std::size_t ahead() const override { return lanes_.ahead_of(back_); }
  std::vector<engine::Holding> largest(std::size_t most) const override;
  std::vector<engine::Publication> published(std::string_view name) const override;
  void profile(bool on) override { back_.profile().turn(on); }
  program::Timeline take_profile(std::size_t most) override { return back_.profile().take(most); }

  const runtime::Back& back() const { return back_; }

 private:
  // The frame that is being consumed. Owned by the thread that is the frame consumer.
  struct Frame {
    std::uint64_t first_seq = 0;
    std::vector<program::Command> commands;
    std::size_t position = 0;  // index of the next command; the earlier ones are consumed
    std::function<void(core::Status)> done;
    bool thin = false;  // The frame is a thin client's.
    // Seq of the last consumed command.
    std::uint64_t consumed() const { return first_seq + position - 1; }
  };
  struct Upload {
    core::Mutex mu;
    core::Ref<memory::Storage> storage TT_GUARDED_BY(mu);
    std::uint64_t received TT_GUARDED_BY(mu) = 0;
    bool finished TT_GUARDED_BY(mu) = false;
    std::uint64_t bytes = 0;  // size of the storage
  };
  using Uploads = std::map<std::uint64_t, std::shared_ptr<Upload>>;
  using Ready = std::function<void(core::Result<engine::Fetched>)>;
  struct Download {
    bool bound = false;  // its Fetch was executed
    runtime::FetchResult result;
    Ready ready;  // called when the Fetch was executed
  };

  // Takes the exclusive use of the front end, which belongs to one thread at a time: the frame
  // consumer, or between frames a thread that reports progress to it. After give_front_back(), that
  // thread checks again for progress that happened meanwhile.
  bool try_take_front() { return !front_taken_.exchange(true, std::memory_order_acq_rel); }
  void give_front_back();
  void forget_completed();
  // Refuses downloads that wait for commands which have run by now and were no bulk fetches.
  void refuse_downloads(std::uint64_t completed);
  void pump();
  void run_frame_consumer();
  bool consume_frame(core::Status& status);
  core::Status consume_command();
  bool may_meet(const program::Command& command) const;
  bool pause();
  void finish_frame(core::Status status) noexcept;
  void give_to_successor();
  void pause_for_snapshot();
  void take_image() noexcept;
  core::Result<program::Image> make_image();
  void forget_upto(std::uint64_t completed);
  std::uint64_t bookkeeping() const { return front_.bookkeeping_bytes() + back_.load().bytes(); }
  // The memory that is charged: bookkeeping, late errors, programs and their plans, and what waits
  // for the client.
  std::uint64_t chargeable() const {
    return bookkeeping() + back_.failures().bytes() + front_.totals().memory +
           back_.queue().planned().bytes() + listener_->unread_bytes();
  }
  bool charge_bookkeeping();
  // Returns true if the next command stays within the limits of handles and tape.
  bool handles_fit() const;
  bool within_limits() const {
    return handles_fit() && (limits_.tape_bytes == 0 || bookkeeping() <= limits_.tape_bytes);
  }
  core::Status beyond_limits() const;
  core::Status refuse_or_resume();
  core::Status beyond_the_overdraft(const core::Status& refused, std::uint64_t unpaid) const;
  memory::Pool& host_pool() const {
    return back_.executor().pool(static_cast<std::size_t>(devices_.find(core::Device{})));
  }
  core::Result<memory::Pool*> upload_pool(core::Device device);
  // Counts the bytes of an upload before it begins, and returns the number of the current client
  // (takeovers_). begin_staged() then creates the upload, or subtracts the bytes again.
  core::Result<std::uint64_t> stage(std::uint64_t bytes);
  core::Result<std::uint64_t> begin_staged(memory::Pool& pool, std::uint64_t bytes,
                                           std::uint64_t client,
                                           core::Ref<memory::Storage> storage);
  std::shared_ptr<Upload> find_upload(std::uint64_t id) const;
  core::Result<runtime::FetchResult> find_download(std::uint64_t seq) const;

  // BackEvents
  void on_completed(std::uint64_t seq) override;
  void on_fetched(runtime::FetchResult result) override;
  void on_failed(const program::Failure& root) override;
  void on_slow(std::uint64_t seq, program::OpId op, std::uint64_t ns) override;
  void on_continue() override;
  bool on_moving(std::unordered_set<const void*>& kept) override;
  // Sink
  program::Instruction& instruction(std::uint64_t seq) override {
    return back_.queue().instruction(seq);
  }
  program::Interner& interner() override { return back_.queue().interner(); }
  core::Status constant(std::uint64_t seq, program::Constant constant,
                        program::ValueRef value) override;
  // Takes the bytes of a finished upload and removes the upload.
  core::Result<core::Ref<memory::Storage>> take_upload(const program::Uploaded& uploaded,
                                                       std::uint64_t bytes);
  core::Status uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                        program::ValueRef value) override;
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand) override;
  runtime::FailureRef refused(std::uint64_t seq, const core::Status& status) override;
  void fetch_refused(std::uint64_t seq, bool bulk, const core::Status& status,
                     std::uint64_t root) override;
  void described(std::uint64_t seq, const core::Layout& layout, bool requires_grad) override;
  void taken(std::uint64_t fetch) override;
  void publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
               program::ValueRef value) override;
  void published(std::uint64_t seq, const program::Published& published,
                 program::ValueRef value) override;
  void join(std::uint64_t seq, program::Join join) override;
  void leave(std::uint64_t seq, std::uint64_t group) override;
  std::string who() const;
  core::Status call(std::uint64_t seq, program::Invocation invocation) override;
  void count_planned();
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t root) override;
  void raised(std::uint64_t seq, std::uint64_t root,
              const std::vector<std::uint64_t>& rebinds) override;

  const ops::Catalog& catalog_;
  runtime::Devices& devices_;
  const runtime::Lanes& lanes_;
  const runtime::Publications& publications_;
  const std::string user_;  // empty: the session may not share
  const std::string name_;  // empty or a name for display
  const program::Amounts limits_;
  const memory::OwnerId owner_;
  engine::SessionListener* const listener_;
  std::atomic<bool> closing_{false};
  std::atomic<std::size_t> handles_{0};
  std::atomic<std::uint64_t> bookkeeping_{0};    // bytes at the last check
  std::atomic<std::uint64_t> accepted_upto_{0};  // seq of the last command of the last frame

  runtime::Back back_;
  std::atomic<bool> front_taken_{false};
  std::atomic<std::uint64_t> forgotten_{
      0};                       // the front end knows that all commands up to here have run
  autograd::Front front_;       // destroyed before the back end, whose values it refers to
  Charge charge_;               // belongs to the owner of the front end
  std::uint64_t programs_ = 0;  // at the last frame; used by the frame consumer only
  std::atomic<std::uint64_t> planned_ms_{0};  // at the last check
  Frame frame_;                               // used by the frame consumer only
  const std::shared_ptr<Shares> shares_ = std::make_shared<Shares>();

  mutable core::Mutex mu_;
  bool consuming_ TT_GUARDED_BY(mu_) = false;  // frame_ is being consumed
  std::uint64_t next_seq_ TT_GUARDED_BY(mu_) = 1;
  std::uint64_t next_id_ TT_GUARDED_BY(mu_) = 1;
  core::Status broken_ TT_GUARDED_BY(mu_);
  std::uint64_t takeovers_ TT_GUARDED_BY(mu_) = 0;
  std::uint64_t next_upload_ TT_GUARDED_BY(mu_) = 1;
  Uploads uploads_ TT_GUARDED_BY(mu_);
  // Bytes of all uploads, including those that wait for memory.
  std::uint64_t staged_ TT_GUARDED_BY(mu_) = 0;
  // The front end's counts when it last published them.
  program::Amounts amounts_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Download> downloads_ TT_GUARDED_BY(mu_);
  // A waiting take_over().
  std::function<void(core::Result<engine::TakenOver>)> successor_ TT_GUARDED_BY(mu_);
  // The action after a snapshot: continue, pause for good, or pause until resume().
  enum class After : std::uint8_t { kGoOn, kHold, kRest };
  struct Picture {  // a requested snapshot
    std::function<void(core::Result<program::Image>)> done;
    After after = After::kGoOn;
    std::uint64_t next_seq = 0;
  };
  void picture(After after, std::function<void(core::Result<program::Image>)> done);
  void go_on();
  Picture pending_snapshot_ TT_GUARDED_BY(mu_);
  bool resting_ TT_GUARDED_BY(mu_) = false;
  // While stops_ is set, the session pauses before each command, and continues only as far as
  // come_to_rest() allows: through the next command that may contain a collective.
  std::atomic<bool> stops_{false};
  bool may_go_ TT_GUARDED_BY(mu_) = false;
  bool paused_ TT_GUARDED_BY(mu_) = false;  // before a command of frame_
  // The frame consumer waits for the back end before a command of frame_.
  bool blocked_ TT_GUARDED_BY(mu_) = false;
  // next_seq_ of the restored image; 0: the session was not restored.
  std::uint64_t restored_at_ TT_GUARDED_BY(mu_) = 0;
  bool still_ TT_GUARDED_BY(mu_) = false;  // nothing is consumed; a submitted frame waits in frame_
  // The commands up to this one belong to earlier clients, whose fetches are never downloaded.
  std::uint64_t abandoned_upto_ TT_GUARDED_BY(mu_) = 0;
  // Bulk fetches that were acknowledged before they ran.
  std::set<std::uint64_t> given_up_ TT_GUARDED_BY(mu_);
};

engine::Publication to_engine(runtime::Publications::Facts facts);

}  // namespace teletensor::session
