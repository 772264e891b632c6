#include "engine/backends/cuda/codegen/code_folder.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace teletensor::backends::cuda {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "ttkernel 1\n";
constexpr std::string_view kSuffix = ".kernel";

std::string hex(std::string_view a, std::string_view b) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, a.data(), a.size());
  XXH3_128bits_update(state, "\n", 1);
  XXH3_128bits_update(state, b.data(), b.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

std::string CodeFolder::name_of(std::string_view flags, std::string_view text) {
  return hex(flags, text);
}

std::optional<std::string> CodeFolder::read(const std::string& name) const {
  if (path_.empty()) return std::nullopt;
  std::ifstream file(path_ + "/" + name + std::string(kSuffix), std::ios::binary);
  if (!file) return std::nullopt;
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  constexpr std::size_t kHead = kMagic.size() + 32;
  if (all.size() <= kHead || !all.starts_with(kMagic)) return std::nullopt;
  std::string code = all.substr(kHead);
  if (all.compare(kMagic.size(), 32, hex(name, code)) != 0) return std::nullopt;
  return code;
}

void CodeFolder::write(const std::string& name, std::string_view code) const {
  if (path_.empty()) return;
  static std::atomic<unsigned> counter{0};
  std::error_code error;
  fs::create_directories(path_, error);
  fs::permissions(path_, fs::perms::owner_all, error);
  const std::string target = path_ + "/" + name + std::string(kSuffix);
  const std::string part = target + "." + std::to_string(getpid()) + "." +
                           std::to_string(counter.fetch_add(1)) + ".part";
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file << kMagic << hex(name, code) << code;
    file.flush();
    if (!file) {
      fs::remove(part, error);
      return;
    }
  }
  fs::rename(part, target, error);
  if (error) fs::remove(part, error);
}

void CodeFolder::trim(std::uint64_t most) const {
  if (path_.empty()) return;
  struct Found {
    fs::file_time_type time;
    std::uint64_t bytes;
    fs::path path;
  };
  std::vector<Found> files;
  std::uint64_t total = 0;
  std::error_code error;
  for (const fs::directory_entry& each : fs::directory_iterator(path_, error)) {
    const std::string extension = each.path().extension().string();
    if (extension != kSuffix && extension != ".part") continue;
    const std::uint64_t bytes = each.file_size(error);
    if (error) continue;
    files.push_back({each.last_write_time(error), bytes, each.path()});
    total += bytes;
  }
  if (total <= most) return;
  std::sort(files.begin(), files.end(),
            [](const Found& a, const Found& b) { return a.time < b.time; });
  for (const Found& file : files) {
    if (total <= most / 2) return;
    if (fs::remove(file.path, error)) total -= file.bytes;
  }
}

}  // namespace teletensor::backends::cuda
