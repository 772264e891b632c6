// Pages that other processes of this machine can map: anonymous files (memfd), sealed against a
// change of size, because truncation would kill a process that reads them.
#pragma once

#include <cstddef>

namespace teletensor::memory {

// Replaces the private pages [pages, pages + length) by a file at the same addresses; their first
// `used` bytes are copied. A process with the descriptor may map the file for reading, but not for
// writing; this process continues to write through the addresses. Returns the descriptor, or -1
// with nothing changed if the system refuses. Precondition: map_pages() allocated the pages, and no
// thread writes to them during the call (reading is allowed).
int share_pages(void* pages, std::size_t length, std::size_t used);

// Creates zeroed pages that any process with the descriptor may write to. Sets `pages` to the
// address in this process and returns the descriptor; -1 if the system refuses.
int open_pages(std::size_t length, void** pages);

// Removes the pages of open_pages() from all processes that map them (which read zeros from then
// on) and closes the descriptor.
void withdraw_pages(int descriptor, void* pages, std::size_t length);

}  // namespace teletensor::memory
