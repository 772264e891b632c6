// Tests of sessions in files, with the real engine: what is restored, and how damaged files, files
// of other versions and invalid files are handled.
#include "server/state/recovery.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <future>
#include <random>

#include "engine/memory/block_file.h"
#include "proto/wire/progress.h"
#include "server/session/image_codec.h"
#include "server/state/move_files.h"
#include "server/testing.h"

namespace teletensor::server {
namespace {

using core::Code;
using core::Status;
using program::Command;

constexpr int kElements = 5000;

// A daemon without its network. One at a time may use the folder.
struct House {
  explicit House(const std::string& folder, Recovery::Times times = {})
      : engine(engine::Engine::create(options())), leases(*engine, limits()) {
    auto store = SessionStore::open(folder);
    EXPECT_TRUE(store.ok()) << store.status().message();
    recovery = std::make_unique<Recovery>(leases, std::move(*store), times, [] {});
  }
  ~House() {
    leases.shutdown([](const Lease&) { return true; });
  }

  static engine::EngineOptions options() {
    engine::EngineOptions options;
    options.lanes = 1;
    options.host_memory = 64u << 20;
    return options;
  }
  static Limits limits() {
    Limits limits;
    limits.lease = std::chrono::seconds(600);
    return limits;
  }

  LeaseRef open(const std::string& name, const std::string& user = "me") {
    ClientInfo client;
    client.name = name;
    client.named = true;
    client.user = user;
    client.instance = "0123456789abcdef";
    client.attach_counter = 1;
    client.lease = std::chrono::seconds(600);
    return *leases.open(std::move(client));
  }
  static void submit(Lease& lease, std::uint64_t seq, std::uint64_t id,
                     std::vector<Command> commands) {
    std::promise<Status> done;
    (void)lease.with_session([&](engine::Session& session) {
      session.submit(seq, id, std::move(commands), [&](Status s) { done.set_value(std::move(s)); });
      return Status();
    });
    const Status status = done.get_future().get();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Computes w = 0, 1, 2, ... and y = w * w with gradient recording, and names both. Issues five
  // commands and creates two handles.
  LeaseRef working(const std::string& name) {
    const LeaseRef lease = open(name);
    std::vector<float> numbers(kElements);
    for (int i = 0; i < kElements; ++i)
      numbers[static_cast<std::size_t>(i)] = static_cast<float>(i);
    std::string bytes(numbers.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    program::Apply square;
    square.op = engine->catalog().id(*engine->catalog().find("mul"));
    square.record = true;
    for (int i = 0; i < 2; ++i) square.arguments.push_back(program::Argument::of(1));
    std::vector<Command> commands;
    commands.emplace_back(
        program::Constant{core::DType::kF32, {}, core::Dims{kElements}, std::move(bytes)});
    commands.emplace_back(program::SetFlag{program::SetFlag::What::kRequiresGrad, 1, true});
    commands.emplace_back(std::move(square));
    commands.emplace_back(program::Keep{"w", 1});
    commands.emplace_back(program::Keep{"y", 2});
    submit(*lease, 1, 1, std::move(commands));
    return lease;
  }
  core::Result<SnapshotFacts> snapshot(const LeaseRef& lease) {
    std::promise<core::Result<SnapshotFacts>> done;
    recovery->snapshot(lease, [&](const auto& facts) { done.set_value(facts); });
    return done.get_future().get();
  }
  // Fetches a handle with the command `seq`.
  static std::vector<float> read(Lease& lease, std::uint64_t seq, std::uint64_t next_id,
                                 std::uint64_t h) {
    submit(lease, seq, next_id, {Command(program::Fetch{h, false})});
    std::vector<float> values;
    EXPECT_TRUE(testing::eventually([&] {
      const auto message = lease.outbox().take(1);
      wire::Progress progress;
      if (!message || !wire::decode_progress(*message, progress).ok() || progress.fetched.empty()) {
        return false;
      }
      const std::string& data = progress.fetched[0].data;
      values.resize(data.size() / sizeof(float));
      std::memcpy(values.data(), data.data(), data.size());
      return true;
    }));
    return values;
  }

  std::unique_ptr<engine::Engine> engine;
  Leases leases;
  std::unique_ptr<Recovery> recovery;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
}

class RecoveryTest : public ::testing::Test {
 protected:
  // Writes a file with one session, and returns the session's token.
  std::string token_of_one() {
    House house(folder_.path);
    const LeaseRef lease = house.working("exp");
    const auto facts = house.snapshot(lease);
    EXPECT_TRUE(facts.ok()) << facts.status().message();
    EXPECT_EQ(facts->completed_upto, 5u);
    EXPECT_GE(facts->bytes, 2u * kElements * sizeof(float));
    return lease->token;
  }
  std::string path() const {
    for (const auto& each : std::filesystem::directory_iterator(folder_.path + "/sessions")) {
      if (each.path().extension() == ".session") return each.path().string();
    }
    return {};
  }

  testing::Folder folder_;
};

TEST_F(RecoveryTest, ASessionComesBackWithItsValuesAndNumbers) {
  const std::string token = token_of_one();
  House house(folder_.path);
  house.recovery->restore();
  const auto lease = house.leases.table().find(token);
  ASSERT_TRUE(lease.ok()) << lease.status().message();
  EXPECT_EQ((*lease)->client.name, "exp");
  EXPECT_EQ((*lease)->client.user, "me");
  EXPECT_EQ((*lease)->saved().upto(), 5u);
  EXPECT_EQ((*lease)->outbox().completed_upto(), 5u);
  const std::vector<float> squares = House::read(**lease, 6, 3, 2);
  ASSERT_EQ(squares.size(), static_cast<std::size_t>(kElements));
  EXPECT_EQ(squares[70], 4900.0f);
}

TEST_F(RecoveryTest, SnapshotsOfOneSessionFollowEachOther) {
  House house(folder_.path);
  const LeaseRef lease = house.working("exp");
  std::vector<std::future<bool>> all;
  for (int i = 0; i < 20; ++i) {
    auto done = std::make_shared<std::promise<bool>>();
    all.push_back(done->get_future());
    house.recovery->snapshot(lease, [done](const auto& facts) { done->set_value(facts.ok()); });
  }
  for (auto& each : all) EXPECT_TRUE(each.get());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path + "/sessions"), {}), 2);
}

// Holds the writer until release(): in the callback of a snapshot, which runs in its thread.
class HeldWriter {
 public:
  HeldWriter(House& house, const LeaseRef& lease) {
    house.recovery->snapshot(lease, [this](const auto&) {
      holds_.set_value();
      released_.get_future().wait();
    });
    holds_.get_future().wait();
  }
  void release() { released_.set_value(); }

