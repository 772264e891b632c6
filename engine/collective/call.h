// Call: the request of one rank for a collective or a transfer, and the hash of the parts that must
// be equal on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"

namespace teletensor::collective {

using Rank = std::uint32_t;
// The ordinal of a collective in its group, counted from 1 by every rank.
using Number = std::uint64_t;
inline constexpr Rank kNoRank = ~0u;

// These values are sent between daemons and are never renumbered.
enum class Op : std::uint8_t {
  kAllReduce = 1,
  kReduce = 2,         // to `root`
  kBroadcast = 3,      // from `root`
  kAllGather = 4,      // `counts`: elements of each rank
  kReduceScatter = 5,  // `counts`: elements that each rank receives
  kAllToAll = 6,       // `sends`, `receives`
  // To `root`: `sends` has one entry per rank, used at `root`; the root has `receives`.
  kGather = 7,
  kScatter = 8,  // from `root`: like kGather with the directions exchanged
  kBarrier = 9,  // announced only after all earlier calls of its daemon have finished
  kSend = 10,    // to `peer`, with `tag`; has no Number
  kRecv = 11,    // from `peer`, or from any rank if `peer` is kNoRank
};

// A premultiplied sum is a multiplication by the caller followed by a kSum.
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
  Reduction reduction = Reduction::kSum;  // for kAllReduce, kReduce, kReduceScatter
  core::DType dtype = core::DType::kF32;
  core::Dims shape;        // shape of the operand, for error messages
  std::int64_t count = 0;  // elements of the whole operand of kAllReduce, kReduce, kBroadcast
  Rank root = 0;           // kNoRank for kBroadcast: the lowest rank of the group
  std::vector<std::int64_t> counts;           // one count for each rank, equal on all ranks
  std::vector<std::int64_t> sends, receives;  // one count for each rank; these differ between ranks
  Rank peer = kNoRank;
  std::int64_t tag = 0;
  std::string site;  // the caller's source line: "train.py:41"
};

// A rank in messages: "rank 7".
std::string rank_text(Rank rank);
// Returns true if the operation adds operands of different ranks.
bool reduces(Op op);
// Returns true for all_reduce, reduce and broadcast, which send one whole operand through the tree.
bool whole(Op op);

// Returns true for operations whose results are equal on all ranks, which are those of an elastic
// group.
bool replicated(Op op);

// A hash of the parts of a call that must be equal on all ranks.
std::uint64_t fingerprint(const Call& call);
// The sum of all ranks' balances is 0 if each pair of ranks agrees on the number of elements that
// one sends to the other. If a pair disagrees, the sum is 0 with a probability of 2^-64.
std::uint64_t balance(const Call& call, Rank rank);
// A call in messages: "all_reduce(sum, float32[1024]) at train.py:41".
std::string describe(const Call& call);

}  // namespace teletensor::collective
