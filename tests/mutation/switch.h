// Included by the compiler before every file with mutants (tests/mutation/build.py): says which one
// is active.
//
// MUTANT is the number of the mutant that replaces its original in this process; without
// it the program computes as usual. MUTANTS_REACHED names a file with one byte for each
// number: the byte becomes 1 as soon as the place is reached, also if the process crashes
// afterwards.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

struct TeletensorMutants {
  static constexpr int kMax = 4096;

  TeletensorMutants() {
    if (const char* number = std::getenv("MUTANT")) active = std::atoi(number);
    const char* path = std::getenv("MUTANTS_REACHED");
    const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void* bytes = ::mmap(nullptr, kMax, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (bytes != MAP_FAILED) reached = static_cast<volatile char*>(bytes);
  }

  int active = 0;
  char unread[kMax] = {};
  volatile char* reached = unread;
};

inline bool teletensor_mutant(int number) {
  static TeletensorMutants* const mutants = new TeletensorMutants;
  mutants->reached[number] = 1;
  return mutants->active == number;
}

// Reads the environment when the program starts, also if it has no memory left when it reaches the
// first place.
[[maybe_unused]] static const bool teletensor_mutants_are_read = teletensor_mutant(0);
