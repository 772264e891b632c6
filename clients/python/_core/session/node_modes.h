// NodeModes: the modes that concern what nodes of the tape record and save: checkpoints,
// saved_tensors_hooks and anomaly mode. It sets the callbacks of the tape for them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "clients/session/session.h"
#include "session/node_extra.h"
#include "session/saved_hooks.h"

namespace teletensor::client {

// Runs under the GIL. The modes belong to a session; frames and saved_tensors_hooks apply only to
// what their own thread records.
class NodeModes {
 public:
  // `session` has this object as a part.
  explicit NodeModes(Session& session) : session_(session) {}

  // Returns true if calls must be executed in order because of a checkpoint or of anomaly mode.
  bool in_order() const { return !frames_.empty() || marks_lines(); }

  // Between begin_frame() and end_frame(), nodes belong to the frame. In the `first` run of a
  // checkpointed function their saved values are dropped; in the second run the frame collects
  // them.
  void begin_frame(core::Ref<Frame> frame, bool first);
  void end_frame();

  // Adds saved_tensors_hooks of this thread, which apply to the values that nodes save from now on.
  void push_saved_hooks(SavedHooks::Hooks hooks);
  std::size_t saved_hooks() const { return saved_hooks_.size(); }
  // Removes the innermost hooks until `left` remain.
  void pop_saved_hooks(std::size_t left);

  // Sets anomaly mode: `site` returns the current source line, and `check` inspects the gradients
  // of a node. None turns each of them off.
  void set_anomaly(nb::object site, nb::object check);
  // Returns true if anomaly mode inspects gradients; anomaly_check() is then the function.
  bool checks_gradients() const { return anomaly_check_.is_valid() && !anomaly_check_.is_none(); }
  const nb::object& anomaly_check() const { return anomaly_check_; }

 private:
  struct OpenFrame {
    core::Ref<Frame> frame;
    bool first;  // Whether it is the first run of the checkpointed function.
    std::thread::id thread;
  };

  bool marks_lines() const { return anomaly_site_.is_valid() && !anomaly_site_.is_none(); }
  // Sets the callbacks of the tape after a change of the modes.
  void watch();

  Session& session_;
  SavedHooks saved_hooks_;
  std::vector<OpenFrame> frames_;  // Checkpoint frames in progress, innermost last.
  nb::object anomaly_site_, anomaly_check_;
};

}  // namespace teletensor::client
