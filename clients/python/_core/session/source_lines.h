// SourceLines knows the source lines of the commands that a session has issued last. RepeatedReads
// finds lines of a program that read values one by one. Both run under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace teletensor::client {

namespace nb = nanobind;

// The caller's position in the program; converted to a source line only when an error needs it.
struct Site {
  std::uint64_t seq = 0;
  PyObject* code = nullptr;  // The code object of the caller; a counted reference.
  int instruction = 0;
};

// The position of the program's code that calls the package. Its code is a new reference.
Site present_site();
// A source line such as "file.py:12 in train". Empty without a code object.
std::string line_of(const Site& site);

// The folder of the package's Python files, whose lines are internal: present_site() passes them
// over. pass_over() adds the folder of a library.
void set_package_folder(const std::string& folder);
void pass_over(const std::string& folder);

class SourceLines {
 public:
  SourceLines();
  ~SourceLines();
  SourceLines(const SourceLines&) = delete;
  SourceLines& operator=(const SourceLines&) = delete;

  // Records the line of command `seq`: `given` if it is not null, otherwise the present one.
  void note(std::uint64_t seq, const Site* given);
  // The position of a command. Null if it is no longer known.
  const Site* find(std::uint64_t seq) const {
    const Site& site = sites_[seq % kSites];
    return site.seq == seq ? &site : nullptr;
  }
  // The source line of a command. Empty if it is no longer known.
  std::string line(std::uint64_t seq) const {
    const Site* const site = find(seq);
    return site == nullptr ? "" : line_of(*site);
  }
  // If `last` is the last command, those up to this number are the older half of the commands whose
  // lines are known.
  static std::uint64_t fading_upto(std::uint64_t last) { return last - std::min(last, kSites / 2); }

  // Called without arguments each time kLap more commands were issued, while a command is being
  // issued. It must be C code that runs no Python code. Its exceptions are dropped.
  nb::object on_lap;

 private:
  // During kLap commands, another thread has enough time to report to the daemon the lines that it
  // is missing.
  static constexpr std::uint64_t kSites = 1 << 17, kLap = kSites / 4;
  struct Free {
    void operator()(Site* sites) const { std::free(sites); }
  };

  void end_lap();

  // Memory of calloc, whose pages are not resident until a site is written to them.
  std::unique_ptr<Site[], Free> sites_;
  std::uint64_t used_ = 0;  // The number of sites that were written to.
};

class RepeatedReads {
 public:
  // Reports that a command at this site has read the value of one element. At the kMany-th such
  // read in a row from one line, with few commands in between, on_many is called with the line.
  void note(const Site& site);

  nb::object on_many;

 private:
  static constexpr int kMany = 64;
  static constexpr std::uint64_t kFewCommands = 4;

  // Code object of the last element read, for comparison; a borrowed reference.
  const PyObject* code_ = nullptr;
  int instruction_ = 0, reads_ = 0;
  std::uint64_t seq_ = 0;
};

}  // namespace teletensor::client