 private:
  std::promise<void> holds_, released_;
};

TEST_F(RecoveryTest, UsersTakeTurnsAtTheWriter) {
  House house(folder_.path);
  std::vector<LeaseRef> sessions;
  for (const char* const user : {"mallory", "mallory", "mallory", "alice", "mallory", "mallory"}) {
    sessions.push_back(house.open("s" + std::to_string(sessions.size()), user));
  }
  HeldWriter held(house, sessions[5]);
  std::string order;
  std::vector<std::promise<Status>> done(5);
  for (std::size_t i = 0; i < done.size(); ++i) {
    house.recovery->snapshot(sessions[i], [&, i](const auto& facts) {
      order += sessions[i]->client.user[0];
      done[i].set_value(facts.status());
    });
  }
  held.release();
  for (auto& each : done) EXPECT_TRUE(each.get_future().get().ok());
  EXPECT_EQ(order, "ammmm");
}

// The session of mallory is asked for again whenever it has been written, so that it always waits.
TEST_F(RecoveryTest, CallsOfOneUserDoNotPreventPeriodicSnapshotsOfAnother) {
  House house(folder_.path, {.every = std::chrono::milliseconds(1)});
  std::vector<LeaseRef> greedy;
  for (int i = 0; i < 3; ++i) greedy.push_back(house.open("m" + std::to_string(i), "mallory"));
  const LeaseRef alice = house.open("alice", "alice");
  std::atomic<int> running = 3;
  std::atomic<bool> stop = false;
  std::function<void(const LeaseRef&)> ask = [&](const LeaseRef& lease) {
    house.recovery->snapshot(lease, [&, lease](const auto&) {
      if (stop) {
        --running;
      } else {
        ask(lease);
      }
    });
  };
  for (const LeaseRef& lease : greedy) ask(lease);
  std::uint64_t seq = 0;
  for (int round = 0; round < 3; ++round) {
    House::submit(*alice, ++seq, 1, {Command(program::Keep{"nothing", 0})});
    EXPECT_TRUE(testing::eventually([&] { return alice->saved().upto() == seq; })) << round;
  }
  stop = true;
  EXPECT_TRUE(testing::eventually([&] { return running == 0; }));
}

TEST_F(RecoveryTest, CallsOfAUserAreBounded) {
  House house(folder_.path);
  const LeaseRef greedy = house.open("m", "mallory"), other = house.open("a", "alice");
  HeldWriter held(house, greedy);
  std::atomic<int> good = 0, refused = 0;
  const auto count = [&](const core::Result<SnapshotFacts>& facts) {
    if (facts.status().code() == Code::kResourceExhausted) {
      EXPECT_NE(facts.status().message().find("mallory has 256 calls"), std::string::npos);
      ++refused;
    }
    good += facts.ok();
  };
  for (int i = 0; i < 300; ++i) house.recovery->snapshot(greedy, count);
  // The call that holds the writer is over.
  EXPECT_EQ(refused, 300 - static_cast<int>(Recovery::kMaxCalls));
  house.recovery->snapshot(other, count);
  held.release();
  EXPECT_TRUE(testing::eventually([&] { return good == Recovery::kMaxCalls + 1; }));
  EXPECT_TRUE(house.snapshot(greedy).ok());
}

TEST_F(RecoveryTest, AnEndedSessionLeavesNoFile) {
  House house(folder_.path);
  const LeaseRef lease = house.working("exp");
  ASSERT_TRUE(house.snapshot(lease).ok());
  const std::string file = path();
  house.leases.end(*lease, Status(Code::kCancelled, "its client closed it"), "closed");
  EXPECT_TRUE(testing::eventually([&] { return !std::filesystem::exists(file); }));
  EXPECT_EQ(house.snapshot(lease).status().code(), Code::kCancelled);
}

// Restoring it would create a second session with the name.
TEST_F(RecoveryTest, WhatTheClientBeforeHadIsNotWrittenAsASessionOfItsOwn) {
  House house(folder_.path);
  const LeaseRef other = house.working("other"), old = house.working("exp");
  std::promise<void> writing, go_on;
  house.recovery->snapshot(other, [&](const auto&) {  // The callback runs in the writer thread.
    writing.set_value();
    go_on.get_future().wait();
  });
  writing.get_future().wait();
  std::promise<Status> written;
  house.recovery->snapshot(old, [&](const auto& facts) { written.set_value(facts.status()); });
  std::promise<LeaseRef> taken;
  ClientInfo next = old->client;
  next.instance = "fedcba9876543210";
  house.leases.takeovers().begin(std::move(next), [&](auto lease) { taken.set_value(*lease); });
  const LeaseRef heir = taken.get_future().get();
  go_on.set_value();
  EXPECT_EQ(written.get_future().get().code(), Code::kCancelled);
  EXPECT_EQ(heir->saved().name(), "");
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_.path + "/sessions"), {});
  };
  EXPECT_EQ(files(), 2);  // The files are the other session's and the lock.
  EXPECT_TRUE(house.snapshot(heir).ok());
  EXPECT_EQ(files(), 3);
}

