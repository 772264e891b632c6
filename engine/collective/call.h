// Call: what one rank asks of a collective, and what of it must be equal on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"

namespace teletensor::collective {

using Rank = std::uint32_t;
// The ordinal of a collective in its group, from 1. Every rank counts alike.
using Number = std::uint64_t;
inline constexpr Rank kNoRank = ~0u;

// These values travel between daemons and are never renumbered.
enum class Op : std::uint8_t {
  kAllReduce = 1,
  kReduce = 2,         // to `root`
  kBroadcast = 3,      // from `root`
  kAllGather = 4,      // `counts`: elements of each rank
  kReduceScatter = 5,  // `counts`: elements that each rank receives
  kAllToAll = 6,       // `sends`, `receives`
  kGather = 7,   // to `root`: `sends` has one entry per rank, used at `root`; root: `receives`
  kScatter = 8,  // from `root`, the other way round
  kBarrier = 9,  // is announced after all earlier calls of its daemon have finished
  kSend = 10,    // to `peer`, by `tag`; no Number
  kRecv = 11,    // from `peer`, or from any rank where it is kNoRank
};

// A premultiplied sum is a multiplication by the caller and a sum here.
enum class Reduction : std::uint8_t {
  kSum = 1,
  kAvg = 2,
  kProduct = 3,
  kMin = 4,
  kMax = 5,
  kAnd = 6,
  kOr = 7,
  kXor = 8,
};

struct Call {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;  // of kAllReduce, kReduce, kReduceScatter
  core::DType dtype = core::DType::kF32;
  core::Dims shape;        // of the operand: for the text of errors
  std::int64_t count = 0;  // elements of the whole: operand of kAllReduce, kReduce, kBroadcast
  Rank root = 0;
  std::vector<std::int64_t> counts;           // by rank, equal on all ranks
  std::vector<std::int64_t> sends, receives;  // by rank, each rank's own
  Rank peer = kNoRank;
  std::int64_t tag = 0;
  std::string site;  // the caller's line: "train.py:41"
};

// A rank in texts: "rank 7".
std::string rank_text(Rank rank);
// True where the operation adds operands of different ranks.
bool reduces(Op op);
// True for all_reduce, reduce and broadcast, which send one whole operand through the tree.
bool whole(Op op);

// A hash of the parts of a call that must be equal on all ranks.
std::uint64_t fingerprint(const Call& call);
// The sum of all ranks' balances is 0 where each pair of ranks agrees on how many elements one
// sends to the other. Where a pair disagrees, it is 0 with a probability of 2^-64.
std::uint64_t balance(const Call& call, Rank rank);
// A call in texts: "all_reduce(sum, float32[1024]) at train.py:41".
std::string describe(const Call& call);

}  // namespace teletensor::collective
