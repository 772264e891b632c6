#include "clients/session/error_text.h"

#include <cctype>
#include <set>
#include <string_view>
#include <utility>

namespace teletensor::client {
namespace {

constexpr std::size_t kMaxShown = 8;  // Maximum number of further failures that a text shows.

// Returns the source line of a failure and its text without numbers. Two failures with the same
// result failed in the same way.
std::pair<std::string, std::string> kind_of(const std::string& site, std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return {site, std::move(text)};
}

// One line for each kind of failure among the further ones that differs from the first one.
std::string other_kinds(const ClientHooks& client, const LateError& error) {
  std::set<std::pair<std::string, std::string>> seen = {
      kind_of(client.issued(error.root), error.status.message())};
  std::string out;
  std::size_t shown = 0, left = 0;
  for (const auto& [text, root] : error.further) {
    if (!seen.insert(kind_of(client.issued(root), text)).second) continue;
    if (++shown > kMaxShown) {
      ++left;
      continue;
    }
    out += "\nalso: " + explained(client, text, root);
  }
  if (left > 0) out += "\nand " + std::to_string(left) + " more of other kinds";
  return out;
}

}  // namespace

std::string explained(const ClientHooks& client, const std::string& text, std::uint64_t root) {
  // The text that memory/pool.cc writes before a command number.
  constexpr std::string_view kMade = "made by command ";
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t found = text.find(kMade, at);
    out.append(text, at, found - at);
    if (found == std::string::npos) break;
    std::size_t end = found + kMade.size();
    std::uint64_t seq = 0;
    for (; end < text.size() && text[end] >= '0' && text[end] <= '9'; ++end) {
      seq = seq * 10 + static_cast<std::uint64_t>(text[end] - '0');
    }
    const std::string site = client.issued(seq);
    out += site.empty() ? text.substr(found, end - found) : "made " + site;
    at = end;
  }
  if (const std::string site = client.issued(root); !site.empty()) out += "\n(issued " + site + ")";
  return out;
}

std::string explained(ClientHooks& client, const LateError& error) {
  std::string out = explained(client, error.status.message(), 0);
  const std::string site = client.issued(error.root), reader = client.here();
  if (!site.empty()) {
    const bool earlier = !reader.empty() && "at " + reader != site;
    out += earlier ? "\n(from an earlier line: issued " + site + "; raised at " + reader + ")"
                   : "\n(issued " + site + ")";
  }
  if (error.count > 1) {
    const std::string last = client.issued(error.last_root), others = other_kinds(client, error);
    out += others + "\n(" + std::to_string(error.count - 1) +
           (error.count == 2 ? " further command" : " further commands") + " failed" +
           (others.empty() ? " in the same way" : "") +
           (last.empty() ? "" : ", the last one issued " + last) +
           "; this exception stands for all of them)";
  }
  return out;
}

std::string stands_for(const ClientHooks& client, const LateError& error) {
  const std::string site = client.issued(error.root);
  return "\n(" + std::to_string(error.count) +
         (error.count == 1 ? " earlier command" : " earlier commands") + " failed in the same way" +
         (site.empty() ? "" : ", the first one issued " + site) +
         "; this exception stands for all of them)";
}

}  // namespace teletensor::client