TEST_F(RecoveryTest, ADrainKeepsAndTellsAndTheNextDaemonGoesOn) {
  std::string token;
  {
    House house(folder_.path);
    const LeaseRef lease = house.working("exp");
    token = lease->token;
    house.recovery->drain(Clock::now());
    EXPECT_EQ(house.snapshot(lease).status().code(), Code::kUnavailable);
  }
  House house(folder_.path);
  house.recovery->restore();
  EXPECT_TRUE(house.leases.table().find(token).ok());
}

TEST_F(RecoveryTest, TheTimeOfADrainBeginsWhenItsCallerSays) {
  House house(folder_.path);
  const LeaseRef lease = house.working("exp");
  std::promise<DrainFacts> told;
  house.recovery->ask_to_drain({}, [&](const core::Result<DrainFacts>& facts) {
    told.set_value(facts.ok() ? *facts : DrainFacts{});
  });
  house.recovery->drain(Clock::now() - std::chrono::hours(1));
  EXPECT_TRUE(house.recovery->written());
  const DrainFacts facts = told.get_future().get();
  EXPECT_EQ(facts.kept, 0u);
  ASSERT_EQ(facts.lost.size(), 1u);
  EXPECT_EQ(facts.lost[0].name, "exp");
}

// The client reconnects after the daemon was restored from an older snapshot, with or without its
// frames.
TEST_F(RecoveryTest, AnOlderSessionIsReplayedOrRefused) {
  const std::string token = token_of_one();
  House house(folder_.path);
  house.recovery->restore();
  Lease& lease = **house.leases.table().find(token);
  AttachCall call{"0123456789abcdef", 2, 7, 9, 0, 0};
  std::string word;
  EXPECT_EQ(lease.attach(call, &word).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(word, "rollback");
  call.replay_from = 7;  // The client cannot send command 6, so the attach is refused.
  EXPECT_FALSE(lease.attach(call, &word).ok());
  call.replay_from = 6;
  call.uploads = 1;
  EXPECT_FALSE(lease.attach(call, &word).ok());
  call.uploads = 0;
  const auto attached = lease.attach(call, &word);
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  EXPECT_TRUE(attached->replay);
  EXPECT_EQ(attached->received_upto, 5u);
  EXPECT_EQ(attached->credits.upto, 5u + House::limits().credit_instructions);
  call = {"0123456789abcdef", 3, 7, 5, 0, 0};
  EXPECT_FALSE(lease.attach(call, &word)->replay);  // The session is not older than the client.
}

// Writes two sessions that share a storage published by the first one, and returns their tokens.
std::pair<std::string, std::string> two_that_share(House& house) {
  const LeaseRef one = house.working("one"), two = house.open("two");
  House::submit(*one, 6, 3, {Command(program::Publish{"w", 1, true, ""})});
  House::read(*one, 7, 3, 1);
  const auto all = house.engine->publications();
  EXPECT_EQ(all.size(), 1u);
  program::Published published;
  published.publication = all[0].id;
  published.shape = core::Dims{kElements};
  published.writable = true;
  House::submit(*two, 1, 1, {Command(published)});
  EXPECT_TRUE(house.snapshot(one).ok());
  EXPECT_TRUE(house.snapshot(two).ok());
  return {one->token, two->token};
}

std::string common_file(const std::string& folder) {
  for (const auto& each : std::filesystem::directory_iterator(folder + "/sessions")) {
    if (each.path().extension() == ".common") return each.path().string();
  }
  return {};
}

TEST_F(RecoveryTest, WhatIsPublishedIsSharedAgain) {
  std::pair<std::string, std::string> tokens;
  std::uint64_t used = 0, id = 0;
  {
    House house(folder_.path);
    tokens = two_that_share(house);
    used = house.engine->memory()[0].used;
    id = house.engine->publications()[0].id;
  }
  House house(folder_.path);
  house.recovery->restore();
  const auto one = house.leases.table().find(tokens.first),
             two = house.leases.table().find(tokens.second);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(house.engine->memory()[0].used, used);  // The shared storage counts once.
  ASSERT_EQ(house.engine->publications().size(), 1u);
  EXPECT_EQ(house.engine->publications()[0].id, id);
  program::Apply square;
  square.op = house.engine->catalog().id(*house.engine->catalog().find("mul"));
  square.inplace = true;
  for (int i = 0; i < 2; ++i) square.arguments.push_back(program::Argument::of(1));
  House::submit(**two, 2, 2, {Command(square)});
  EXPECT_EQ(House::read(**two, 3, 2, 1)[70], 4900.0f);
  EXPECT_EQ(House::read(**one, 8, 3, 1)[70], 4900.0f);
  // Numbers that were used before are not used again for other objects.
  House::submit(**one, 9, 3, {Command(program::Publish{"y", 2, true, ""})});
  House::read(**one, 10, 3, 2);
  for (const auto& each : house.engine->publications()) {
    EXPECT_TRUE(each.name == "w" || each.id > id + 1'000'000) << each.id;
  }
  // A client that is ahead of the snapshot may not replay, because other sessions have written to
  // the shared storage.
  std::string word;
  EXPECT_FALSE((*two)->attach({"0123456789abcdef", 2, 7, 9, 0, 1}, &word).ok());
  EXPECT_EQ(word, "rollback");
  for (const auto& lease : {*one, *two}) {
    house.leases.end(*lease, Status(Code::kCancelled, "its client closed it"), "closed");
  }
  EXPECT_TRUE(testing::eventually([&] { return common_file(folder_.path).empty(); }));
}

TEST_F(RecoveryTest, ADamagedPublicationIsFoundAndCostsItself) {
  std::pair<std::string, std::string> tokens;
  {
    House house(folder_.path);
    tokens = two_that_share(house);
  }
  const std::string file = common_file(folder_.path), good = contents(file);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::string bad = good;
    const std::size_t at = random() % good.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    put(file, round % 3 == 0 ? good.substr(0, at) : bad);
    House house(folder_.path);
    house.recovery->restore();
    ASSERT_EQ(house.leases.table().all().size(), 2u) << at;
    EXPECT_TRUE(house.engine->publications().empty()) << at;
  }
  put(file, good);
  House house(folder_.path);
  house.recovery->restore();
  EXPECT_EQ(house.engine->publications().size(), 1u);
}

