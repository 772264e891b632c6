#include "server/access/tokens.h"

#include <openssl/sha.h>
#include <sqlite3.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "server/base/os/private_files.h"
#include "server/base/os/users.h"
#include "server/base/secrets.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

// A fixed prefix, so that secret scanners find tokens in repositories.
constexpr std::string_view kPrefix = "tt_";
constexpr std::size_t kSecretBytes = 32, kIdBytes = 5;
// Maximum length of a token, in characters, that is looked up.
constexpr std::size_t kMaxSecret = 128;

std::string hash_of(std::string_view secret) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), digest);
  return {reinterpret_cast<const char*>(digest), sizeof digest};
}

// An SQL statement with its bound parameters.
class Query {
 public:
  Query(sqlite3* db, const char* text) : db_(db) {
    sqlite3_prepare_v2(db, text, -1, &statement_, nullptr);
  }
  ~Query() { sqlite3_finalize(statement_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  Query& bind(std::string_view text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Query& bind(std::int64_t number) {
    sqlite3_bind_int64(statement_, ++bound_, number);
    return *this;
  }
  Query& blob(std::string_view bytes) {
    sqlite3_bind_blob(statement_, ++bound_, bytes.data(), static_cast<int>(bytes.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  // Returns true if there is a row and false after the last one. Returns an error if the file
  // cannot be read.
  Result<bool> step() {
    const int code = statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return Status(Code::kUnavailable, std::string("tokens: ") + sqlite3_errmsg(db_));
  }
  std::string text(int column) const {
    const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return value == nullptr ? "" : value;
  }
  std::string bytes(int column) const {
    const auto* value = static_cast<const char*>(sqlite3_column_blob(statement_, column));
    const int size = sqlite3_column_bytes(statement_, column);
    return value == nullptr ? "" : std::string(value, static_cast<std::size_t>(size));
  }
  std::int64_t number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3* const db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// Checks user names, because they are written to logs and terminals.
Status check_user(const std::string& user) {
  return good_user(user)
             ? Status()
             : Status(Code::kDataLoss, "tokens: the file is damaged: a user name is invalid");
}

constexpr char kTable[] =
    "CREATE TABLE IF NOT EXISTS tokens (id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE,"
    " user TEXT NOT NULL, role TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " revoked INTEGER NOT NULL) STRICT";

std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }

bool over(std::int64_t expires) { return expires != 0 && expires <= now(); }

}  // namespace

Tokens::Tokens(std::string folder) : folder_(std::move(folder)) {}

Tokens::~Tokens() { sqlite3_close(db_); }

Status Tokens::open(bool make) {
  if (db_ != nullptr) return {};
  if (folder_.empty()) {
    return make ? core::invalid("tokens need a state directory (--state-dir)") : Status();
  }
  const std::string path = folder_ + "/tokens.db";
  std::error_code error;
  if (!make && !std::filesystem::exists(path, error)) return {};
  TT_RETURN_IF_ERROR(private_folder(folder_));
  TT_RETURN_IF_ERROR(private_file(path));
  const int code = sqlite3_open_v2(
      path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX | SQLITE_OPEN_NOFOLLOW,
      nullptr);
  Status status;
  if (code != SQLITE_OK) {
    status = Status(Code::kUnavailable, path + ": " + sqlite3_errmsg(db_));
  } else {
    sqlite3_busy_timeout(db_, 2000);
    const Result<bool> made = Query(db_, kTable).step();
    status = made.status();
  }
  if (!status.ok()) {
    sqlite3_close(db_);
    db_ = nullptr;
  }
  return status;
}

Result<NewToken> Tokens::create(const std::string& user, Role role, std::int64_t lifetime) {
  if (!good_user(user)) {
    return core::invalid("token: a user's name has at most 64 letters, digits and ._@-");
  }
  if (role == Role::kNobody) return core::invalid("token: the role must be user, admin or metrics");
  if (lifetime < 0) return core::invalid("token: the lifetime must not be negative");
  const std::string secret = random_hex(kSecretBytes), id = random_hex(kIdBytes);
  if (secret.empty() || id.empty()) {
    return core::internal("the system has no random numbers for a token");
  }
  const NewToken made{id, std::string(kPrefix) + secret};
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(true));
  Query count(db_, "SELECT COUNT(*) FROM tokens");
  const Result<bool> counted = count.step();
  if (!counted.ok()) return counted.status();
  if (count.number(0) >= static_cast<std::int64_t>(kMax)) {
    return Status(Code::kResourceExhausted, "token: there are already " + std::to_string(kMax) +
                                                ", which is the maximum; revoke some");
  }
  const Result<bool> stored = Query(db_, "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, 0)")
                                  .bind(made.id)
                                  .blob(hash_of(made.secret))
                                  .bind(user)
                                  .bind(to_string(role))
                                  .bind(now())
                                  .bind(lifetime == 0 ? 0 : now() + lifetime)
                                  .step();
  if (!stored.ok()) return stored.status();
  return made;
}

Result<std::vector<TokenFacts>> Tokens::list() {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(false));
  std::vector<TokenFacts> found;
  if (db_ == nullptr) return found;
  Query query(db_, "SELECT id, user, role, created, expires, revoked FROM tokens ORDER BY created");
  while (true) {
    const Result<bool> row = query.step();
    if (!row.ok()) return row.status();
    if (!*row) return found;
    found.push_back({query.text(0), query.text(1), role_of(query.text(2)), query.number(3),
                     query.number(4), query.number(5) != 0});
    TT_RETURN_IF_ERROR(check_user(found.back().user));
  }
}

Status Tokens::revoke(const std::string& id) {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(false));
  if (db_ != nullptr) {
    const Result<bool> done =
        Query(db_, "UPDATE tokens SET revoked = 1 WHERE id = ?").bind(id).step();
    if (!done.ok()) return done.status();
    if (sqlite3_changes(db_) > 0) return {};
  }
  return Status(Code::kNotFound, "there is no token with this id");
}

Result<std::optional<Caller>> Tokens::find(std::string_view secret) {
  if (secret.size() > kMaxSecret) return std::optional<Caller>();
  const std::string hash = hash_of(secret);
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(false));
  if (db_ == nullptr) return expected(hash);
  Query query(db_, "SELECT user, role, expires, revoked FROM tokens WHERE hash = ?");
  const Result<bool> row = query.blob(hash).step();
  if (!row.ok()) return row.status();
  if (!*row) return expected(hash);
  if (query.number(3) != 0 || over(query.number(2))) return std::optional<Caller>();
  Caller caller{query.text(0), role_of(query.text(1))};
  TT_RETURN_IF_ERROR(check_user(caller.user));
  return std::optional<Caller>(std::move(caller));
}

