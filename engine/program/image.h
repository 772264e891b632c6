// Image: the complete state of a session at a moment when none of its instructions is running:
// handles, cells, tape, values, programs, and what waits for other ranks. It is what a snapshot
// contains and what a session is restored from.
//
// Objects refer to each other by their index in the lists below. An image that was read from a file
// is not trusted; the code that restores a session from it checks it. Its form in a file is
// SavedImage of proto/teletensor/v1/state.proto, where 0 stands for kNone.
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

  // The bytes of the storages are stored beside the image, in this order. A storage in the shared
  // tensor store is stored separately, because other sessions use it as well.
  struct Storage {
    core::Device device;
    std::uint64_t bytes = 0;
    std::uint64_t seq = 0;             // of the command that made the storage
    core::Ref<core::Shared> contents;  // only in the image of a live session
    std::uint64_t common = 0;          // number in the shared tensor store; 0 if it is not shared
    std::uint64_t writes = 0;          // lower bound of the number of writes to that storage
    std::string gone;                  // why the tensor is lost, if its stored bytes are outdated
  };
  // The contents of a storage at one point of the execution, or an error.
  struct Value {
    core::DType dtype = core::DType::kF32;
    core::Device device;
    std::int64_t elements = 0;
    Index storage = kNone;  // a value without storage and without failure has no contents
    Index failure = kNone;
    Index good = kNone;  // only with a failure: the last valid value before it
  };
  struct Failure {
    std::uint64_t seq = 0;  // of the command that failed
    core::Status status;
  };
  // A cell if it has elements (>= 0), otherwise a clock without a cell. The clock counts the writes
  // to a base tensor and its views.
  struct Clock {
    std::int64_t elements = -1;
    Index value = kNone;    // of the cell
    std::uint32_t now = 0;  // number of writes so far
    // Numbers of the writes whose commands had no effect, ascending.
    std::vector<std::uint32_t> taken_back;
    bool shared = false, read_only = false;  // for a cell whose storage other sessions use too
  };
  // Where a gradient goes: to result `output` of a node, or to a leaf. Without both, nowhere.
  struct Edge {
    Index node = kNone, leaf = kNone;
    std::uint32_t output = 0;
  };
  struct Handle {
    HandleId id = 0;  // 0: the client has dropped the handle, but another object refers to it
    core::Layout layout;
    Index cell = kNone, clock = kNone;
    Index base = kNone;                  // handle of the base; none if it is no view
    Index node = kNone;                  // the node that computed it; none for a leaf
    Index leaf = kNone;                  // handle that receives its gradient; none: itself
    Index grad = kNone;                  // handle that is its .grad
    std::uint8_t made = 0;               // how a view was created, as in SavedImage.Handle
    bool flag = false, retains = false;  // its own requires_grad; retain_grad() was called
    std::uint32_t output = 0, seen = 0;  // result of `node`; the clock when `node` was recorded
  };
  // An operand of a recorded node: the layout of a tensor, or a number.
  struct Operand {
    core::Layout layout;
    core::Number number;
    bool is_number = false;
  };
  // A value that a node saved for its backward.
  struct Saved {
    int slot = 0;  // number of an operand, or ops::kResult and more for a result
    Index value = kNone;
    std::int64_t elements = 0;  // of its storage
    core::Layout layout;
    Edge edge;
    bool requires_grad = false;
  };
  // A recorded op on the tape.
  struct Node {
    std::uint64_t at = 0, seq = 0;  // position on the tape; number of the command
    OpId op = 0, label = 0;         // `label` is the op that the client called
    std::vector<Edge> edges;        // one for each operand
    std::vector<Operand> operands;
    std::vector<std::uint32_t> counts;
    core::Attributes attributes;
    std::vector<Saved> saved;
    std::vector<core::Layout> results;                      // set only if there are several
    std::vector<std::pair<std::uint32_t, Index>> retained;  // (output, handle)
    Index remade_for = kNone;                               // index of a handle
    // Whether a Forget has dropped its saved values, its backward reads a number operand, and a
    // backward has freed its saved values.
    bool forgotten = false, keeps_number = false, freed = false;
  };
  // An in-place command that may still be undone because of a late error.
  struct Undo {
    std::uint64_t seq = 0;
    Index cell = kNone, clock = kNone;
    std::uint32_t tick = 0;  // the clock after the write
    // The handle whose history changed (none if the write was not recorded), its new node, and its
    // previous node with the number of that node's result.
    Index base = kNone, node = kNone, old_node = kNone;
    std::uint32_t old_output = 0;
  };
  // A tape node of a view that was rebuilt.
  struct Remade {
    std::uint64_t seq = 0;
    Index clock = kNone, node = kNone;     // `node` is the new one
    Edge old;                              // the edge that it replaced
    std::uint32_t old_seen = 0, seen = 0;  // the clock for `old` and for `node`
  };

  std::vector<Storage> storages;
  std::vector<Failure> failures;
  std::vector<Value> values;  // a value comes after the `good` value that it refers to
  std::vector<Clock> clocks;
  std::vector<Handle> handles;
  std::vector<Node> nodes;
  std::vector<Undo> undo;
  std::vector<Remade> remade;
  std::vector<std::pair<std::uint64_t, Index>> recorded;        // (seq, node), ascending by seq
  std::vector<std::pair<std::string, Index>> kept;              // (name, handle), ascending by name
  std::vector<std::pair<std::uint64_t, std::string>> programs;  // (number, bytes), see serialize.h
  std::uint64_t tape_length = 0;
  HandleId next_id = 1;

  // ---- the state of the session outside of its graph
  std::uint64_t owner = 0;  // identifies the session as the owner of its storages
  struct Upload {
    std::uint64_t number = 0;
    Index storage = kNone;
  };
  // A bulk Fetch whose bytes the client has not taken yet.
  struct Download {
    std::uint64_t seq = 0, root = 0;
    core::Status status;
    core::DType dtype = core::DType::kF32;
    core::Device device;
    core::Dims shape;
    Index storage = kNone;  // set if the status is ok
    std::uint64_t offset = 0, bytes = 0;
  };
  std::uint64_t next_seq = 1, next_upload = 1;
  std::vector<Upload> uploads;  // complete uploads that are not bound to a handle yet
  std::vector<Download> downloads;
  std::vector<std::uint64_t> given_up;  // bulk fetches that the client no longer wants
  // Results of fetches up to this command are dropped, because an earlier client issued them.
  std::uint64_t forsaken_upto = 0;
  // Commands with smaller numbers are cancelled, including those that arrive later.
  std::uint64_t cancelled_below = 0;
  // A group of the session that continues after a restart. Its ranks had no open operations at the
  // time of the snapshot, except those among `entries`. All sessions of this daemon that belong to
  // the group store the same description of it.
  struct Group {
    struct Place {
      std::string daemon;
      std::vector<std::uint32_t> ranks;  // ascending
    };
    struct Transfers {  // point-to-point messages from one rank to another
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
    std::uint64_t number = 0;  // the number that the session uses for the group
    std::string name;
    std::uint32_t rank = 0, ranks = 1;
    std::uint64_t timeout_ms = 0;  // maximum time that a collective waits for other ranks
    std::uint64_t stamp = 0;       // differs between any two shutdowns
    // The incarnation of the daemon that formed the group, and the group's number among those that
    // it has formed.
    std::uint64_t former = 0, epoch = 0;
    std::vector<Place> places;          // empty if the group has not formed
    std::uint32_t place = 0;            // index of this daemon in `places`
    std::vector<std::uint32_t> joined;  // ranks on this daemon
    // Number of collectives that have run, and of the group's latest cut (engine/collective/cut.h).
    std::uint64_t collectives = 0, generation = 0;
    bool elastic = false;  // the group continues without ranks that are lost
    struct Lost {
      std::uint32_t rank = 0;
      std::string why;
    };
    std::vector<Lost> lost;  // the ranks that it has lost, in this order
    std::vector<Transfers> transfers;
    std::vector<FailedTransfer> failed_transfers;
  };
  std::vector<Group> groups;
  // A part of a command that has not run: a collective whose other ranks have not come, or an entry
  // of the queue behind it. `program` has one step (kRun), one literal (kConstant), or one
  // parameter and one result (kFetch); `values` has an index for each of its values. A value
  // without contents and failure is a result of one of the entries.
  struct Entry {
    enum class Kind : std::uint8_t { kRun, kConstant, kFetch };
    Kind kind = Kind::kRun;
    bool bulk = false;
    std::uint64_t seq = 0;
    std::int64_t seed = 0, ordinal = 0;  // of a random op
    std::string program;                 // see serialize.h
    std::vector<Index> values;
  };
  std::vector<Entry> entries;  // ascending by seq
  // Late errors that the client has not raised yet: the root, and the in-place commands that failed
  // because of it.
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> failed;
};

// All commands up to this one have run.
inline std::uint64_t completed_upto(const Image& image) {
  return (image.entries.empty() ? image.next_seq : image.entries[0].seq) - 1;
}

}  // namespace teletensor::program