TEST_F(RecoveryTest, EveryFlippedBitAndEveryCutIsFound) {
  token_of_one();
  const std::string good = contents(path()), file = std::filesystem::path(path()).filename();
  auto store = SessionStore::open(folder_.path);
  ASSERT_TRUE(store.ok());
  std::vector<char> bytes(2 * kElements * sizeof(float));
  const auto whole = [&] {
    auto reading = (*store)->read(file);
    if (!reading.ok()) return reading.status();
    for (const auto& storage : (*reading)->body.image().storages()) {
      if (storage.bytes() > bytes.size()) return Status(Code::kDataLoss, "larger than it was");
      Status lost;
      TT_RETURN_IF_ERROR((*reading)->read(bytes.data(), storage.bytes(), lost));
    }
    return (*reading)->finish();
  };
  ASSERT_TRUE(whole().ok()) << whole().message();
  std::mt19937 random(1);
  for (std::size_t at = 0; at < good.size(); at += at < 200 ? 1 : 1 + random() % 700) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    put(path(), bad);
    EXPECT_FALSE(whole().ok()) << at;
    put(path(), good.substr(0, at));
    const Status cut = whole();
    EXPECT_EQ(cut.code(), Code::kDataLoss) << at;
    EXPECT_NE(cut.message().find("sessions/" + file), std::string::npos) << cut.message();
  }
}

