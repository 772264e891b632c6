// Functions that start threads and handle a refusal by the system: a limit on processes, a
// container's limit on pids, or no memory for a stack.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace teletensor::core {

// The text of an error when the system refuses a thread: the reason, and which limits to check.
std::string refused_thread(const std::system_error& error);

// Writes one line about the refused thread to stderr and terminates the process with status 1.
[[noreturn]] void end_without_thread(const std::system_error& error);

// Starts a thread that the process cannot work without. If the system refuses it, the process
// terminates with one line on stderr and status 1. Therefore it may only be used at the start, when
// no session exists yet.
template <class Function>
std::thread start_thread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    end_without_thread(error);
  }
}

}  // namespace teletensor::core
