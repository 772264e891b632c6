#include "clients/session/error_text.h"

#include <string_view>

namespace teletensor::client {

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
    const std::string last = client.issued(error.last_root);
    out += "\n(" + std::to_string(error.count - 1) +
           (error.count == 2 ? " further command" : " further commands") +
           " failed in the same way" + (last.empty() ? "" : ", the last one issued " + last) +
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
