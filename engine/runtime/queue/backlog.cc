#include "engine/runtime/queue/backlog.h"

#include <utility>

namespace teletensor::runtime {

void Backlog::add(Chunk* first, Chunk* last) {
  (first_ == nullptr ? first_ : last_->next) = first;
  last_ = last;
}

Chunk* Backlog::replace_front(Chunk* chunk) {
  Chunk* const emptied = pop();
  scanned_ += chunk->size();
  boundary_ = chunk->size();
  split_ = true;
  if (scan_ == nullptr) {
    scan_ = chunk;
    scan_at_ = chunk->filled();
  }
  chunk->next = first_;
  first_ = chunk;
  if (last_ == nullptr) last_ = chunk;
  return emptied;
}

void Backlog::clear() {
  while (first_ != nullptr) delete std::exchange(first_, first_->next);
  last_ = scan_ = nullptr;
}

void Backlog::end_window() {
  boundary_ = scanned_;
  since_mark_ = 0;
}

bool Backlog::scan() {
  while (boundary_ == 0) {
    if (scan_ == nullptr) {
      scan_ = first_;
      scan_at_ = scan_ == nullptr ? 0 : scan_->taken();
    } else if (scan_at_ == scan_->filled() && scan_->next != nullptr) {
      scan_ = scan_->next;
      scan_at_ = scan_->taken();
    }
    if (scan_ == nullptr || scan_at_ == scan_->filled()) return false;
    const Entry& entry = scan_->entry(scan_at_);
    // RULE: a Fetch or a Call must see complete values, so a window ends before it. Collectives run
    // in the same order on all ranks, so a window must not reorder them.
    const bool run = entry.kind == Entry::Kind::kRun;
    const bool alone = entry.kind == Entry::Kind::kFetch || entry.kind == Entry::Kind::kCall ||
                       entry.kind == Entry::Kind::kGroup || entry.kind == Entry::Kind::kTemplate ||
                       (run && catalog_.at(entry.instruction.op).collective);
    if (alone && scanned_ > 0) {
      end_window();
      break;
    }
    ++scan_at_;
    ++scanned_;
    ++since_mark_;
    const bool mark = alone || (run && !catalog_.at(entry.instruction.op).mutates.empty());
    if (mark || since_mark_ >= kWindowEntries) end_window();
  }
  return true;
}

void Backlog::list(std::size_t size, std::vector<Entry*>& entries) const {
  entries.clear();
  Chunk* chunk = first_;
  for (std::size_t at = chunk->taken(); entries.size() < size; ++at) {
    while (at == chunk->filled()) {
      chunk = chunk->next;
      at = chunk->taken();
    }
    entries.push_back(&chunk->entry(at));
  }
}

}  // namespace teletensor::runtime
