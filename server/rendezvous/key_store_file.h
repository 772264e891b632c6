// KeyStoreFile: one store (server/rendezvous/key_stores.h) in the state directory, as a log of its
// changes.
//
// A change is in the file before it is answered, so a daemon that is killed loses nothing that was
// answered; it is not synced to the disk, so a machine that crashes may lose the last changes.
// Every record has the hash of its contents and its place: what follows the first damaged one is
// cut off. Native byte order. The file is of mode 0600. One thread at a time.
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
    // The client's call that this was, and what it is answered; 0: none in particular.
    std::uint64_t client = 0, number = 0;
    std::int64_t answer = 0;
    std::string_view key, value;
  };
  using Visit = std::function<void(const Change&)>;

  // Makes the file, in the place of one that is there.
  static core::Result<std::unique_ptr<KeyStoreFile>> create(const std::string& path,
                                                            const Head& head);
  // Visits the changes of a file in their order. DATA_LOSS where it is no such file.
  static core::Result<std::unique_ptr<KeyStoreFile>> load(const std::string& path, Head& head,
                                                          const Visit& visit);

  // All of them, or none: UNAVAILABLE or RESOURCE_EXHAUSTED (the disk is full), and the file is as
  // before.
  core::Status append(std::span<const Change> changes);
  // These changes, from the first on, in the place of all that the file has. Where that fails the
  // file is as before.
  core::Status replace(const Head& head, std::span<const Change> changes);
  void remove() const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  KeyStoreFile(std::string path, std::uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  std::uint64_t bytes_;  // of whole records
};

}  // namespace teletensor::server