TEST_F(RecoveryTest, ADamagedFileIsRefusedByNameAndStays) {
  const std::string token = token_of_one();
  std::string bytes = contents(path());
  bytes[bytes.size() - 50] = static_cast<char>(bytes[bytes.size() - 50] ^ 4);
  put(path(), bytes);
  House house(folder_.path);
  house.recovery->restore();
  std::string word;
  const auto lease = house.leases.table().find(token, &word);
  EXPECT_EQ(lease.status().code(), Code::kAborted);
  EXPECT_EQ(word, "damaged");
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_TRUE(house.leases.table().all().empty());
}

TEST_F(RecoveryTest, AFileOfAnotherVersionIsLeftAlone) {
  token_of_one();
  v1::SavedHead head;
  head.set_format(4);
  head.set_name("exp");
  const std::string file = path();
  {
    auto writer = memory::BlockWriter::create(file);
    const std::uint64_t size = head.ByteSizeLong();
    ASSERT_TRUE((*writer)->write(&size, sizeof size).ok());
    ASSERT_TRUE((*writer)->write(head.SerializeAsString()).ok());
    ASSERT_TRUE((*writer)->commit().ok());
  }
  {
    auto store = SessionStore::open(folder_.path);
    const auto found = (*store)->list();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].status.code(), Code::kUnimplemented);
    EXPECT_NE(found[0].status.message().find("another version"), std::string::npos);
    EXPECT_EQ((*store)->read(found[0].file).status().code(), Code::kUnimplemented);
  }
  House house(folder_.path);
  house.recovery->restore();
  EXPECT_TRUE(house.leases.table().all().empty());
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(RecoveryTest, AnOperationThatIsNotThereIsNamed) {
  token_of_one();
  House house(folder_.path + "/other");
  auto store = SessionStore::open(folder_.path);
  auto reading = (*store)->read(std::filesystem::path(path()).filename());
  ASSERT_TRUE(reading.ok());
  v1::SavedImage& image = *(*reading)->body.mutable_image();
  ASSERT_GT(image.ops_size(), 0);
  *image.mutable_ops(0) = "mul (revision 77)";
  const auto refused = read_image(image, house.engine->catalog());
  EXPECT_EQ(refused.status().code(), Code::kUnimplemented);
  EXPECT_NE(refused.status().message().find("mul (revision 77)"), std::string::npos);
}

