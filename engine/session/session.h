// Session: one client's world. The front (names, tape) runs in the pump, the back (kernels) on
// lanes.
//
// The pump executes the commands of one frame at a time, on the thread that submitted it; where it
// has to wait (a full queue, a Raise) it returns, and the lane that ends the wait goes on with it.
// So no thread ever waits for kernels here, except the destructor.
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
#include "engine/runtime/back.h"
#include "engine/session/commons.h"
#include "engine/session/shares.h"

namespace teletensor::session {

class Session final : public engine::Session, private runtime::BackEvents, private autograd::Sink {
 public:
  static constexpr std::size_t kMostUploads = 256;     // begun and not yet bound
  static constexpr std::size_t kMostDownloads = 1024;  // asked for, bound or not
  // While an error waits to be raised, failures and what they could take back are remembered.
  static constexpr std::size_t kMostFailures = 1u << 20;
  static constexpr std::uint64_t kMostCommandsKept = 1u << 22;
  // What names, tape and queue cost is charged like tensors on the host, in steps, but for the
  // first few MiB. Where the account refuses, instructions fail; a client that adds names all the
  // same loses its session in the end.
  static constexpr std::uint64_t kFreeBookkeeping = 4u << 20;
  static constexpr std::uint64_t kBookkeepingStep = 1u << 20;
  static constexpr std::uint64_t kMostUnpaid = 256u << 20;
  // The same for a client beyond its limit of handles.
  static constexpr std::uint64_t kMostExcess = 1u << 18;

  // `owner` > 0 is unique in the process. The others outlive the session.
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
  void leave_groups(const std::string& why) override { back_.leave_groups(why); }
  void take_over(std::function<void(core::Result<engine::TakenOver>)> done) override;
  void snapshot(bool hold, std::function<void(core::Result<program::Image>)> done) override;
  void rest(std::function<void(core::Result<program::Image>)> done) override;
  void resume() override;
  engine::Rest come_to_rest(bool push) override;
  void stay_at_rest() override;
  // A session that has begun nothing becomes the one that the image was taken of. On failure it is
  // of no use.
  core::Status put_up(program::Image image, const engine::Engine::ReadBytes& read,
                      const Commons& commons);
  std::vector<engine::MemoryUse> memory() const override;
  void reset_peaks() override;
  std::uint64_t completed_upto() const override { return back_.completed_upto(); }
  std::size_t queued() const override { return back_.queued(); }
  double wait_seconds() const override { return back_.wait_seconds(); }
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
  // What the pump works on. Owned by whoever is the pump.
  struct Frame {
    std::uint64_t first_seq = 0;
    std::vector<program::Command> commands;
    std::size_t position = 0;  // of the next command; the ones before it are consumed
    std::function<void(core::Status)> done;
    bool thin = false;
    std::uint64_t consumed() const { return first_seq + position - 1; }  // seq
  };
  struct Upload {
    core::Mutex mu;
    core::Ref<memory::Storage> storage TT_GUARDED_BY(mu);
    std::uint64_t received TT_GUARDED_BY(mu) = 0;
    bool finished TT_GUARDED_BY(mu) = false;
    std::uint64_t bytes = 0;  // of the storage
  };
  using Uploads = std::map<std::uint64_t, std::shared_ptr<Upload>>;
  using Ready = std::function<void(core::Result<engine::Fetched>)>;
  struct Download {
    bool bound = false;  // the stream has come to its Fetch
    runtime::FetchResult result;
    Ready ready;  // waits until then
  };

