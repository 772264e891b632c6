// Names is the table of a session's handles by id. Ids grow by one for each handle and are never
// used again, so that client and daemon agree on them without a message. Not thread-safe: used by
// the thread that uses the Front.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/autograd/graph.h"

namespace teletensor::autograd {

using program::HandleId;

// A chunked array, because ids grow by one. A chunk is freed with its last handle.
class Names {
 public:
  // The id that the next handle gets.
  HandleId next() const { return next_; }
  // The number of ids that have a handle.
  std::size_t alive() const { return alive_; }
  // The memory of the table in bytes, without the handles.
  std::size_t bytes() const {
    return live_chunks_ * sizeof(Chunk) + refused_.size() * kRefusedBytes;
  }
  // Sets the id of the next handle, unless it is larger already.
  void skip_to(HandleId next) { next_ = std::max(next_, next); }
  // Assigns the next ids to no handle.
  void skip(std::uint64_t count) {
    next_ += count;
    // The last chunk may have waited for a handle with one of these ids.
    const std::size_t last = chunks_.size();
    if (last > 0 && chunks_[last - 1] && chunks_[last - 1]->alive == 0 && is_over(last - 1)) {
      drop_chunk(last - 1);
    }
  }

  // Gives the next id to the handle and keeps it until remove().
  void add(HandleRef h) {
    const HandleId id = next_++;
    if (chunks_.empty()) first_ = id;
    while (id - first_ >= chunks_.size() * kChunk) chunks_.push_back(nullptr);
    auto& chunk = chunks_[(id - first_) / kChunk];
    if (!chunk) {
      chunk = std::make_unique<Chunk>();
      ++live_chunks_;
    }
    h->id = id;
    chunk->handles[(id - first_) % kChunk] = std::move(h);
    ++chunk->alive;
    ++alive_;
  }
  // Gives an assigned id to another handle. Precondition: find(id).
  void replace(HandleId id, HandleRef h) {
    h->id = id;
    chunks_[(id - first_) / kChunk]->handles[(id - first_) % kChunk] = std::move(h);
  }
  // Returns nullptr for an id that was never assigned or is released.
  Handle* find(HandleId id) const {
    if (id < first_ || id >= next_) return nullptr;
    const std::size_t at = (id - first_) / kChunk;
    if (at >= chunks_.size() || !chunks_[at]) return nullptr;
    return chunks_[at]->handles[(id - first_) % kChunk].get();
  }
  // The ids that have a handle, in ascending order.
  std::vector<HandleId> all() const {
    std::vector<HandleId> ids;
    const HandleId end = std::min<HandleId>(next_, first_ + chunks_.size() * kChunk);
    for (HandleId id = first_; id < end;) {
      if (!chunks_[(id - first_) / kChunk]) {
        id += kChunk - (id - first_) % kChunk;
      } else {
        if (find(id) != nullptr) ids.push_back(id);
        ++id;
      }
    }
    return ids;
  }
  // Restores the handle with this id, for a session that was saved elsewhere. Ids have to ascend.
  // Precondition: id >= next().
  void put(HandleId id, HandleRef h) {
    if (chunks_.empty()) first_ = next_ = id;
    next_ = id;
    add(std::move(h));
  }
  // Marks an assigned id as one of a command that was refused with this failure.
  using FailureRef = std::shared_ptr<const program::Failure>;
  void refuse(HandleId id, const FailureRef& failure) { refused_.emplace(id, failure); }
  // Returns null for an id that is not marked.
  FailureRef refusal(HandleId id) const {
    if (refused_.empty()) return nullptr;
    const auto found = refused_.find(id);
    return found == refused_.end() ? nullptr : found->second;
  }
  // Releases the handle of this id. Returns false if it has none.
  bool remove(HandleId id) {
    if (find(id) == nullptr) return false;
    if (!refused_.empty()) refused_.erase(id);
    auto& chunk = chunks_[(id - first_) / kChunk];
    chunk->handles[(id - first_) % kChunk] = nullptr;
    --alive_;
    if (--chunk->alive == 0) drop_chunk((id - first_) / kChunk);
    return true;
  }

 private:
  static constexpr std::size_t kChunk = 1024;
  // Memory of an entry of refused_: its node, a bucket, and what malloc adds.
  static constexpr std::size_t kRefusedBytes = 64;
  struct Chunk {
    std::array<HandleRef, kChunk> handles;
    std::size_t alive = 0;
  };
  // Returns true if all ids of the chunk are assigned.
  bool is_over(std::size_t at) const { return next_ - first_ >= (at + 1) * kChunk; }
  // Frees a chunk without handles, unless it will get more.
  void drop_chunk(std::size_t at) {
    if (at + 1 < chunks_.size() || is_over(at)) {
      chunks_[at].reset();
      --live_chunks_;
    }
    while (!chunks_.empty() && !chunks_.front() && next_ - first_ >= kChunk) {
      chunks_.erase(chunks_.begin());
      first_ += kChunk;
    }
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  HandleId first_ = 1, next_ = 1;
  std::size_t alive_ = 0;
  std::size_t live_chunks_ = 0;
  std::unordered_map<HandleId, FailureRef> refused_;
};

}  // namespace teletensor::autograd