TEST_F(RecoveryTest, AnOperationThatIsListedTwiceIsRefused) {
  token_of_one();
  House house(folder_.path + "/other");
  auto store = SessionStore::open(folder_.path);
  auto reading = (*store)->read(std::filesystem::path(path()).filename());
  ASSERT_TRUE(reading.ok());
  v1::SavedImage& saved = *(*reading)->body.mutable_image();
  ASSERT_EQ(saved.recorded_seqs_size(), 1);
  saved.add_recorded_seqs(saved.recorded_seqs(0));
  saved.add_recorded_nodes(saved.recorded_nodes(0));
  auto image = read_image(saved, house.engine->catalog());
  ASSERT_TRUE(image.ok()) << image.status().message();
  const auto zeros = [](void* to, std::size_t size, Status&) {
    std::memset(to, 0, size);
    return Status();
  };
  const auto lease = house.leases.restore((*reading)->head, (*reading)->body, std::move(*image),
                                          zeros, "x.session");
  EXPECT_NE(lease.status().message().find("a recorded operation"), std::string::npos)
      << lease.status().message();
}

TEST_F(RecoveryTest, ASessionKeepsItsProtocolIfTheDaemonServesIt) {
  token_of_one();
  House house(folder_.path + "/other");
  auto store = SessionStore::open(folder_.path);
  auto reading = (*store)->read(std::filesystem::path(path()).filename());
  ASSERT_TRUE(reading.ok());
  v1::SavedHead head = (*reading)->head;
  v1::SavedBody body = (*reading)->body;
  EXPECT_EQ(body.protocol(), wire::kProtocol);
  const auto zeros = [](void* to, std::size_t size, Status&) {
    std::memset(to, 0, size);
    return Status();
  };
  const auto restored = [&](std::uint32_t protocol) {
    body.set_protocol(protocol);
    head.set_token(make_token());
    auto image = read_image(body.image(), house.engine->catalog());
    return house.leases.restore(head, body, std::move(*image), zeros, "x.session");
  };
  // 0: the file is of a daemon that served protocol 2 alone and did not name it.
  for (const auto& [saved, used] : {std::pair(0u, 2u), std::pair(1u, 1u), std::pair(2u, 2u)}) {
    const auto lease = restored(saved);
    ASSERT_TRUE(lease.ok()) << lease.status().message();
    EXPECT_EQ((*lease)->client.protocol, used);
    EXPECT_TRUE(house.leases.table().admit(*lease).ok());
    house.leases.end(**lease, Status(Code::kCancelled, "closed"), "closed");
  }
  const auto refused = restored(wire::kProtocol + 1);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("speaks protocol 3, which this daemon does not"),
            std::string::npos);
}

