// Feeds invalid files to every reader of a file: the configuration, the tokens, saved tensors (the
// C++ client), session snapshots. Each file is read, or refused with an error that names it, and
// the result of a successful read is consistent.
//
//   file_fuzz [--only KIND] [--seconds N] [--from S] [--seed S] [--corpus FILE]
//     Makes files with the seeds S, S + 1, ... --corpus: reads only the files in a corpus, which
//     has one file a line: its kind, and its bytes in hexadecimal.
#include <google/protobuf/message.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/safetensors.h"
#include "engine/core/geometry.h"
#include "engine/memory/block_file.h"
#include "engine/ops/op.h"
#include "server/access/tokens.h"
#include "server/base/os/users.h"
#include "server/config.h"
#include "server/session/image_codec.h"
#include "server/state/store.h"
#include "server/testing.h"
#include "victim.h"

namespace teletensor::fuzz {
namespace {

using core::Status;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::uint64_t number() {
    const std::uint64_t wild[] = {
        0, 1, 2, 3, below(64), below(100'000), ~0ull, 1ull << 31, 1ull << 40, (1ull << 63) - 1};
    return wild[below(std::size(wild))];
  }

 private:
  std::mt19937_64 random_;
};

struct Kind;
using Make = std::string (*)(Dice&);
// returns false if the file is refused
using Read = bool (*)(const std::string& bytes, const std::string& folder);
struct Kind {
  std::string_view name;
  Make make;  // makes a valid file
  Read read;
  std::vector<std::string_view> words;  // words that have a meaning in the file
};

void put(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  if (!out) fail("cannot write a file");
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// An error must name the file or the place, because the user cannot find the fault otherwise.
bool names(const Status& status, std::string_view what) {
  if (status.message().find(what) == std::string::npos) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    fail("an error that does not name the file");
  }
  return false;
}

// ---------------------------------------------------------------- the configuration

std::string make_config(Dice& dice) {
  static constexpr std::string_view kLines[] = {
      "listen = \"127.0.0.1:0\"",
      "host_memory = \"2GiB\"",
      "http_name = [\"a.example\"]",
      "lease = 60",
      "snapshot_every = 0.5",
      "session_handles = 1000",
      "session_tape = \"64 MB\"",
      "tls_users = false",
      "log_level = 'warn'",
      "device_patience = 1e2",
      "state_dir = \"\"\"\n/x\"\"\"",
      "# a comment",
      "session_queue = 0x1000",
      "disk_memory = 1_000_000",
      "drain = +8.0",
  };
  static constexpr std::string_view kOfUsers[] = {"memory = \"1GiB\"", "guaranteed = 4096",
                                                  "weight = 2", "sessions = 3", "session_kept = 9"};
  std::string text;
  for (const std::string_view line : kLines) {
    if (dice.one_in(3)) text += std::string(line) + "\n";
  }
  for (const char* user : {"users.ann", "users.\"bob@example\""}) {
    if (!dice.one_in(2)) continue;
    text += "[" + std::string(user) + "]\n";
    for (const std::string_view line : kOfUsers) {
      if (dice.one_in(2)) text += std::string(line) + "\n";
    }
  }
  return text;
}

bool read_config(const std::string& bytes, const std::string& folder) {
  const std::string path = folder + "/config.toml";
  put(path, bytes);
  const char* const arguments[] = {"teletensord", "--config", path.c_str()};
  const server::Parsed parsed = server::parse_command_line(3, arguments, "0");
  if (parsed.exit_code >= 0) return names(core::invalid(parsed.text), "teletensord");
  const server::Config& config = parsed.config;
  for (const auto& [user, set] : config.users) {
    if (!server::good_user(user) || !(set.weight > 0)) fail("a user that cannot be");
  }
  // Values that must be refused, such as a million threads or a time that no clock can represent.
  if (config.lanes > 1024 || config.max_sessions < 1 || !(config.drain_seconds < 1e8)) {
    fail("a number that cannot be");
  }
  return true;
}

// ---------------------------------------------------------------- tokens

struct Known {
  std::string bytes, secret;
};
const Known& tokens_file() {
  static const Known* const known = [] {
    const server::testing::Folder folder;
    auto* made = new Known;
    server::Tokens tokens(folder.path + "/state");
    const auto ann = tokens.create("ann", server::Role::kUser, 0);
    const auto admin = tokens.create("root", server::Role::kAdmin, 3600);
    if (!ann.ok() || !admin.ok() || !tokens.revoke(admin->id).ok()) fail("no tokens");
    made->secret = ann->secret;
    made->bytes = contents(folder.path + "/state/tokens.db");
    return made;
  }();
  return *known;
}

std::string make_tokens(Dice&) { return tokens_file().bytes; }

bool read_tokens(const std::string& bytes, const std::string& folder) {
  const std::string state = folder + "/state";
  std::filesystem::remove_all(state);
  std::filesystem::create_directory(state);
  std::filesystem::permissions(state, std::filesystem::perms(0700));
  put(state + "/tokens.db", bytes);
  server::Tokens tokens(state);
  const auto found = tokens.find(tokens_file().secret);
  if (!found.ok()) return names(found.status(), "tokens");
  if (found->has_value() && !server::good_user((*found)->user)) fail("a user that cannot be");
  std::string guess = tokens_file().secret;
  guess.back() = guess.back() == '0' ? '1' : '0';
  const auto wrong = tokens.find(guess);
  if (wrong.ok() && wrong->has_value()) fail("a guess is a token");
  (void)tokens.any();
  if (const auto all = tokens.list(); all.ok()) {
    for (const server::TokenFacts& each : *all) (void)tokens.revoke(each.id);
    // Tokens that could be revoked before can still be revoked.
    const auto after = tokens.find(tokens_file().secret);
    if (after.ok() && after->has_value()) {
      const auto again = tokens.list();
      for (std::size_t i = 0; again.ok() && i < again->size(); ++i) {
        if ((*again)[i].user == (*after)->user && (*again)[i].revoked) fail("a revoked token");
      }
    }
  }
  return true;
}

// ---------------------------------------------------------------- saved tensors

std::string make_saved(Dice& dice) {
  std::string header = "{", data;
  const char* const dtypes[] = {"F32", "I64", "BOOL", "C128", "BF16", "U16"};
  const std::size_t sizes[] = {4, 8, 1, 16, 2, 2};
  if (dice.one_in(2)) header += R"("__metadata__":{"k":"v\u00e9"},)";
  const std::uint64_t count = 1 + dice.below(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t dtype = dice.below(6), a = dice.below(4), b = dice.below(4);
    const std::size_t begin = data.size();
    data.append(a * b * sizes[dtype], static_cast<char>(i + 1));
    header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":")" + dtypes[dtype] +
              R"(","shape":[)" + std::to_string(a) + "," + std::to_string(b) +
              R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(data.size()) +
              "]}";
  }
  header += "}";
  std::string bytes(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

bool read_saved(const std::string& bytes, const std::string& folder) {
  const std::string path = folder + "/x.safetensors";
  put(path, bytes);
  const auto file = client::SafetensorsFile::read(path);
  if (!file.ok()) return names(file.status(), path);
  std::uint64_t sum = 0;
  for (const auto& [name, entry] : file->entries()) {
    const auto count = core::checked_numel(entry.shape);
    if (!count.ok() ||
        static_cast<std::uint64_t>(*count) * core::size_of(entry.dtype) != entry.bytes.size()) {
      fail("a tensor of another size than its shape");
    }
    // reads all bytes, so that a sanitizer detects missing ones
    for (const char byte : entry.bytes) sum += static_cast<unsigned char>(byte);
  }
  return sum != ~std::uint64_t{0};
}

// ---------------------------------------------------------------- sessions

// Fills a message with random values of all its fields.
void fill(google::protobuf::Message& message, Dice& dice, int depth) {
  using Type = google::protobuf::FieldDescriptor;
  const auto* const r = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const auto* const field = message.GetDescriptor()->field(i);
    if (dice.one_in(3)) continue;
    for (std::uint64_t n = field->is_repeated() ? dice.below(4) : 1; n > 0; --n) {
      const std::uint64_t number = dice.number();
      const auto put_in = [&](auto set, auto add, auto value) {
        field->is_repeated() ? (r->*add)(&message, field, value)
                             : (r->*set)(&message, field, value);
      };
      using R = google::protobuf::Reflection;
      switch (field->cpp_type()) {
        case Type::CPPTYPE_MESSAGE:
          if (depth == 0) break;
          fill(field->is_repeated() ? *r->AddMessage(&message, field)
                                    : *r->MutableMessage(&message, field),
               dice, depth - 1);
          break;
        case Type::CPPTYPE_STRING:
          put_in(&R::SetString, &R::AddString,
                 std::string(dice.below(40), static_cast<char>(dice.below(256) & 127)));
          break;
        case Type::CPPTYPE_UINT64:
          put_in(&R::SetUInt64, &R::AddUInt64, number);
          break;
        case Type::CPPTYPE_INT64:
          put_in(&R::SetInt64, &R::AddInt64, static_cast<std::int64_t>(number));
          break;
        case Type::CPPTYPE_UINT32:
          put_in(&R::SetUInt32, &R::AddUInt32, static_cast<std::uint32_t>(number));
          break;
        case Type::CPPTYPE_INT32:
          put_in(&R::SetInt32, &R::AddInt32, static_cast<std::int32_t>(number));
          break;
        case Type::CPPTYPE_DOUBLE:
          put_in(&R::SetDouble, &R::AddDouble, static_cast<double>(number));
          break;
        case Type::CPPTYPE_BOOL:
          put_in(&R::SetBool, &R::AddBool, number % 2 != 0);
          break;
        case Type::CPPTYPE_ENUM:
          put_in(&R::SetEnumValue, &R::AddEnumValue, static_cast<int>(number % 40));
          break;
        default:
          break;
      }
    }
  }
}

std::string framed(const google::protobuf::Message& message) {
  const std::string bytes = message.SerializeAsString();
  std::string out(8, '\0');
  const std::uint64_t size = bytes.size();
  std::memcpy(out.data(), &size, 8);
  return out + bytes;
}

std::string make_session(Dice& dice) {
  v1::SavedHead head;
  v1::SavedBody body;
  fill(head, dice, 3);
  fill(body, dice, 4);
  head.set_format(3);
  return framed(head) + framed(body) + std::string(dice.below(40), '\1');
}

// The contents of a file, whose blocks are complete, are random; every fourth file is also damaged
// after them.
bool read_session(const std::string& bytes, const std::string& folder) {
  const std::string state = folder + "/sessions-of";
  std::filesystem::remove_all(state);
  auto store = server::SessionStore::open(state);
  if (!store.ok()) fail("no store");
  const std::string file = (*store)->new_name(), path = (*store)->path_of(file);
  const bool whole = bytes.empty() || (static_cast<unsigned char>(bytes.back()) & 3) != 0;
  {
    auto writer = memory::BlockWriter::create(path);
    if (!writer.ok() || !(*writer)->write(bytes).ok() || !(*writer)->commit(false).ok()) {
      fail("cannot write a file");
    }
  }
  if (!whole) {
    std::string spoilt = contents(path);
    Dice dice(bytes.size());
    for (int n = 0; n < 3; ++n) {
      spoilt[dice.below(spoilt.size())] ^= static_cast<char>(1 << dice.below(8));
    }
    put(path, spoilt);
  }
  bool good = false;
  for (const server::SessionStore::Found& found : (*store)->list()) {
    auto reading = (*store)->read(found.file);
    if (!reading.ok()) continue;
    good = true;
    (void)server::read_image((*reading)->body.image(), ops::catalog());
    char buffer[64];
    Status lost;
    while ((*reading)->read(buffer, sizeof buffer, lost).ok() && lost.ok()) {
    }
    (void)(*reading)->finish();
  }
  (void)(*store)->take_losses();
  return good;
}

// ---------------------------------------------------------------- damaging files

const Kind kKinds[] = {
    {"config", make_config, read_config, {"[",           "[[",
                                          "]",           "{",
                                          "}",           "\"",
                                          "\"\"\"",      "'",
                                          "=",           ".",
                                          ",",           "\n",
                                          "#",           "\\u",
                                          "\\UFFFFFFFF", "1979-05-27T07:32:00Z",
                                          "inf",         "nan",
                                          "-0",          "0x",
                                          "1e999",       "99999999999999999999",
                                          "GiB",         "users.",
                                          "[users]",     "\r",
                                          "\xff"}},
    {"tokens", make_tokens, read_tokens, {"ann", "SQLite format 3", "CREATE TABLE", "\xff\xff"}},
    {"safetensors",
     make_saved,
     read_saved,
     {"[", "{", "]", "}", "\"", ":", ",", "null", "-1", "1e400", "18446744073709551616",
      "\"__metadata__\":", "\\ud800", "\"shape\"", "\"data_offsets\"", "[[[[[[[[[[[[[[[["}},
    {"session", make_session, read_session, {"\xff\xff\xff\xff", "\1", "\10\3"}},
};

std::string spoilt(const Kind& kind, std::string bytes, Dice& dice) {
  for (std::uint64_t n = 1 + dice.below(4); n > 0; --n) {
    const std::size_t at = dice.below(bytes.size() + 1);
    const std::size_t length = std::min<std::size_t>(dice.below(40), bytes.size() - at);
    const std::string_view word = kind.words[dice.below(kind.words.size())];
    switch (dice.below(8)) {
      case 0:
      case 1:
        if (at < bytes.size()) bytes[at] ^= static_cast<char>(1 << dice.below(8));
        break;
      case 2:
        if (at < bytes.size()) bytes[at] = static_cast<char>(dice.below(256));
        break;
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(dice.below(bytes.size() + 1), std::string(bytes, at, length));
        break;
      case 5:
        bytes.insert(at, word);
        break;
      case 6: {  // repeats a part many times
        std::string many;
        for (std::uint64_t k = dice.below(dice.one_in(8) ? 20'000 : 200); k > 0; --k) many += word;
        bytes.insert(at, many);
        break;
      }
      default:
        bytes.resize(dice.one_in(4) ? at : bytes.size());
    }
  }
  return bytes;
}

struct Counts {
  std::uint64_t tried = 0, read = 0;
};

void run(const Kind& kind, std::uint64_t seed, const std::string& folder, Counts& counts) {
  Dice dice(seed);
  const std::string good = kind.make(dice);
  for (int i = 0; i < 16; ++i) {
    ++counts.tried;
    counts.read += kind.read(i == 0 ? good : spoilt(kind, good, dice), folder);
  }
}

const Kind& kind_of(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  fail("no such kind of file");
}

void replay(const char* corpus, const std::string& folder,
            std::map<std::string_view, Counts>& all) {
  std::ifstream in(corpus);
  std::string name, hex;
  for (int line = 1; in >> name >> hex; ++line) {
    now_at("file_fuzz: line %d of %.100s\n", line, corpus);
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    const Kind& kind = kind_of(name);
    Counts& counts = all[kind.name];
    ++counts.tried;
    counts.read += kind.read(bytes, folder);
  }
  if (all.empty()) fail("the corpus is empty");
}

}  // namespace
}  // namespace teletensor::fuzz

int main(int argc, char** argv) {
  using namespace teletensor::fuzz;
  double seconds = 10;
  std::uint64_t seed = 1;
  const char *corpus = nullptr, *only = nullptr;
  bool one = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--seconds") seconds = std::atof(argv[i + 1]);
    if (flag == "--corpus") corpus = argv[i + 1];
    if (flag == "--only") only = argv[i + 1];
    if (flag == "--seed" || flag == "--from") seed = std::strtoull(argv[i + 1], nullptr, 10);
    one |= flag == "--seed";
  }
  if (only != nullptr) (void)kind_of(only);
  const teletensor::server::testing::Folder folder;
  std::map<std::string_view, Counts> all;
  if (corpus != nullptr) replay(corpus, folder.path, all);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; corpus == nullptr; ++seed) {
    for (const Kind& kind : kKinds) {
      if (only != nullptr && kind.name != only) continue;
      now_at("file_fuzz: --only %s --seed %llu\n", kind.name.data(),
             static_cast<unsigned long long>(seed));
      run(kind, seed, folder.path, all[kind.name]);
    }
    if (one || std::chrono::steady_clock::now() >= end) break;
  }
  for (const auto& [name, counts] : all) {
    std::printf("file_fuzz: %s: %llu tried, %llu of them read\n", std::string(name).c_str(),
                static_cast<unsigned long long>(counts.tried),
                static_cast<unsigned long long>(counts.read));
    if (corpus == nullptr && counts.read == 0) fail("not one file is read");
  }
  return 0;
}
