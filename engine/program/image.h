// Image: everything that a session is, at a moment when nothing of it runs: names, cells, tape,
// values, programs. What a snapshot is made of, and what a session is made from again.
//
// Objects refer to each other by their index in the lists below. An image that was read from a file
// is not trusted: whoever makes a session of it checks it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/program/command.h"

namespace teletensor::program {

struct Image {
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};

  // The bytes themselves travel beside the image, in this order, but for those of a common storage:
  // other sessions have that as well, so it travels by itself.
  struct Storage {
    core::Device device;
    std::uint64_t bytes = 0;
    std::uint64_t seq = 0;             // of the command that made it
    core::Ref<core::Shared> contents;  // of a live session's image
    std::uint64_t common = 0;          // which one; 0: none
    std::uint64_t writes = 0;          // how often that was written, at least
    std::string gone;                  // why it is not there, where its bytes are older
  };
  struct Value {
    core::DType dtype = core::DType::kF32;
    core::Device device;
    std::int64_t elements = 0;
    Index storage = kNone;  // no contents, where that and `failure` are none
    Index failure = kNone;
    Index good = kNone;  // with a failure
  };
  struct Failure {
    std::uint64_t seq = 0;
    core::Status status;
  };
  // A cell, where it has elements; else a clock of its own.
  struct Clock {
    std::int64_t elements = -1;
    Index value = kNone;
    std::uint32_t now = 0;
    std::vector<std::uint32_t> taken_back;
    bool shared = false, read_only = false;  // of a cell that other sessions have as well
  };
  struct Edge {
    Index node = kNone, leaf = kNone;
    std::uint32_t output = 0;
  };
  struct Handle {
    HandleId id = 0;  // 0: nobody's name any more, but something holds it
    core::Layout layout;
    Index cell = kNone, clock = kNone;
    Index base = kNone, node = kNone, leaf = kNone, grad = kNone;
    std::uint8_t made = 0;
    bool flag = false, retains = false;
    std::uint32_t output = 0, seen = 0;
  };
  struct Operand {
    core::Layout layout;
    core::Number number;
    bool is_number = false;
  };
  struct Saved {
    int slot = 0;
    Index value = kNone;
    std::int64_t elements = 0;
    core::Layout layout;
    Edge edge;
    bool requires_grad = false;
  };
  struct Node {
    std::uint64_t at = 0, seq = 0;
    OpId op = 0, label = 0;
    std::vector<Edge> edges;
    std::vector<Operand> operands;
    std::vector<std::uint32_t> counts;
    core::Attributes attributes;
    std::vector<Saved> saved;
    std::vector<core::Layout> results;
    std::vector<std::pair<std::uint32_t, Index>> retained;  // output, handle
    Index remade_for = kNone;                               // handle
    bool forgotten = false, keeps_number = false, freed = false;
  };
  // An in-place command that may still be taken back.
  struct Undo {
    std::uint64_t seq = 0;
    Index cell = kNone, clock = kNone;
    std::uint32_t tick = 0;
    Index base = kNone, node = kNone, old_node = kNone;
    std::uint32_t old_output = 0;
  };
  // A view's node that was made again.
  struct Remade {
    std::uint64_t seq = 0;
    Index clock = kNone, node = kNone;
    Edge old;
    std::uint32_t old_seen = 0, seen = 0;
  };

  std::vector<Storage> storages;
  std::vector<Failure> failures;
  std::vector<Value> values;  // a `good` one before those that name it
  std::vector<Clock> clocks;
  std::vector<Handle> handles;
  std::vector<Node> nodes;
  std::vector<Undo> undo;
  std::vector<Remade> remade;
  std::vector<std::pair<std::uint64_t, Index>> recorded;        // by seq, ascending
  std::vector<std::pair<std::string, Index>> kept;              // names, ascending
  std::vector<std::pair<std::uint64_t, std::string>> programs;  // number, bytes (serialize.h)
  std::uint64_t tape_length = 0;
  HandleId next_id = 1;

  // What the session knows besides.
  std::uint64_t owner = 0;  // whom its storages are charged to
  struct Upload {
    std::uint64_t number = 0;
    Index storage = kNone;
  };
  // A bulk Fetch whose bytes have not been taken.
  struct Download {
    std::uint64_t seq = 0, root = 0;
    core::Status status;
    core::DType dtype = core::DType::kF32;
    core::Device device;
    core::Dims shape;
    Index storage = kNone;  // where the status is ok
    std::uint64_t offset = 0, bytes = 0;
  };
  std::uint64_t next_seq = 1, next_upload = 1;
  std::vector<Upload> uploads;  // whole ones, not bound to a handle yet
  std::vector<Download> downloads;
  std::vector<std::uint64_t> given_up;  // bulk fetches that nobody wants
  std::uint64_t forsaken_upto = 0;
  std::uint64_t cancelled_below = 0;  // commands before it do not run, come or not
  // A group of the session that is to go on after a restart. All of its ranks were at rest, and
  // what is said of the group is the same in the images of all sessions of this daemon that are in
  // it.
  struct Group {
    struct Place {
      std::string daemon;
      std::vector<std::uint32_t> ranks;  // ascending
    };
    struct Transfers {  // from one rank to another
      std::uint32_t from = 0, to = 0;
      std::int64_t tag = 0;
      std::uint64_t sent = 0, received = 0;
    };
    struct FailedTransfer {
      std::uint32_t from = 0, to = 0;
      std::int64_t tag = 0;
      std::uint64_t number = 0;
      core::Status status;
    };
    std::uint64_t number = 0;  // the session's number of the group
    std::string name;
    std::uint32_t rank = 0, ranks = 1;
    std::uint64_t timeout_ms = 0;
    std::uint64_t stamp = 0;  // differs between two shutdowns
    std::uint64_t former = 0, epoch = 0;
    std::vector<Place> places;          // none: the group has not formed
    std::uint32_t place = 0;            // this daemon's
    std::vector<std::uint32_t> joined;  // ranks of this daemon
    std::uint64_t collectives = 0, generation = 0;
    std::vector<Transfers> transfers;
    std::vector<FailedTransfer> failed_transfers;
  };
  std::vector<Group> groups;
  // Roots that were not raised, each with the in-place commands that failed with it.
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> failed;
};

}  // namespace teletensor::program