// Restores what a file contains, as it is or changed.
struct Saved {
  explicit Saved(const std::string& folder, const std::string& file) {
    auto store = SessionStore::open(folder);
    auto reading = (*store)->read(std::filesystem::path(file).filename());
    EXPECT_TRUE(reading.ok());
    head = (*reading)->head;
    body = (*reading)->body;
  }
  core::Result<LeaseRef> restore(House& house, const std::function<void(program::Image&)>& change) {
    head.set_token(make_token());
    auto image = read_image(body.image(), house.engine->catalog());
    EXPECT_TRUE(image.ok()) << image.status().message();
    change(*image);
    const auto zeros = [](void* to, std::size_t size, Status&) {
      std::memset(to, 0, size);
      return Status();
    };
    return house.leases.restore(head, body, std::move(*image), zeros, "x.session");
  }
  v1::SavedHead head;
  v1::SavedBody body;
};

TEST_F(RecoveryTest, AWriteThatRefersToNothingIsRefused) {
  token_of_one();
  House house(folder_.path + "/other");
  Saved saved(folder_.path, path());
  using Undo = program::Image::Undo;
  const auto with = [&](const std::function<void(Undo&)>& change) {
    Undo undo;
    undo.seq = 5;
    undo.cell = undo.clock = 0;
    change(undo);
    const auto lease =
        saved.restore(house, [&](program::Image& image) { image.undo.push_back(undo); });
    if (lease.ok()) house.leases.end(**lease, Status(Code::kCancelled, "closed"), "closed");
    return lease.status().message();
  };
  EXPECT_EQ(with([](Undo&) {}), "");
  for (program::Image::Index Undo::*field :
       {&Undo::cell, &Undo::clock, &Undo::base, &Undo::node, &Undo::old_node}) {
    const std::string why = with([&](Undo& undo) { undo.*field = 1000; });
    EXPECT_NE(why.find("a write"), std::string::npos) << why;
  }
}

TEST_F(RecoveryTest, AClientKeepsTheNumbersOfItsOps) {
  token_of_one();
  House house(folder_.path + "/other");
  Saved saved(folder_.path, path());
  const ops::Catalog& catalog = house.engine->catalog();
  const auto last = static_cast<program::OpId>(catalog.size() - 1);
  saved.body.add_op_names(op_title(catalog.at(last)));
  saved.body.add_op_names("an op of another version");
  saved.body.add_op_names(op_title(catalog.at(program::OpId{0})));
  const auto lease = saved.restore(house, [](program::Image&) {});
  ASSERT_TRUE(lease.ok()) << lease.status().message();
  EXPECT_EQ((*lease)->client.ops,
            (std::vector<program::OpId>{last, wire::FrameReader::kNoOp, program::OpId{0}}));
  EXPECT_TRUE(house.leases.table().admit(*lease).ok());
}

// Two files of one session can only be the work of an operator; each session has its own number.
TEST_F(RecoveryTest, SessionsWithTheSameNumberGetTheirOwn) {
  token_of_one();
  House house(folder_.path + "/other");
  Saved saved(folder_.path, path());
  saved.head.set_id(7);
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    const auto lease = saved.restore(house, [](program::Image&) {});
    ASSERT_TRUE(lease.ok()) << lease.status().message();
    ASSERT_TRUE(house.leases.table().admit(*lease).ok());
    ids.push_back((*lease)->client.id);
    saved.head.set_id(7);
  }
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{7, 8, 9}));
}

TEST_F(RecoveryTest, AnArrivalThatIsForgottenLeavesNoFile) {
  const auto store = SessionStore::open(folder_.path);
  const MoveFiles files(**store);
  v1::SavedArrival arrival;
  arrival.set_id("0123456789abcdef0123456789abcdef");
  ASSERT_TRUE(files.save(arrival).ok());
  put((*store)->path_of(MoveFiles::arriving(arrival.id())), "a part of a session");
  files.forget_arrival(arrival.id());
  EXPECT_FALSE((*store)->exists(MoveFiles::arriving(arrival.id())));
  EXPECT_FALSE((*store)->exists(arrival.id() + ".arrival"));
}

