#include "engine/collective/call.h"

#include <string_view>

namespace teletensor::collective {
namespace {

// Mixes a value into a hash with the finalizer of splitmix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t x = hash + 0x9e3779b97f4a7c15u + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t moved(Rank from, Rank to, std::int64_t elements) {
  return mixed(mixed(mixed(1, from), to), static_cast<std::uint64_t>(elements));
}

std::string_view name_of(Op op) {
  constexpr std::string_view kNames[] = {"?",          "all_reduce",     "reduce",     "broadcast",
                                         "all_gather", "reduce_scatter", "all_to_all", "gather",
                                         "scatter",    "barrier",        "send",       "recv"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view name_of(Reduction reduction) {
  constexpr std::string_view kNames[] = {"?",   "sum",  "avg", "product", "min",
                                         "max", "band", "bor", "bxor"};
  return kNames[static_cast<std::size_t>(reduction)];
}

std::string listed(std::string_view name, const std::vector<std::int64_t>& values) {
  constexpr std::size_t kShown = 8;
  std::string text = ", " + std::string(name) + "=[";
  for (std::size_t i = 0; i < values.size() && i < kShown; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  }
  return text + (values.size() > kShown ? ", ...]" : "]");
}

bool rooted(Op op) {
  return op == Op::kReduce || op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter;
}

}  // namespace

std::string rank_text(Rank rank) { return "rank " + std::to_string(rank); }

bool reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}

bool whole(Op op) { return op == Op::kAllReduce || op == Op::kReduce || op == Op::kBroadcast; }

bool replicated(Op op) {
  return op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kAllGather || op == Op::kBarrier;
}

std::uint64_t fingerprint(const Call& call) {
  std::uint64_t hash = mixed(0, static_cast<std::uint64_t>(call.op));
  hash = mixed(hash, reduces(call.op) ? static_cast<std::uint64_t>(call.reduction) : 0);
  hash = mixed(hash, call.op == Op::kBarrier ? 0 : static_cast<std::uint64_t>(call.dtype));
  hash = mixed(hash, rooted(call.op) ? call.root : 0);
  hash = mixed(hash, whole(call.op) ? static_cast<std::uint64_t>(call.count) : 0);
  for (const std::int64_t count : call.counts) {
    hash = mixed(hash, static_cast<std::uint64_t>(count));
  }
  return hash;
}

std::uint64_t balance(const Call& call, Rank rank) {
  std::uint64_t sum = 0;
  for (Rank to = 0; to < call.sends.size(); ++to) {
    if (call.sends[to] > 0) sum += moved(rank, to, call.sends[to]);
  }
  for (Rank from = 0; from < call.receives.size(); ++from) {
    if (call.receives[from] > 0) sum -= moved(from, rank, call.receives[from]);
  }
  return sum;
}

std::string describe(const Call& call) {
  std::string text = std::string(name_of(call.op)) + "(";
  if (reduces(call.op)) text += std::string(name_of(call.reduction)) + ", ";
  if (call.op == Op::kReduce) text += "dst=" + std::to_string(call.root) + ", ";
  if (call.op == Op::kGather) text += "dst=" + std::to_string(call.root) + ", ";
  if (call.op == Op::kBroadcast || call.op == Op::kScatter) {
    text += "src=" + (call.root == kNoRank ? "lowest" : std::to_string(call.root)) + ", ";
  }
  if (call.op == Op::kSend) text += "dst=" + std::to_string(call.peer) + ", ";
  if (call.op == Op::kRecv && call.peer != kNoRank) {
    text += "src=" + std::to_string(call.peer) + ", ";
  }
  if (call.op != Op::kBarrier) {
    text += std::string(core::name_of(call.dtype)) + core::to_string(call.shape);
  }
  if (!call.counts.empty()) text += listed("sizes", call.counts);
  if (!call.sends.empty()) text += listed("sends", call.sends);
  if (!call.receives.empty()) text += listed("receives", call.receives);
  text += ")";
  return call.site.empty() ? text : text + " at " + call.site;
}

}  // namespace teletensor::collective
