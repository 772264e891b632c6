// KeyStoreFile keeps one key-value store (server/rendezvous/key_stores.h) in the state directory,
// as a log of its changes. A change is written to the file before the call is answered, so a daemon
// that is killed loses no answered change. The file is not synced to the disk, so a machine that
// crashes may lose the last changes. Every record has a hash of its contents and position;
// everything after the first damaged record is cut off. Numbers are in native byte order. The file
// has mode 0600. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

class KeyStoreFile {
 public:
  struct Head {
    std::string user, name;
    std::uint64_t generation = 0;
  };
  enum class Kind : std::uint8_t { kHead, kSet, kAppend, kDelete, kNote };
  struct Change {
    Kind kind = Kind::kSet;
    // Number of the client's call that made this change, and the answer that it received. 0 means
    // that the call is not deduplicated.
    std::uint64_t client = 0, number = 0;
    std::int64_t answer = 0;
    std::string_view key, value;
  };
  using Visit = std::function<void(const Change&)>;

  // Creates the file and replaces an existing one.
  static core::Result<std::unique_ptr<KeyStoreFile>> create(const std::string& path,
                                                            const Head& head);
  // Calls `visit` for each change in the file, in order. Returns DATA_LOSS if the file has another
  // format.
  static core::Result<std::unique_ptr<KeyStoreFile>> load(const std::string& path, Head& head,
                                                          const Visit& visit);

  // Appends all changes or none. Returns UNAVAILABLE, or RESOURCE_EXHAUSTED if the disk is full;
  // the file is then unchanged.
  core::Status append(std::span<const Change> changes);
  // Replaces the contents of the file by these changes. The file is unchanged if that fails.
  core::Status replace(const Head& head, std::span<const Change> changes);
  void remove() const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  KeyStoreFile(std::string path, std::uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  std::uint64_t bytes_;  // Size of the complete records in bytes.
};

}  // namespace teletensor::server