TEST_F(RecoveryTest, LostSessionsAreReadOnceByTheNextDaemon) {
  v1::SavedLosses losses;
  v1::SavedLoss& loss = *losses.add_losses();
  loss.set_token(make_token());
  loss.set_user("ann");
  loss.set_reason("the disk is full");
  ASSERT_TRUE((*SessionStore::open(folder_.path))->write_losses(losses).ok());
  const auto next = SessionStore::open(folder_.path);
  EXPECT_EQ((*next)->take_losses().SerializeAsString(), losses.SerializeAsString());
  EXPECT_EQ((*next)->take_losses().losses_size(), 0);
}

// Replaces one field by another number, or duplicates or removes an element of a list.
void mutate(google::protobuf::Message& message, std::mt19937_64& random) {
  const auto* type = message.GetDescriptor();
  const auto* r = message.GetReflection();
  const auto* field =
      type->field(static_cast<int>(random() % static_cast<std::uint64_t>(type->field_count())));
  const std::uint64_t wild[] = {0, 1, 2, 3, random() % 64, random() % 100'000, ~0ull, 1ull << 40};
  const std::uint64_t number = wild[random() % 8];
  using Type = google::protobuf::FieldDescriptor;
  if (field->is_repeated()) {
    const int size = r->FieldSize(message, field);
    if (size == 0) return;
    const int at = static_cast<int>(random() % static_cast<std::uint64_t>(size));
    if (random() % 6 == 0) return r->RemoveLast(&message, field);
    switch (field->cpp_type()) {
      case Type::CPPTYPE_MESSAGE:
        return mutate(*r->MutableRepeatedMessage(&message, field, at), random);
      case Type::CPPTYPE_UINT64:
        return r->SetRepeatedUInt64(&message, field, at, number);
      case Type::CPPTYPE_INT64:
        return r->SetRepeatedInt64(&message, field, at, static_cast<std::int64_t>(number));
      case Type::CPPTYPE_UINT32:
        return r->SetRepeatedUInt32(&message, field, at, static_cast<std::uint32_t>(number));
      default:
        return;
    }
  }
  switch (field->cpp_type()) {
    case Type::CPPTYPE_MESSAGE:
      if (r->HasField(message, field)) mutate(*r->MutableMessage(&message, field), random);
      return;
    case Type::CPPTYPE_UINT64:
      return r->SetUInt64(&message, field, number);
    case Type::CPPTYPE_INT64:
      return r->SetInt64(&message, field, static_cast<std::int64_t>(number));
    case Type::CPPTYPE_UINT32:
      return r->SetUInt32(&message, field, static_cast<std::uint32_t>(number));
    case Type::CPPTYPE_BOOL:
      return r->SetBool(&message, field, number % 2 != 0);
    case Type::CPPTYPE_ENUM:
      return r->SetEnumValue(&message, field, static_cast<int>(number % 40));
    default:
      return;
  }
}

TEST_F(RecoveryTest, ImagesThatMakeNoSenseAreRefusedOrHarmless) {
  token_of_one();
  House house(folder_.path + "/other");
  v1::SavedHead head;
  v1::SavedBody body;
  {
    auto store = SessionStore::open(folder_.path);
    auto reading = (*store)->read(std::filesystem::path(path()).filename());
    ASSERT_TRUE(reading.ok());
    head = (*reading)->head;
    body = (*reading)->body;
  }
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    v1::SavedBody bad = body;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) mutate(*bad.mutable_image(), random);
    auto image = read_image(bad.image(), house.engine->catalog());
    refused += !image.ok();
    if (!image.ok()) continue;
    head.set_token(make_token());
    const auto zeros = [&](void* to, std::size_t size, Status& lost) {
      std::memset(to, 0, size);
      if (random() % 20 == 0) lost = Status(Code::kDataLoss, "gone");
      return Status();
    };
    const auto lease = house.leases.restore(head, bad, std::move(*image), zeros, "x.session");
    refused += !lease.ok();
    if (!lease.ok()) continue;
    EXPECT_TRUE(house.leases.table().admit(*lease).ok());
    house.leases.end(**lease, Status(Code::kCancelled, "closed"), "closed");
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 1500);
}

}  // namespace
}  // namespace teletensor::server
