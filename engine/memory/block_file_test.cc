#include "engine/memory/block_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/core/folder_test.h"

namespace teletensor::memory {
namespace {

using core::Code;

class BlockFileTest : public ::testing::Test {
 protected:
  // Compressible bytes followed by random ones: more than one block of each.
  static std::string contents() {
    std::string bytes(3 * kFileBlock, '\0');
    std::mt19937 random(1);
    for (std::size_t i = kFileBlock + 77; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(random());
    }
    return bytes + "end";
  }
  void save(std::string_view bytes) {
    auto writer = BlockWriter::create(path_);
    ASSERT_TRUE(writer.ok());
    for (std::size_t at = 0; at < bytes.size(); at += 700'001) {
      ASSERT_TRUE((*writer)->write(bytes.substr(at, 700'001)).ok());
    }
    ASSERT_TRUE((*writer)->commit().ok());
  }
  core::Status load(std::string& bytes) {
    auto reader = BlockReader::open(path_);
    if (!reader.ok()) return reader.status();
    TT_RETURN_IF_ERROR((*reader)->read(bytes.data(), bytes.size()));
    return (*reader)->finish();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.path), {}));
  }

  const core::TestFolder folder_;
  const std::string path_ = folder_.path + "/file";
};

TEST_F(BlockFileTest, BytesComeBackAndOthersCannotReadThem) {
  const std::string bytes = contents();
  save(bytes);
  std::string back(bytes.size(), '\0');
  EXPECT_TRUE(load(back).ok());
  EXPECT_EQ(back, bytes);
  EXPECT_LT(std::filesystem::file_size(path_), bytes.size() - kFileBlock / 2);
  struct stat facts {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(files(), 1u);
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_EQ(load(back).code(), Code::kPermissionDenied);
}

TEST_F(BlockFileTest, NothingAtAll) {
  save("");
  std::string back;
  EXPECT_TRUE(load(back).ok());
  back = "x";
  EXPECT_EQ(load(back).code(), Code::kDataLoss);
}

TEST_F(BlockFileTest, EveryFlippedBitAndEveryCutIsFound) {
  const std::string bytes = contents();
  save(bytes);
  const std::uint64_t size = std::filesystem::file_size(path_);
  std::mt19937_64 random(2);
  std::string back(bytes.size(), '\0');
  for (int i = 0; i < 60; ++i) {
    const auto at =
        static_cast<std::streamoff>(i < 40 ? static_cast<std::uint64_t>(i) : random() % size);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    const int old = (file.seekg(at), file.get());
    const auto flipped = static_cast<char>(old ^ (1 << random() % 8));
    file.seekp(at).put(flipped).flush();
    const core::Status status = load(back);
    EXPECT_EQ(status.code(), Code::kDataLoss) << at;
    EXPECT_NE(status.message().find(path_), std::string::npos);
    file.seekp(at).put(static_cast<char>(old)).flush();
  }
  EXPECT_TRUE(load(back).ok());
  for (int i = 0; i < 10; ++i) {
    save(bytes);
    std::filesystem::resize_file(path_, i == 0 ? size - 1 : random() % size);
    EXPECT_EQ(load(back).code(), Code::kDataLoss);
  }
}

TEST_F(BlockFileTest, WhatIsNotCommittedLeavesTheOldFile) {
  save("old");
  {
    auto writer = BlockWriter::create(path_);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->write(contents()).ok());
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(files(), 1u);
  std::string back(3, '\0');
  EXPECT_TRUE(load(back).ok());
  EXPECT_EQ(back, "old");
}

TEST_F(BlockFileTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  save("old");
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &small);
  core::Status status;
  {
    auto writer = BlockWriter::create(path_);
    ASSERT_TRUE(writer.ok());
    status = (*writer)->write(contents());
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find(path_), std::string::npos);
  EXPECT_EQ(files(), 1u);
  std::string back(3, '\0');
  EXPECT_TRUE(load(back).ok());
  EXPECT_EQ(back, "old");
}

TEST_F(BlockFileTest, LinksAreNotFollowed) {
  const std::string target = folder_.path + "/target";
  std::ofstream(target) << "precious";
  ASSERT_EQ(symlink(target.c_str(), (path_ + ".new").c_str()), 0);
  save("new");  // an existing link is replaced, not followed
  std::string text;
  std::ifstream(target) >> text;
  EXPECT_EQ(text, "precious");
  std::filesystem::remove(path_);
  ASSERT_EQ(symlink(target.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(BlockReader::open(path_).ok());
}

}  // namespace
}  // namespace teletensor::memory
