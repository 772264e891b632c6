// Backlog: the entries of a session's queue that the session task has taken over but not run,
// divided into windows.
//
// A window ends after an optimizer step, before a Fetch, a Call and a collective, and after
// kWindowEntries entries, so that a training loop repeats the same windows. A repetition of a
// template is a window by itself.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/ops/op.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

// Used by the session task; empty() and chunks() also by other threads while no thread runs it.
class Backlog {
 public:
  static constexpr std::size_t kWindowEntries = 256;

  explicit Backlog(const ops::Catalog& catalog) : catalog_(catalog) {}
  ~Backlog() { clear(); }
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  // Appends a list of chunks, none of them empty. The last one is the end of the list.
  void add(Chunk* first, Chunk* last);
  bool empty() const { return first_ == nullptr; }
  // The list of chunks, none of them empty; null if there are no entries.
  Chunk* chunks() const { return first_; }
  // Precondition of front() and pop(): not empty.
  Entry& front() const { return first_->front(); }
  // Removes the front entry. Returns its chunk if that has no further entries; otherwise null.
  // Precondition: the entry was scanned.
  Chunk* pop();
  // Replaces the front entry by those of a chunk, which is not empty. Returns like pop().
  // Precondition: the front entry is a window by itself.
  Chunk* replace_front(Chunk* chunk);
  void clear();

  // Scans up to the end of the front window. Returns false if that needs more entries.
  bool scan();
  // The number of entries of the front window that are known.
  std::size_t window() const { return boundary_ > 0 ? boundary_ : scanned_; }
  // Returns true if the end of the front window is known, and none of its entries were removed or
  // split off.
  bool whole() const { return boundary_ > 0 && !split_; }
  // Makes whole() false for the rest of the front window.
  void split() { split_ = true; }
  // Replaces the list by the first `size` entries, which must have been scanned.
  void list(std::size_t size, std::vector<Entry*>& entries) const;

 private:
  void end_window();

  const ops::Catalog& catalog_;
  Chunk* first_ = nullptr;
  Chunk* last_ = nullptr;
  Chunk* scan_ = nullptr;  // null: the scan begins at the front
  std::size_t scan_at_ = 0;
  std::size_t scanned_ = 0;     // number of entries that were scanned and not removed
  std::size_t boundary_ = 0;    // number of these in the front window; 0: not known yet
  std::size_t since_mark_ = 0;  // entries scanned since the last mark
  bool split_ = false;
};

inline Chunk* Backlog::pop() {
  first_->pop();
  --scanned_;
  if (boundary_ > 0 && --boundary_ == 0) split_ = false;
  if (!first_->empty()) return nullptr;
  if (scan_ == first_) scan_ = nullptr;
  Chunk* const emptied = std::exchange(first_, first_->next);
  if (first_ == nullptr) last_ = nullptr;
  return emptied;
}

}  // namespace teletensor::runtime
