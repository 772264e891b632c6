#include "server/net/http_syntax.h"

#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace teletensor::server {

namespace {

constexpr std::string_view kSubDelimiters = "!$&'()*+,;=";
constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST",  "PUT",
                                         "DELETE", "OPTIONS", "TRACE", "PATCH"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alphanumeric(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_unreserved(char c) {
  return is_alphanumeric(c) || std::string_view("-._~").find(c) != std::string_view::npos;
}
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return is_alphanumeric(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string::npos;
  });
}

// The value of a hexadecimal digit. -1 if it is none.
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | ' ');
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The character that is encoded at the begin of the text ("%6d"). -1 if none is.
int decoded(std::string_view text) {
  if (text.size() < 3 || text[0] != '%') return -1;
  const int high = hex_value(text[1]), low = hex_value(text[2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// Appends a path with its query to `target`. Returns false if it has characters that it may not
// have.
bool append_path(std::string_view path, std::string& target) {
  bool query = false;
  for (std::size_t at = 0; at < path.size(); ++at) {
    const char c = path[at];
    if (c == '%') {
      const int code = decoded(path.substr(at));
      if (code < 0) return false;
      if (query) {
        target += path.substr(at, 3);
      } else if (is_unreserved(static_cast<char>(code))) {
        target += static_cast<char>(code);
      } else {
        target.append("%25").append(path.substr(at + 1, 2));
      }
      at += 2;
    } else if (c == '?') {
      target += query ? "%3F" : "?";  // The library refuses a second one, which a query may have.
      query = true;
    } else if (is_unreserved(c) || std::string_view("/:@").find(c) != std::string_view::npos ||
               kSubDelimiters.find(c) != std::string_view::npos) {
      target += c;
    } else {
      return false;
    }
  }
  return true;
}

int parse_absolute(std::string_view target, std::string_view scheme, RequestLine& parsed) {
  const std::size_t colon = target.find("://");
  const std::string_view named = target.substr(0, colon);
  if (colon == target.npos || named.empty() || !std::all_of(named.begin(), named.end(), [](char c) {
        return is_alphanumeric(c) || std::string_view("+-.").find(c) != std::string_view::npos;
      })) {
    return 400;
  }
  target.remove_prefix(colon + 3);
  const std::string_view host = target.substr(0, target.find_first_of("/?"));
  if (host.empty() || !is_host(host)) return 400;
  if (!equals_ignoring_case(named, scheme)) return 421;
  parsed.host = host;
  target.remove_prefix(host.size());
  if (target.empty() && parsed.method == "OPTIONS") {
    parsed.target = "*";
    return 0;
  }
  if (!target.starts_with('/')) parsed.target = "/";
  return append_path(target, parsed.target) ? 0 : 400;
}

}  // namespace

int parse_request_line(std::string_view line, std::string_view scheme, RequestLine& parsed) {
  parsed = {};
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last) return 400;
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1),
                         target = line.substr(first + 1, last - first - 1);
  if (!is_token(method) || target.empty() || target.find(' ') != target.npos) return 400;
  if (version.size() != 8 || !version.starts_with("HTTP/") || !is_digit(version[5]) ||
      version[6] != '.' || !is_digit(version[7])) {
    return 400;
  }
  if (version[5] != '1') return 505;
  if (std::find(std::begin(kMethods), std::end(kMethods), method) == std::end(kMethods)) {
    return 501;  // CONNECT, too: this server is no proxy.
  }
  parsed.method = method;
  parsed.old = version[7] == '0';
  if (target == "*") {
    parsed.target = target;
    return method == "OPTIONS" ? 0 : 400;
  }
  if (target.starts_with('/')) return append_path(target, parsed.target) ? 0 : 400;
  return parse_absolute(target, scheme, parsed);
}

bool is_header_name(std::string_view text) { return is_token(text); }

bool is_host(std::string_view text) {
  std::size_t end = 0;
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == text.npos || end == 1) return false;
    const std::string_view address = text.substr(1, end - 1);
    if (!std::all_of(address.begin(), address.end(),
                     [](char c) { return hex_value(c) >= 0 || c == ':' || c == '.'; })) {
      return false;
    }
    ++end;
  } else {
    for (; end < text.size() && text[end] != ':'; ++end) {
      const bool encoded = decoded(text.substr(end)) >= 0;
      if (!encoded && !is_unreserved(text[end]) &&
          kSubDelimiters.find(text[end]) == std::string_view::npos) {
        return false;
      }
      if (encoded) end += 2;
    }
    if (end == 0 && !text.empty()) return false;  // A port without a host.
  }
  if (end == text.size()) return true;
  return text[end] == ':' &&
         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(end) + 1, text.end(), is_digit);
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string http_date() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm at{};
  gmtime_r(&now, &at);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", kDays[at.tm_wday],
                at.tm_mday, kMonths[at.tm_mon], at.tm_year + 1900, at.tm_hour, at.tm_min,
                at.tm_sec);
  return text;
}

}  // namespace teletensor::server
