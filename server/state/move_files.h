// MoveFiles keeps the records of moving sessions in the state directory, beside the session files
// (state.proto: SavedMove, SavedArrival). When a call returns OK, its data is durable. One thread
// at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/tokens.h"
#include "server/state/store.h"

namespace teletensor::server {

// A file that is written or read sequentially.
class MoveFile {
 public:
  // Creates or opens a file. RESOURCE_EXHAUSTED if the disk is full.
  static core::Result<std::unique_ptr<MoveFile>> make(const std::string& path);
  static core::Result<std::unique_ptr<MoveFile>> open(const std::string& path);
  ~MoveFile();
  MoveFile(const MoveFile&) = delete;
  MoveFile& operator=(const MoveFile&) = delete;

  std::uint64_t size() const { return size_; }
  core::Status append(std::string_view bytes);
  core::Status sync();
  // Reads the range [at, at + bytes); a shorter result is an error.
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

  // Names of the received file and of the session file for the move `id`.
  static std::string arriving(const std::string& id) { return id + ".arriving"; }
  static std::string session(const std::string& id) { return id.substr(0, 16) + ".session"; }

  core::Status save(const v1::SavedMove& move) const;
  core::Status save(const v1::SavedArrival& arrival) const;
  void forget_move(const std::string& id) const;
  // Removes the record of an arrival and the data received for it.
  void forget_arrival(const std::string& id) const;
  // Turns the received file into one of this daemon's session files. Has no effect if that was done
  // before.
  core::Status take(const std::string& id) const;

  std::vector<v1::SavedMove> moves() const;
  // Returns the arrivals whose file is complete, and removes incomplete files.
  std::vector<v1::SavedArrival> arrivals() const;

 private:
  const SessionStore& store_;
};

}  // namespace teletensor::server
