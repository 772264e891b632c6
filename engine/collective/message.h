// Message: data that one place of a group sends to another. Action: a request of a participant to
// its owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/collective/vote.h"
#include "engine/core/status.h"

namespace teletensor::collective {

// Identifies memory that the owner of a participant keeps for it.
struct Buffer {
  enum class Kind : std::uint8_t {
    kOperand,  // operand of rank `index` in collective `number`
    kResult,   // result of rank `index` in collective `number`
    kStaging,  // allocated and freed by actions
    kSent,     // operand of a send, result of a receive: `index` is the deposit's token
    kReceived,
  };
  Number number = 0;
  Kind kind = Kind::kOperand;
  std::uint64_t index = 0;
  friend auto operator<=>(const Buffer&, const Buffer&) = default;
};

struct Slice {
  Buffer buffer;
  std::int64_t offset = 0, bytes = 0;
};

// These values are sent between daemons and are never renumbered.
enum class Kind : std::uint8_t {
  kVote = 1,     // number (kAnnounce, kExplain) or generation, level, vote
  kPartial = 2,  // number, level, range: sums of the sender's block, one node after another
  // Number, range: elements of a result; if one rank sends its part to another: from, to.
  kFinal = 3,
  kCredit = 4,  // number, level, range.end: the total number of segments that the receiver may send
  kProgress = 5,  // only `done`
  // No collective after `number` completes: code, text. Without `from`, transfers end as well;
  // otherwise the rank `from` has left.
  kEnd = 6,
  kQuery = 7,    // number: asks for which ranks the receiver waits
  kState = 8,    // number, claims: ranks and their states
  kOffer = 9,    // point to point: from, to, tag, number (order), vote: one claim, or a failure
  kAccept = 10,  // from, to, tag, number
  kData = 11,    // from, to, tag, number, range
  kDone = 12,    // from, to, tag, number, vote: a failure
  kAsk = 13,     // to: the sender wants to be told when the rank `to` has left
  kLeft = 14,    // from: a rank that has left: code, text. Its sends and receives are complete
};

enum class Purpose : std::uint8_t {
  kAnnounce = 1,  // a collective: all ranks have deposited these calls
  kExplain = 2,   // a collective that fails: the texts
  kHold = 3,      // a generation: the highest number of an announced collective
  kRest = 4,      // a generation: all collectives up to the cut have finished
  kRelease = 5,   // a generation: the group may continue
  kLeave = 6,     // all ranks of the place have left
  kLower = 7,     // a generation: the lowest number up to which all places have announced
};

inline constexpr std::size_t kStateClaims = 16;  // maximum number of ranks in one kState message

struct Message {
  Kind kind = Kind::kProgress;
  Purpose purpose = Purpose::kAnnounce;
  std::uint8_t level = 0;
  Number number = 0;
  Number done = 0;  // the sender has finished all collectives up to this number
  Range range;
  Rank from = kNoRank, to = kNoRank;
  std::int64_t tag = 0;
  Vote vote;
  std::int64_t payload = 0;  // bytes of payload that follow the message

  // The bytes of the link's header and of the texts.
  std::int64_t header_bytes() const {
    std::size_t bytes = 48 + vote.failure.size();
    for (const Claim& claim : vote.claims) bytes += 16 + claim.text.size();
    return static_cast<std::int64_t>(bytes);
  }
};

// Additions on equal ranges of several sources. All additions run in order, then the outputs are
// written.
struct Job {
  struct Source {
    Slice at;
    bool accumulated = false;  // true: the accumulating dtype; false: the operand's dtype
  };
  struct Output {
    std::uint32_t slot = 0;
    std::vector<Slice> to;      // each receives the same elements
    bool accumulated = false;   // true: a partial sum; false: rounded to the operand's dtype
    std::uint32_t divisor = 1;  // divisor of kAvg, applied before rounding
  };
  std::uint64_t id = 0;
  core::DType dtype = core::DType::kF32;
  Reduction reduction = Reduction::kSum;
  std::int64_t elements = 0;
  std::vector<Source> sources;
  std::vector<Addition> additions;
  std::vector<Output> outputs;
};

struct Action {
  enum class Kind : std::uint8_t {
    kSend,     // send a message with the contents of slices to a place, in order
    kReserve,  // allocate staging
    kFree,     // free staging; a job or message in progress keeps the memory that it uses
    kReduce,   // run the job, then call reduced(job.id)
    // `number` and `rank` (or `token`): the result is complete, or status has the error; for a
    // receive, rank is that of the sender.
    kComplete,
    kRetire,  // no place needs the operands and results of collective `number` any more
    kRunTo,   // sessions run until they have deposited collective `number`, and stop after it
    kAtRest,  // all ranks of the group rest after collective `number`: image() may be taken
    kGoOn,    // sessions may run freely again
    // The group continues without the ranks in message.vote.claims, whose texts say why, after
    // collective `number`. The owner drops their deposits; no action concerns these ranks any more.
    kLost,
    kEnded,  // the epoch is over: status
  };
  Kind kind = Kind::kSend;
  Place to = 0;
  Message message;
  std::vector<Slice> slices;
  Buffer buffer;
  std::int64_t bytes = 0;
  Job job;
  Number number = 0;
  Rank rank = kNoRank;
  std::uint64_t token = 0;
  core::Status status;
  bool interrupted = false;  // kAtRest: deposits after the cut were dropped
  bool lost = false;  // kComplete of a transfer: the other rank has left, or the epoch has ended
};

// The error of a message that no daemon of this version sends.
inline core::Status violation(const char* what) {
  return core::invalid(std::string("collective: a peer sends ") + what);
}

}  // namespace teletensor::collective
