// Pages that other processes of this machine map: anonymous files (memfd), sealed against a change
// of their size, which would kill whoever reads them.
#pragma once

#include <cstddef>

namespace teletensor::memory {

// Puts a file in the place of the private pages [pages, pages + length): their first `used` bytes
// are copied, the addresses stay. Who has the descriptor may map it, never write to it; this
// process writes on through the addresses. The descriptor; -1 (nothing has changed) where the
// system refuses. Precondition: map_pages() made the pages, and nobody writes to them meanwhile
// (reading is fine).
int share_pages(void* pages, std::size_t length, std::size_t used);

// New zeroed pages that whoever has the descriptor may write to. The descriptor, and where they
// are mapped here; -1 where the system refuses.
int open_pages(std::size_t length, void** pages);

// Takes the pages of open_pages() away from everybody who maps them (who reads zeros from then on)
// and closes the descriptor.
void withdraw_pages(int descriptor, void* pages, std::size_t length);

}  // namespace teletensor::memory
