// Tokens: who may call, kept in the state directory as hashes (SQLite, mode 0600).
//
// A token is 256 random bits; the file has its SHA-256, from which it cannot be found again (so
// many bits need no slow hash). A token is looked up by its hash, so what a guess differs in does
// not show in time. Another process may write the same file: every look-up asks the file.
// Thread-safe.
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
  std::string id;  // names it without being it
  std::string user;
  Role role = Role::kNobody;
  std::int64_t created = 0;  // UNIX seconds
  std::int64_t expires = 0;  // 0: never
  bool revoked = false;
};

struct NewToken {
  std::string id, secret;
};

class Tokens {
 public:
  static constexpr std::size_t kMax = 10'000;

  // `folder` "": none can be kept. The folder and the file are made with the first token.
  explicit Tokens(std::string folder);
  ~Tokens();
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;

  // Refuses names that do not fit into logs, the role kNobody, and a file that others can read.
  core::Result<NewToken> create(const std::string& user, Role role, std::int64_t lifetime_seconds);
  core::Result<std::vector<TokenFacts>> list();
  // NOT_FOUND where there is none. It is refused from the next call on.
  core::Status revoke(const std::string& id);

  // Who that is: nobody for what is unknown, expired or revoked. An error where the file fails.
  core::Result<std::optional<Caller>> find(std::string_view secret);
  // Tokens by their hashes, as another daemon knows them: what a user who moves there brings along.
  struct Hashed {
    std::string id, hash;
    std::int64_t created = 0, expires = 0;
  };
  // Those of the user that are good, at most `most`, whatever they allow beyond being the user.
  core::Result<std::vector<Hashed>> hashes_of(const std::string& user, std::size_t most);
  // Until disregard(): tokens that the file does not have count as the user's, with the role kUser.
  // Their session may arrive at any moment.
  void expect(const std::string& user, const std::vector<Hashed>& tokens);
  void disregard(const std::vector<Hashed>& tokens);
  // Adds those that are not known yet, revoked ones included, as the user's, with the role kUser.
  core::Status adopt(const std::string& user, const std::vector<Hashed>& tokens);

  // Is there one that is neither expired nor revoked?
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
  // By hash; one entry for each session that may arrive.
  std::multimap<std::string, Expected> expected_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
