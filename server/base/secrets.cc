#include "server/base/secrets.h"

#include <openssl/crypto.h>
#include <sys/random.h>

namespace teletensor::server {

namespace {

constexpr std::size_t kMax = 64;

bool fill(void* bytes, std::size_t count) {
  return getrandom(bytes, count, 0) == static_cast<ssize_t>(count);
}

}  // namespace

std::string random_hex(std::size_t bytes) {
  unsigned char bits[kMax];
  if (bytes > kMax || !fill(bits, bytes)) return {};
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += "0123456789abcdef"[bits[i] >> 4];
    text += "0123456789abcdef"[bits[i] & 15];
  }
  return text;
}

std::optional<std::uint64_t> random_number() {
  std::uint64_t number = 0;
  if (!fill(&number, sizeof number)) return std::nullopt;
  return number;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace teletensor::server
