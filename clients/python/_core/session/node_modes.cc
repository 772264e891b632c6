#include "session/node_modes.h"

#include <algorithm>
#include <utility>

#include "gil.h"

namespace teletensor::client {

using autograd::Node;

NodeExtra& extra_of(Node& node) {
  if (node.extra == nullptr) node.extra = core::Ref<core::Counted>(new NodeExtra);
  return *static_cast<NodeExtra*>(node.extra.get());
}

void NodeModes::watch() {
  autograd::Tape& tape = session_.graph().tape();
  tape.on_save = nullptr;
  tape.on_record = nullptr;
  if (saved_hooks_.size() > 0 && frames_.empty()) {
    tape.on_save = [this](Node& node) {
      std::vector<SavedHooks::Packing> packing;
      for (const Node::SavedSlot& slot : node.saved) packing.push_back(saved_hooks_.of(slot));
      if (std::none_of(packing.begin(), packing.end(),
                       [](const SavedHooks::Packing& each) { return each.pack.is_valid(); })) {
        return;
      }
      extra_of(node).packing = std::move(packing);
      session_.forgets().add(node);
    };
  }
  if (!frames_.empty()) {
    tape.on_save = [this](Node& node) {
      auto& [frame, first, thread] = frames_.back();
      // Operators of another thread do not belong to the frame.
      if (thread != std::this_thread::get_id()) return;
      if (!first) {
        frame->nodes.emplace_back(&node);
        return;
      }
      NodeExtra& extra = extra_of(node);
      extra.frame = frame;
      extra.index = frame->count++;
      session_.forgets().add(node);
    };
  }
  if (marks_lines()) {
    tape.on_record = [this](Node& node) {
      PyObject* site = call_python(anomaly_site_.ptr());
      const char* text = site && PyUnicode_Check(site) ? PyUnicode_AsUTF8(site) : nullptr;
      if (text != nullptr) extra_of(node).site = text;
      PyErr_Clear();
      Py_XDECREF(site);
    };
  }
}

void NodeModes::begin_frame(core::Ref<Frame> frame, bool first) {
  frames_.push_back({std::move(frame), first, std::this_thread::get_id()});
  watch();
}

void NodeModes::end_frame() {
  if (!frames_.empty()) frames_.pop_back();
  watch();
}

void NodeModes::push_saved_hooks(SavedHooks::Hooks hooks) {
  saved_hooks_.push(std::move(hooks));
  watch();
}

void NodeModes::pop_saved_hooks(std::size_t left) {
  saved_hooks_.pop(left);
  watch();
}

void NodeModes::set_anomaly(nb::object site, nb::object check) {
  anomaly_site_ = std::move(site);
  anomaly_check_ = std::move(check);
  session_.expand_backward = !anomaly_check_.is_none();
  watch();
}

}  // namespace teletensor::client
