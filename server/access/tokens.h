// Tokens stores the access tokens as hashes in the state directory (SQLite, mode 0600).
// A token has 256 random bits. The file has its SHA-256 hash, from which the token cannot be
// recovered; with so many bits no slow hash is needed. A token is looked up by its hash, so the
// time of a look-up reveals nothing about the token. Another process may write to the same file, so
// every look-up reads the file. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/mutex.h"
#include "server/access/rights.h"

struct sqlite3;

namespace teletensor::server {

struct TokenFacts {
  std::string id;  // Public identifier of the token, which is not its secret.
  std::string user;
  Role role = Role::kNobody;
  std::int64_t created = 0;  // Time of creation in seconds since the UNIX epoch.
  // Time of expiry in seconds since the UNIX epoch. 0 if the token never expires.
  std::int64_t expires = 0;
  bool revoked = false;
};

struct NewToken {
  std::string id, secret;
};

class Tokens {
 public:
  static constexpr std::size_t kMax = 10'000;

  // With an empty `folder`, no tokens can be stored. The folder and the file are created with the
  // first token.
  explicit Tokens(std::string folder);
  ~Tokens();
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;

  // Creates a token. Refuses user names that are unsuitable for logs, the role kNobody, and a file
  // that other users can read.
  core::Result<NewToken> create(const std::string& user, Role role, std::int64_t lifetime_seconds);
  core::Result<std::vector<TokenFacts>> list();
  // Revokes a token; calls with it are refused from then on. NOT_FOUND if it does not exist.
  core::Status revoke(const std::string& id);

  // Looks up a token. Returns no caller if it is unknown, expired or revoked, and an error if the
  // file cannot be read.
  core::Result<std::optional<Caller>> find(std::string_view secret);
  // Hashes of tokens that another daemon has sent for a user whose session is moved.
  struct Hashed {
    std::string id, hash;
    std::int64_t created = 0, expires = 0;
  };
  // Hashes of the user's valid tokens, at most `most`, regardless of their roles.
  core::Result<std::vector<Hashed>> hashes_of(const std::string& user, std::size_t most);
  // Until disregard(), accepts these tokens for the user with the role kUser even if they are not
  // in the file, because a session of the user may arrive at any moment.
  void expect(const std::string& user, const std::vector<Hashed>& tokens);
  void disregard(const std::vector<Hashed>& tokens);
  // Adds the tokens that are not in the file yet, for the user with the role kUser. A revoked token
  // in the file stays revoked.
  core::Status adopt(const std::string& user, const std::vector<Hashed>& tokens);

  // Returns true if there is a token that is neither expired nor revoked.
  core::Result<bool> any();

 private:
  struct Expected {
    std::string user;
    std::int64_t expires = 0;
  };

  core::Status open(bool make) TT_REQUIRES(mutex_);
  std::optional<Caller> expected(const std::string& hash) const TT_REQUIRES(mutex_);

  const std::string folder_;
  core::Mutex mutex_;
  sqlite3* db_ TT_GUARDED_BY(mutex_) = nullptr;
  // Tokens that expect() has added, by hash; one entry for each session that may arrive.
  std::multimap<std::string, Expected> expected_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
