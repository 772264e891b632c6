// Checks the conditions that hold for a simulated world that has ended.
#include <algorithm>

#include "engine/collective/sim_history_test.h"

namespace teletensor::collective::sim {
namespace {

using Wrong = std::vector<std::string>;

bool same(const core::Status& a, const core::Status& b) {
  return a.code() == b.code() && a.message() == b.message();
}

struct Sight {  // a step of one rank
  Rank rank;
  const Step* step;
};

Bytes expected(const std::vector<Sight>& sights, const Sight& mine, Rank ranks) {
  const Call& call = mine.step->call;
  const std::size_t item = core::size_of(call.dtype);
  std::vector<const Step*> by_rank(ranks, nullptr);
  for (const Sight& sight : sights) by_rank[sight.rank] = sight.step;
  if (reduces(call.op)) {
    if (call.op == Op::kReduce && mine.rank != call.root) return {};
    std::vector<const Bytes*> operands(ranks, nullptr);
    for (const Sight& sight : sights) operands[sight.rank] = &sight.step->operand;
    std::size_t begin = 0, end = static_cast<std::size_t>(call.count);
    if (call.op == Op::kReduceScatter) {
      begin = static_cast<std::size_t>(offset_of(call.counts, mine.rank));
      end = begin + static_cast<std::size_t>(call.counts[mine.rank]);
    }
    return reference_sum(call.dtype, call.reduction, operands, begin, end);
  }
  if (call.op == Op::kBroadcast) {
    return by_rank[call.root == kNoRank ? sights.front().rank : call.root]->operand;
  }
  Bytes result;
  for (Rank from = 0; from < ranks; ++from) {
    if (by_rank[from] == nullptr && call.op == Op::kAllGather) {  // zeros of a lost rank
      result.resize(result.size() + static_cast<std::size_t>(call.counts[from]) * item);
    }
    if (by_rank[from] == nullptr || call.op == Op::kBarrier) continue;
    const Bytes& operand = by_rank[from]->operand;
    std::size_t begin = 0, bytes = operand.size();
    if (call.op != Op::kAllGather) {
      const std::vector<std::int64_t>& sends = by_rank[from]->call.sends;
      begin = static_cast<std::size_t>(offset_of(sends, mine.rank)) * item;
      bytes = static_cast<std::size_t>(sends[mine.rank]) * item;
    }
    result.insert(result.end(), operand.begin() + static_cast<std::ptrdiff_t>(begin),
                  operand.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
  }
  return result;
}

// Lists the calls of a collective whose ranks disagree, by the lowest rank that makes each call.
std::string disagreement(const std::vector<Sight>& all) {
  std::vector<std::pair<Sight, int>> calls;  // with the number of ranks that make the call
  const bool equal = std::all_of(all.begin(), all.end(), [&](const Sight& sight) {
    return fingerprint(sight.step->call) == fingerprint(all.front().step->call);
  });
  for (const Sight& sight : all) {
    const auto known = std::find_if(calls.begin(), calls.end(), [&](const auto& call) {
      return !equal && fingerprint(call.first.step->call) == fingerprint(sight.step->call);
    });
    if (known != calls.end()) {
      ++known->second;
    } else {
      calls.emplace_back(sight, 1);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(calls.size(), 4); ++i) {
    text += (i > 0 ? ", rank " : "rank ") + std::to_string(calls[i].first.rank) +
            (i > 0 ? " in " : " is in ") + describe(calls[i].first.step->call);
  }
  if (calls.front().second > 1) {
    text += " (" + std::to_string(calls.front().second) + " ranks as rank " +
            std::to_string(calls.front().first.rank) + ")";
  }
  return text;
}

// The status of a collective on every rank, unless the epoch ends first.
core::Status outcome(Number number, const std::vector<Sight>& all) {
  const std::string group = "group \"sim\" #" + std::to_string(number) + ": ";
  std::uint64_t sum = 0;
  bool equal = true;
  for (const Sight& sight : all) {
    equal = equal && fingerprint(sight.step->call) == fingerprint(all.front().step->call);
    sum += balance(sight.step->call, sight.rank);
  }
  if (!equal || sum != 0) return core::invalid(group + disagreement(all));
  for (const Sight& sight : all) {
    Failed failed = sight.step->failed;
    const Call& call = sight.step->call;
    const bool has_root = std::any_of(all.begin(), all.end(), [&](const Sight& each) {
      return call.root == kNoRank || each.rank == call.root;
    });
    if (call.op == Op::kBroadcast && !has_root) {
      failed = {core::Code::kDeadlineExceeded, "rank " + std::to_string(call.root) + " is lost"};
    }
    if (failed.code == core::Code::kOk) continue;
    return {failed.code, group + "rank " + std::to_string(sight.rank) + " in " +
                             describe(sight.step->call) + ": " + failed.text};
  }
  return {};
}

// The status of a transfer on both ranks, unless the epoch ends first.
core::Status outcome(const Sight& sent, const Sight& received) {
  const std::string sender = "rank " + std::to_string(sent.rank);
  if (sent.step->call.count != received.step->call.count) {
    return core::invalid(sender + " is in " + describe(sent.step->call) + ", rank " +
                         std::to_string(received.rank) + " in " + describe(received.step->call));
  }
  const Failed& failed = sent.step->failed;
  if (failed.code == core::Code::kOk) return {};
  return {failed.code, sender + ": " + failed.text};
}

bool names(const std::string& text, const std::set<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) {
    const std::string name = "rank " + std::to_string(rank);
    const std::size_t at = text.find(name);
    return at != std::string::npos &&
           !std::isdigit(static_cast<unsigned char>(text[at + name.size()]));
  });
}

// The rank whose leaving is the reason given in the text.
std::optional<Rank> leaver(const World& world, const std::string& text) {
  for (const auto& [rank, last] : world.left) {
    if (text == "group \"sim\": rank " + std::to_string(rank) + " has left") return rank;
  }
  return std::nullopt;
}

// Returns true if a rank that has left explains why the step does not have its own outcome: a
// collective after the last one of that rank, or a transfer with it.
bool leaving_explains(const World& world, const Step& step, Rank partner) {
  const std::optional<Rank> rank = leaver(world, step.status.message());
  if (!rank) return false;
  return step.number != 0 ? step.number > world.left.at(*rank)
                          : *rank == partner || step.call.peer == kNoRank;
}

// Returns true if the rank has this outcome; otherwise it must have the end of the epoch instead.
// `partner` is the other rank of a transfer.
bool has(const World& world, const Sight& sight, const core::Status& outcome,
         const std::set<Rank>& lethal, const std::string& name, Wrong& wrong,
         Rank partner = kNoRank) {
  const Place place = world.group().place_of(sight.rank);
  const Step& step = *sight.step;
  if (!world.alive(place)) return false;
  const auto bad = [&](const std::string& what) {
    wrong.push_back(name + " " + describe(step.call) + ", rank " + std::to_string(sight.rank) +
                    ": " + what);
  };
  const std::optional<core::Status> ended = world.ended(place);
  if (step.state != Step::State::kComplete) {
    // A rank that has stopped does not reach the step, and a rank whose daemon was told of the end
    // need not reach it.
    const bool stopped = ended || lethal.contains(sight.rank);
    if (world.lost.contains(sight.rank) && ended) return false;
    if (!stopped || step.state == Step::State::kDeposited) bad("is not complete");
    return false;
  }
  if (same(step.status, outcome)) return true;
  if (leaving_explains(world, step, partner)) return false;
  // A rank that leaves ends later collectives; then the loss of a daemon may end the rest.
  const bool lost = !world.left.empty() && names(step.status.message(), lethal);
  const bool end = ended && same(step.status, *ended) && !leaver(world, ended->message());
  if (!ended || leaver(world, step.status.message()) || !(end || lost)) {
    bad("\"" + step.status.message() + "\" instead of \"" + outcome.message() + "\"");
  }
  return false;
}

void check_number(Number number, const World& world, const std::set<Rank>& lethal, Wrong& wrong) {
  std::vector<Sight> all;
  for (const Rank rank : world.group().present()) {
    const auto lost = world.lost.find(rank);
    if (lost != world.lost.end() && lost->second && number > *lost->second) continue;
    for (const Step& step : world.program(rank)) {
      if (step.number == number) all.push_back({rank, &step});
    }
  }
  if (all.empty()) return;  // all ranks are lost
  const core::Status status = outcome(number, all);
  const std::string name = "#" + std::to_string(number);
  std::optional<Bytes> same;  // equal on all ranks
  for (const Sight& sight : all) {
    if (!has(world, sight, status, lethal, name, wrong) || !status.ok()) continue;
    const Op op = sight.step->call.op;
    const bool alike = op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kAllGather;
    if (!alike || !same) same = expected(all, sight, world.group().ranks());
    if (sight.step->result != *same) {
      wrong.push_back(name + " " + describe(sight.step->call) + ", rank " +
                      std::to_string(sight.rank) + ": wrong bits");
    }
  }
}

void check_transfers(const World& world, const std::set<Rank>& lethal, Wrong& wrong) {
  std::map<std::int64_t, std::vector<Sight>> by_tag;  // each transfer of a history has its own tag
  for (const Rank rank : world.group().present()) {
    for (const Step& step : world.program(rank)) {
      if (step.number == 0) by_tag[step.call.tag].push_back({rank, &step});
    }
  }
  for (auto& [tag, sights] : by_tag) {
    if (sights.front().step->call.op != Op::kSend) std::swap(sights.front(), sights.back());
    const Sight &sent = sights.front(), &received = sights.back();
    const core::Status status = outcome(sent, received);
    (void)has(world, sent, status, lethal, "transfer", wrong, received.rank);
    if (has(world, received, status, lethal, "transfer", wrong, sent.rank) && status.ok() &&
        sent.step->operand != received.step->result) {
      wrong.push_back("transfer " + std::to_string(tag) + ": wrong bits");
    }
  }
}

// Returns true if an end of the epoch names a rank that has stopped or was killed. A transfer that
// timed out names the rank that it waits for, which may itself wait for a lost rank; the world
// knows whether it does.
bool true_cause(const World& world, const std::string& text, const std::set<Rank>& lethal) {
  if (leaver(world, text)) return true;
  if (text.find(": timeout in ") == std::string::npos) return names(text, lethal);
  const bool transfer = text.find(": timeout in send(") != std::string::npos ||
                        text.find(": timeout in recv(") != std::string::npos;
  return world.timeouts.contains(text) && (transfer || names(text, lethal));
}

}  // namespace

Wrong check(const World& world, const std::set<Rank>& lethal) {
  Wrong wrong = world.wrong;
  if (!wrong.empty()) return wrong;
  Number last = 0;
  for (const Rank rank : world.group().present()) {
    for (const Step& step : world.program(rank)) last = std::max(last, step.number);
  }
  for (Number number = 1; number <= last; ++number) check_number(number, world, lethal, wrong);
  check_transfers(world, lethal, wrong);
  bool over = false;
  for (Place place = 0; place < world.group().places(); ++place) {
    over = over || (!world.gone(place) && (!world.alive(place) || world.ended(place)));
  }
  for (Place place = 0; place < world.group().places(); ++place) {
    if (!world.alive(place) || world.gone(place)) continue;
    const auto ended = world.ended(place);
    if (over && !ended) wrong.push_back("a survivor has not heard of the end");
    if (ended && !true_cause(world, ended->message(), lethal)) {
      wrong.push_back("no true cause: " + ended->message());
    }
  }
  // Entries that the last barrier has retired; without a barrier, results of the last collectives
  // are still retained.
  const bool barrier =
      world.program(world.group().present().front()).back().call.op == Op::kBarrier;
  for (const std::string& name : barrier || over ? world.left_over() : Wrong()) {
    wrong.push_back("is kept: " + name);
  }
  if (wrong.size() > 5) wrong.resize(5);
  return wrong;
}

}  // namespace teletensor::collective::sim
