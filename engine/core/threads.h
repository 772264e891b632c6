// Starting threads where the system may refuse one: a limit on processes, a container's limit on
// pids, no room for a stack.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace teletensor::core {

// The text of an error: the system refuses a thread, why, and which limits to look at.
std::string refused_thread(const std::system_error& error);

// Writes one line about the refused thread to stderr and ends the process with status 1.
[[noreturn]] void end_without_thread(const std::system_error& error);

// Starts a thread that the process cannot work without. If the system refuses it, the process ends
// with one line on stderr and status 1; so this is for threads of the start, when no session exists
// yet.
template <class Function>
std::thread start_thread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    end_without_thread(error);
  }
}

}  // namespace teletensor::core
