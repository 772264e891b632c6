// Session: the state and the execution of one client's commands. Its front end (names and tape)
// runs in the frame consumer; its back end (kernels) runs on lanes.
//
// Functions of engine::Session, which documents them, are called by threads of the server, and
// those of BackEvents by lanes; both at any time. The mutex guards the numbers of the next frame, a
// waiting take-over and a requested snapshot, which depend on one another: each of them may begin
// only while no frame is consumed. It is not held during a call of the listener or of `done`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "engine/runtime/back/back.h"
#include "engine/session/bookkeeping.h"
#include "engine/session/downloads.h"
#include "engine/session/frame_consumer.h"
#include "engine/session/queue_sink.h"
#include "engine/session/restored_storages.h"
#include "engine/session/shares.h"
#include "engine/session/uploads.h"

namespace teletensor::session {

class Session final : public engine::Session,
                      private runtime::BackEvents,
                      private FrameConsumer::Session {
 public:
  // If the account has no room for the reports that the client has not read, beyond this number of
  // bytes, the fetch of a further value fails.
  static constexpr std::uint64_t kFreeUnread = 8u << 20;

  // `owner` > 0 is unique in the process. The other arguments must outlive the session.
  Session(const ops::Catalog& catalog, runtime::Devices& devices, runtime::Lanes& lanes,
          runtime::Publications& publications, memory::OwnerId owner,
          const engine::SessionOptions& options, engine::SessionListener* listener,
          runtime::Tiers* tiers = nullptr, runtime::Groups* groups = nullptr);
  ~Session() override;

  void submit(std::uint64_t first_seq, std::uint64_t first_id,
              std::vector<program::Command> commands, std::function<void(core::Status)> done,
              bool thin = false) override;

  engine::Uploads& uploads() override { return uploads_; }
  engine::Downloads& downloads() override { return downloads_; }

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
  engine::Load load() const override;
  std::size_t handles() const override { return consumer_.handles(); }
  program::Amounts amounts() const override;
  std::vector<engine::Holding> largest(std::size_t most) const override;
  std::vector<engine::Publication> published(std::string_view name) const override;
  void profile(bool on) override { back_.profile().turn(on); }
  program::Timeline take_profile(std::size_t most) override { return back_.profile().take(most); }

  const runtime::Back& back() const { return back_; }

 private:
  // The action after a snapshot: continue, pause for good (the daemon ends), or pause until
  // resume().
  enum class After : std::uint8_t { kGoOn, kHold, kRest };
  struct Picture {  // a requested snapshot
    std::function<void(core::Result<program::Image>)> done;
    After after = After::kGoOn;
    std::uint64_t next_seq = 0;
  };

  // During a pause nothing is consumed; a submitted frame waits in the consumer. resume() ends the
  // pause kResting.
  enum class Pause : std::uint8_t { kNone, kSnapshot, kResting };

  // Lets a client that has called take_over() have the session, if no frame is being consumed.
  void give_to_successor();
  // Requests a snapshot. `done` receives ABORTED if another one is pending.
  void picture(After after, std::function<void(core::Result<program::Image>)> done);
  bool stays_apart() const TT_REQUIRES(mu_);
  void pause_for_snapshot();
  void take_image() noexcept;
  core::Result<program::Image> make_image();
  void go_on();
  runtime::Devices& devices() const { return back_.executor().devices(); }

  // BackEvents
  void on_completed(std::uint64_t seq) override;
  void on_fetched(runtime::FetchResult result) override;
  void on_failed(const program::Failure& root) override;
  void on_slow(std::uint64_t seq, program::OpId op, std::uint64_t ns) override;
  void on_continue() override;
  bool on_moving(std::unordered_set<const void*>& kept) override;
  // FrameConsumer::Session
  void on_consumed(core::Status status, program::HandleId next_id,
                   std::function<void(core::Status)> done) override;

  const runtime::Lanes& lanes_;
  const runtime::Publications& publications_;
  const memory::OwnerId owner_;
  engine::SessionListener* const listener_;
  std::atomic<std::uint64_t> accepted_upto_{0};  // seq of the last command of the last frame

  runtime::Back back_;
  const std::shared_ptr<Shares> shares_ = std::make_shared<Shares>();
  Uploads uploads_;
  Downloads downloads_;
  QueueSink sink_;
  autograd::Front front_;  // destroyed before the back end, whose values it refers to
  Bookkeeping bookkeeping_;
  FrameConsumer consumer_;

  mutable core::Mutex mu_;
  bool consuming_ TT_GUARDED_BY(mu_) = false;  // a frame is being consumed, or pause_
  // The numbers of the next frame.
  struct Next {
    std::uint64_t seq = 1, id = 1;
    std::uint64_t restored = 0;  // `seq` of the restored image; 0: the session was not restored
  };
  Next next_ TT_GUARDED_BY(mu_);
  core::Status broken_ TT_GUARDED_BY(mu_);
  // A waiting take_over().
  std::function<void(core::Result<engine::TakenOver>)> successor_ TT_GUARDED_BY(mu_);
  Picture pending_snapshot_ TT_GUARDED_BY(mu_);
  Pause pause_ TT_GUARDED_BY(mu_) = Pause::kNone;
};

engine::Publication to_engine(runtime::Publications::Facts facts);

}  // namespace teletensor::session
