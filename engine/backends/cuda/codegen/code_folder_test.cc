#include "engine/backends/cuda/codegen/code_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/core/folder_test.h"

namespace teletensor::backends::cuda {
namespace {

namespace fs = std::filesystem;

class CodeFolderTest : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return path_ + "/" + name + ".kernel"; }

  const core::TestFolder made_;
  const std::string path_ = made_.path;
};

TEST_F(CodeFolderTest, KeepsCodeUnderTheNameOfWhatItWasMadeFrom) {
  const CodeFolder folder(path_ + "/deeper/down");
  const std::string name = CodeFolder::name_of("sm_90", "text");
  EXPECT_NE(name, CodeFolder::name_of("sm_80", "text"));
  EXPECT_NE(name, CodeFolder::name_of("sm_90", "texts"));
  EXPECT_FALSE(folder.read(name));
  const std::string code("\0machine\xff code", 13);
  folder.write(name, code);
  EXPECT_EQ(folder.read(name), code);
  folder.write(name, code);
  EXPECT_EQ(folder.read(name), code);
}

TEST_F(CodeFolderTest, WhatIsDamagedIsNotThere) {
  const CodeFolder folder(path_);
  const std::string name = CodeFolder::name_of("a", "b"), other = CodeFolder::name_of("a", "c");
  folder.write(name, "some machine code");
  std::string whole;
  {
    std::ifstream in(file(name), std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto with = [&](const std::string& contents, const std::string& as) {
    std::ofstream(file(as), std::ios::binary | std::ios::trunc) << contents;
    return folder.read(as);
  };
  EXPECT_TRUE(with(whole, name));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] ^= 4;
    EXPECT_FALSE(with(changed, name)) << at;
    EXPECT_FALSE(with(whole.substr(0, at), name)) << at;
  }
  EXPECT_FALSE(with(whole, other)) << "the file of another kernel";
}

TEST_F(CodeFolderTest, TheOldestGoFirst) {
  const CodeFolder folder(path_);
  const std::string code(1000, 'x');
  for (int i = 0; i < 10; ++i) {
    const std::string name = CodeFolder::name_of("a", std::to_string(i));
    folder.write(name, code);
    fs::last_write_time(file(name), fs::file_time_type::clock::now() - std::chrono::hours(20 - i));
  }
  folder.trim(20'000);
  EXPECT_TRUE(folder.read(CodeFolder::name_of("a", "0")));
  folder.trim(8'000);
  int left = 0;
  for (int i = 0; i < 10; ++i)
    left += folder.read(CodeFolder::name_of("a", std::to_string(i))).has_value();
  EXPECT_EQ(left, 3);
  EXPECT_TRUE(folder.read(CodeFolder::name_of("a", "9")));
}

TEST(CodeFolderWithout, KeepsNothing) {
  const CodeFolder folder("");
  folder.write("name", "code");
  EXPECT_FALSE(folder.read("name"));
  folder.trim(0);
  const CodeFolder closed("/proc/no/such/place");
  closed.write("name", "code");
  EXPECT_FALSE(closed.read("name"));
}

}  // namespace
}  // namespace teletensor::backends::cuda
