// The parts of HTTP's syntax that the library does not check or accepts in a part of their forms:
// the request line, names of headers, and Host (RFC 9110, RFC 9112).
#pragma once

#include <string>
#include <string_view>

namespace teletensor::server {

// The first line of a request, in the form that the library reads.
struct RequestLine {
  std::string method;
  // "*", or an absolute path with its query. Encoded letters, digits and the characters -._~ of the
  // path are decoded. Every other "%" is written as "%25", so that the library, which decodes the
  // path, takes an encoded "/" for no separator.
  std::string target;
  bool old = false;  // Whether the version is HTTP/1.0. A later HTTP/1 counts as HTTP/1.1.
  // Host and port of a target in absolute form ("GET http://HOST/PATH"), which count in place of
  // the header Host. Empty for other forms.
  std::string host;
};

// Reads a request line without its end. `scheme` is that of the connection: "http" or "https".
// Returns 0, or the HTTP status with which to refuse the line: 400 for a line that is malformed,
// 421 for a target of another scheme, 501 for a method that no server of this kind has, 505 for
// another version than HTTP/1.
int parse_request_line(std::string_view line, std::string_view scheme, RequestLine& parsed);

// Whether the text may be the name of a header.
bool is_header_name(std::string_view text);

// Whether the text is a host with or without a port, or empty, as the header Host may be.
bool is_host(std::string_view text);

// Whether two texts are equal but for the case of ASCII letters.
bool equals_ignoring_case(std::string_view a, std::string_view b);

// The present time as the header Date has it, in English whatever the locale.
std::string http_date();

}  // namespace teletensor::server
