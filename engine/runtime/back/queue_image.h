// QueueImage: the part of a session's queue that has not run because it waits for other ranks, as
// it is stored in a snapshot.
//
// Each entry is stored as a program of one step, so that the reader of a file, which is not
// trusted, can verify it as it verifies any program.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/image.h"
#include "engine/program/program.h"
#include "engine/program/value.h"
#include "engine/runtime/back/open_collectives.h"
#include "engine/runtime/programs/program_run.h"
#include "engine/runtime/queue/queue.h"
#include "engine/runtime/queue/queue_writer.h"

namespace teletensor::runtime {

class QueueImage {
 public:
  // The parts of an image that exist only there: the values are alive until the image is complete.
  struct NotRun {
    std::vector<program::ValueRef> values;
    std::vector<std::unique_ptr<ProgramRun::Left>> calls;
  };
  // Returns the index of a value in an image.
  using IndexOf = std::function<program::Image::Index(const program::Value&)>;

  QueueImage(const ops::Catalog& catalog, const OpenCollectives& collectives)
      : catalog_(catalog), collectives_(collectives) {}

  // Returns the open collectives and the entries of these lists of chunks, in the order of their
  // commands. Without `index_of`, it only checks whether an image can contain them, and returns
  // UNIMPLEMENTED if not. Precondition: nothing of the session runs or changes.
  core::Result<std::vector<program::Image::Entry>> entries(std::initializer_list<Chunk*> lists,
                                                           const IndexOf& index_of,
                                                           NotRun& parts) const;
  // Appends these entries to the queue of a new session. INVALID_ARGUMENT if the image is
  // inconsistent.
  core::Status restore(const std::vector<program::Image::Entry>& entries,
                       const std::vector<program::ValueRef>& values, QueueWriter& queue) const;

 private:
  struct SavedEntry;
  std::vector<SavedEntry> left(std::initializer_list<Chunk*> lists, NotRun& parts) const;
  void restore_entry(const program::Image::Entry& saved, program::Program& read,
                     const std::vector<program::ValueRef>& values, QueueWriter& queue) const;

  const ops::Catalog& catalog_;
  const OpenCollectives& collectives_;
};

}  // namespace teletensor::runtime
