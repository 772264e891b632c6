// TestFolder, a folder of one test.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace teletensor::core {

// An empty folder that exists as long as the object. No other test and no other run of the same
// test uses it.
struct TestFolder {
  TestFolder() {
    if (mkdtemp(path.data()) == nullptr) {
      std::perror(path.c_str());
      std::abort();
    }
  }
  ~TestFolder() { std::filesystem::remove_all(path); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path = "/tmp/tt-test-XXXXXX";  // short, because paths of sockets are limited
};

}  // namespace teletensor::core
