// MoveFiles: what a daemon keeps of moving sessions in its state directory, beside the sessions'
// own files (state.proto: SavedMove, SavedArrival). All of it is safe on the disk when a call
// returns OK. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/tokens.h"
#include "server/state/store.h"

namespace teletensor::server {

// A file that is written or read in order.
class MoveFile {
 public:
  // RESOURCE_EXHAUSTED where the disk is full.
  static core::Result<std::unique_ptr<MoveFile>> make(const std::string& path);
  static core::Result<std::unique_ptr<MoveFile>> open(const std::string& path);
  ~MoveFile();
  MoveFile(const MoveFile&) = delete;
  MoveFile& operator=(const MoveFile&) = delete;

  std::uint64_t size() const { return size_; }
  core::Status append(std::string_view bytes);
  core::Status sync();
  // All of the bytes [at, at + bytes).
  core::Result<std::string> read(std::uint64_t at, std::size_t bytes);

 private:
  MoveFile(std::string path, int descriptor, std::uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  const std::string path_;
  const int descriptor_;
  std::uint64_t size_;
};

std::vector<Tokens::Hashed> tokens_of(const v1::SavedArrival& arrival);

class MoveFiles {
 public:
  explicit MoveFiles(const SessionStore& store) : store_(store) {}

  // Names of files for the move `id`.
  static std::string arriving(const std::string& id) { return id + ".arriving"; }
  static std::string session(const std::string& id) { return id.substr(0, 16) + ".session"; }

  core::Status save(const v1::SavedMove& move) const;
  core::Status save(const v1::SavedArrival& arrival) const;
  void forget_move(const std::string& id) const;
  // The arrival and what has come of it.
  void forget_arrival(const std::string& id) const;
  // The session's file becomes one of this daemon's sessions; again, it does nothing.
  core::Status take(const std::string& id) const;

  std::vector<v1::SavedMove> moves() const;
  // The arrivals whose file is whole. Removes incomplete files.
  std::vector<v1::SavedArrival> arrivals() const;

 private:
  const SessionStore& store_;
};

}  // namespace teletensor::server
