// The texts of asynchronous errors, which name the source lines that issued the failed commands.
#pragma once

#include <cstdint>
#include <string>

#include "clients/session/client_hooks.h"
#include "clients/session/frames/late_errors.h"

namespace teletensor::client {

// Returns the daemon's text with source lines of the program in place of command numbers, followed
// by the line that issued command `root`.
std::string explained(const ClientHooks& client, const std::string& text, std::uint64_t root);
// Returns the text of an asynchronous error that the current line raises: it names both lines and
// the number of further failed commands.
std::string explained(ClientHooks& client, const LateError& error);
// Returns a sentence about `error` for an exception of the same status code that the current line
// raises in its place.
std::string stands_for(const ClientHooks& client, const LateError& error);

}  // namespace teletensor::client