std::optional<Caller> Tokens::expected(const std::string& hash) const {
  const auto found = expected_.find(hash);
  if (found == expected_.end() || over(found->second.expires)) return std::nullopt;
  return Caller{found->second.user, Role::kUser};
}

void Tokens::expect(const std::string& user, const std::vector<Hashed>& tokens) {
  if (!good_user(user)) return;
  MutexLock lock(mutex_);
  for (const Hashed& each : tokens) expected_.emplace(each.hash, Expected{user, each.expires});
}

void Tokens::disregard(const std::vector<Hashed>& tokens) {
  MutexLock lock(mutex_);
  for (const Hashed& each : tokens) {
    const auto found = expected_.find(each.hash);
    if (found != expected_.end()) expected_.erase(found);
  }
}

Result<std::vector<Tokens::Hashed>> Tokens::hashes_of(const std::string& user, std::size_t most) {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(false));
  std::vector<Hashed> found;
  if (db_ == nullptr) return found;
  Query query(db_,
              "SELECT id, hash, created, expires FROM tokens WHERE user = ? AND revoked = 0 AND"
              " (expires = 0 OR expires > ?) AND role IN ('user', 'admin')"
              " ORDER BY created DESC LIMIT ?");
  query.bind(user).bind(now()).bind(static_cast<std::int64_t>(most));
  while (true) {
    const Result<bool> row = query.step();
    if (!row.ok()) return row.status();
    if (!*row) return found;
    found.push_back({query.text(0), query.bytes(1), query.number(2), query.number(3)});
  }
}

Status Tokens::adopt(const std::string& user, const std::vector<Hashed>& tokens) {
  if (tokens.empty()) return {};
  if (!good_user(user)) return core::invalid("token: the user name is invalid");
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(true));
  for (const Hashed& each : tokens) {
    Query count(db_, "SELECT COUNT(*) FROM tokens");
    const Result<bool> counted = count.step();
    if (!counted.ok()) return counted.status();
    if (count.number(0) >= static_cast<std::int64_t>(kMax)) {
      return Status(Code::kResourceExhausted, "token: there are already " + std::to_string(kMax) +
                                                  ", which is the maximum; revoke some");
    }
    // If another token of this database has the same id, nothing is inserted.
    const Result<bool> stored =
        Query(db_, "INSERT OR IGNORE INTO tokens VALUES (?, ?, ?, 'user', ?, ?, 0)")
            .bind(each.id)
            .blob(each.hash)
            .bind(user)
            .bind(each.created)
            .bind(each.expires)
            .step();
    if (!stored.ok()) return stored.status();
  }
  return {};
}

Result<bool> Tokens::any() {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(open(false));
  if (db_ == nullptr) return false;
  return Query(db_,
               "SELECT 1 FROM tokens WHERE revoked = 0 AND (expires = 0 OR expires > ?) LIMIT 1")
      .bind(now())
      .step();
}

}  // namespace teletensor::server