  // The front is used by one thread at a time: the pump, and between two frames whoever tells it
  // what has run. Whoever gives it back looks again for progress that came meanwhile.
  bool try_take_front() { return !front_taken_.exchange(true, std::memory_order_acq_rel); }
  void give_front_back();
  void forget_completed();
  // Ends the wait of downloads for commands that have run by now and were no bulk fetches.
  void refuse_downloads(std::uint64_t completed);
  void pump();
  void pump_frame();
  bool consume_frame(core::Status& status);
  core::Status pump_one();
  bool may_meet(const program::Command& command) const;
  bool pause();
  void finish_frame(core::Status status) noexcept;
  void hand_over();
  void stand_still();
  void take_image() noexcept;
  core::Result<program::Image> make_image();
  void forget_upto(std::uint64_t completed);
  std::uint64_t bookkeeping() const { return front_.bookkeeping_bytes() + back_.queue_bytes(); }
  bool charge_bookkeeping();
  // Does the next command stay within the limits of handles and tape?
  bool handles_fit() const;
  bool within_limits() const {
    return handles_fit() && (limits_.tape_bytes == 0 || bookkeeping() <= limits_.tape_bytes);
  }
  core::Status beyond_limits() const;
  std::string names_and_tape() const;
  core::Status refuse_or_resume();
  memory::Pool& host_pool() const {
    return back_.executor().pool(static_cast<std::size_t>(devices_.find(core::Device{})));
  }
  core::Result<memory::Pool*> upload_pool(core::Device device);
  // Counts the bytes of an upload that begins, and says whose it is, by takeovers_; with that
  // begin_staged() makes it an upload, or gives the bytes back.
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
  program::Instruction& instruction(std::uint64_t seq) override { return back_.instruction(seq); }
  program::Interner& interner() override { return back_.interner(); }
  core::Status constant(std::uint64_t seq, program::Constant constant,
                        program::ValueRef value) override;
  // The bytes of a finished upload, which then is one no more.
  core::Result<core::Ref<memory::Storage>> take_upload(const program::Uploaded& uploaded,
                                                       std::uint64_t bytes);
  core::Status uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                        program::ValueRef value) override;
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand) override;
  void refused(std::uint64_t seq, const core::Status& status) override;
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
  const std::string user_;  // "": may not share
  const std::string name_;  // "" or for people
  const program::Amounts limits_;
  const memory::OwnerId owner_;
  engine::SessionListener* const listener_;
  std::atomic<bool> closing_{false};
  std::atomic<std::size_t> handles_{0};
  std::atomic<std::uint64_t> bookkeeping_{0};    // as it was last looked at
  std::atomic<std::uint64_t> accepted_upto_{0};  // seq of the last command of the last frame

  runtime::Back back_;
  std::atomic<bool> front_taken_{false};
  std::atomic<std::uint64_t> forgotten_{
      0};                       // the front was told that everything up to here has run
  autograd::Front front_;       // dies before the back, whose values it holds
  std::uint64_t charged_ = 0;   // for bookkeeping; of whoever has the front
  std::uint64_t programs_ = 0;  // as of the last frame; the pump's
  std::atomic<std::uint64_t> planned_ms_{0};  // as it was last looked at
  Frame frame_;                               // the pump's
  const std::shared_ptr<Shares> shares_ = std::make_shared<Shares>();

  mutable core::Mutex mu_;
  bool pumping_ TT_GUARDED_BY(mu_) = false;  // frame_ is being consumed
  std::uint64_t next_seq_ TT_GUARDED_BY(mu_) = 1;
  std::uint64_t next_id_ TT_GUARDED_BY(mu_) = 1;
  core::Status broken_ TT_GUARDED_BY(mu_);
  std::uint64_t takeovers_ TT_GUARDED_BY(mu_) = 0;
  std::uint64_t next_upload_ TT_GUARDED_BY(mu_) = 1;
  Uploads uploads_ TT_GUARDED_BY(mu_);
  std::uint64_t staged_ TT_GUARDED_BY(mu_) = 0;  // bytes of those, and of those that wait
  program::Amounts amounts_ TT_GUARDED_BY(mu_);  // the front's, when it last published
  std::map<std::uint64_t, Download> downloads_ TT_GUARDED_BY(mu_);
  std::function<void(core::Result<engine::TakenOver>)> successor_ TT_GUARDED_BY(mu_);  // waits
  // What the session does after a snapshot: it goes on, stands still for good, or until resume().
  enum class After : std::uint8_t { kGoOn, kHold, kRest };
  struct Picture {  // a snapshot that is wanted
    std::function<void(core::Result<program::Image>)> done;
    After after = After::kGoOn;
    std::uint64_t next_seq = 0;
  };
  void picture(After after, std::function<void(core::Result<program::Image>)> done);
  void go_on();
  Picture picture_ TT_GUARDED_BY(mu_);
  bool resting_ TT_GUARDED_BY(mu_) = false;
  // Until its groups are at rest, the session stops before each command, and goes on as far as
  // come_to_rest() allows: up to and with the next command that may have a collective.
  std::atomic<bool> stops_{false};
  bool may_go_ TT_GUARDED_BY(mu_) = false;
  bool paused_ TT_GUARDED_BY(mu_) = false;            // before a command of frame_
  std::uint64_t restored_at_ TT_GUARDED_BY(mu_) = 0;  // next_seq_ of the image; 0: there was none
  bool still_ TT_GUARDED_BY(mu_) = false;  // nothing is consumed; a frame that comes lies in frame_
  std::uint64_t forsaken_upto_ TT_GUARDED_BY(mu_) = 0;   // fetches that nobody asks for any more
  std::set<std::uint64_t> given_up_ TT_GUARDED_BY(mu_);  // bulk fetches that have not run yet
};

engine::Publication to_engine(runtime::Publications::Facts facts);

}  // namespace teletensor::session
