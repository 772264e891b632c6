// QueueSink: passes the instructions of a session's front end to the queue of its back end, and
// answers to the client what needs no instruction. Belongs to the owner of the front end: only the
// thread that has the front end calls it, except for find_published(). It never waits.
//
// autograd::Sink documents the functions. An error that concerns the command alone, such as an
// upload that is missing, becomes a failed entry of the queue, so that the client gets a late
// error; a returned error means that the command is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/engine.h"
#include "engine/runtime/back/back.h"
#include "engine/runtime/publications.h"
#include "engine/session/bookkeeping.h"
#include "engine/session/downloads.h"
#include "engine/session/uploads.h"

namespace teletensor::session {

class QueueSink final : public autograd::Sink {
 public:
  // The objects of the session that the sink uses.
  struct Parts {
    runtime::Back& back;
    runtime::Publications& publications;
    Uploads& uploads;
    Downloads& downloads;
    Bookkeeping& bookkeeping;
    engine::SessionListener& listener;
  };
  // `user` is empty if the session may not share tensors; `max_published` bounds the names that it
  // publishes. `name` is empty or the session's name for display.
  QueueSink(const Parts& parts, std::string user, const std::string& name,
            std::uint64_t max_published);

  program::Instruction& instruction(std::uint64_t seq) override {
    return parts_.back.queue().instruction(seq);
  }
  program::Interner& interner() override { return parts_.back.queue().interner(); }
  core::Status constant(std::uint64_t seq, program::Constant constant,
                        program::ValueRef value) override;
  core::Status uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                        program::ValueRef value) override;
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand) override;
  runtime::FailureRef refused(std::uint64_t seq, const core::Status& status) override;
  void fetch_refused(std::uint64_t seq, bool bulk, const core::Status& status,
                     std::uint64_t root) override;
  void described(std::uint64_t seq, const core::Layout& layout, bool requires_grad) override;
  void taken(std::uint64_t fetch) override { parts_.downloads.give_up(fetch); }
  void publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
               program::ValueRef value) override;
  void published(std::uint64_t seq, const program::Published& published,
                 program::ValueRef value) override;
  void join(std::uint64_t seq, program::Join join) override;
  void leave(std::uint64_t seq, std::uint64_t group) override;
  core::Status call(std::uint64_t seq, program::Invocation invocation) override;
  std::size_t prepare(program::Template& repeated) override {
    const runtime::Executor& executor = parts_.back.executor();
    return runtime::TemplateRunner::prepare(repeated, executor.catalog(), executor.devices());
  }
  void repeat(std::unique_ptr<program::TemplateCall>&& call, std::uint64_t last_seq) override {
    parts_.back.queue().repeat(std::move(call), last_seq);
  }
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t root) override {
    return parts_.back.take_failed_rebinds(root);
  }
  void raised(std::uint64_t seq, std::uint64_t root,
              const std::vector<std::uint64_t>& rebinds) override {
    parts_.listener.on_raised({seq, root, rebinds});
  }

  // Continues a process group of an image.
  void restore_group(const program::Image::Group& group);
  // The publications that the session's user may open. Any thread.
  std::vector<runtime::Publications::Facts> find_published(std::string_view name) const;

 private:
  // The session as a rank of a group, with the functions by which the group reaches its listener.
  runtime::Groups::Join rank_of(program::Join as) const;
  runtime::Devices& devices() const { return parts_.back.executor().devices(); }

  const Parts parts_;
  const std::string user_;
  const std::string who_;  // names the session in error messages on other ranks
  const std::uint64_t max_published_;
};

}  // namespace teletensor::session
