#include "engine/collective/sim_history_test.h"

#include <algorithm>

namespace teletensor::collective::sim {
namespace {

std::size_t item_of(const Call& call) { return core::size_of(call.dtype); }

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  return offset_of(sizes, static_cast<Rank>(sizes.size()));
}

std::int64_t operand_elements(const Call& call, Rank rank) {
  switch (call.op) {
    case Op::kAllGather:
      return call.counts[rank];
    case Op::kReduceScatter:
      return total(call.counts);
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return total(call.sends);
    case Op::kBarrier:
      return 0;
    default:
      return call.count;
  }
}

std::int64_t result_elements(const Call& call, Rank rank) {
  switch (call.op) {
    case Op::kReduce:
      return rank == call.root ? call.count : 0;
    case Op::kAllGather:
      return total(call.counts);
    case Op::kReduceScatter:
      return call.counts[rank];
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return total(call.receives);
    case Op::kBarrier:
      return 0;
    default:
      return call.count;
  }
}

// Numbers of such different sizes that the order of additions affects the result.
Bytes random_operand(core::DType dtype, std::int64_t elements, Dice& dice) {
  Bytes bytes(static_cast<std::size_t>(elements) * core::size_of(dtype));
  with_element(dtype, [&](auto element) {
    using Sum = decltype(element.read(nullptr, true));
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
      const double value = std::ldexp(static_cast<double>(dice.below(2001) - 1000),
                                      static_cast<int>(dice.below(31)) - 24);
      element.write(bytes.data() + i * core::size_of(dtype), static_cast<Sum>(value), false);
    }
  });
  return bytes;
}

// The sizes of one rank in a call.
Call own_call(const Call& call, Rank rank, const std::vector<std::vector<std::int64_t>>& matrix) {
  Call own = call;
  if (matrix.empty()) return own;
  const std::vector<std::int64_t> none(matrix.size(), 0);
  own.sends = call.op == Op::kScatter && rank != call.root ? none : matrix[rank];
  own.receives = none;
  if (call.op == Op::kGather) {
    for (Rank to = 0; to < matrix.size(); ++to) {
      if (to != call.root) own.sends[to] = 0;
    }
  }
  for (Rank from = 0; from < matrix.size(); ++from) {
    const bool sends = call.op != Op::kScatter || from == call.root;
    const bool receives = call.op != Op::kGather || rank == call.root;
    if (sends && receives) own.receives[from] = matrix[from][rank];
  }
  return own;
}

}  // namespace

Limits small_limits() {
  Limits limits;
  limits.whole = 64;
  limits.eager = 32;
  limits.segment = 64;
  limits.window = 256;
  limits.staging = 2048;
  limits.ahead = 6;
  return limits;
}

std::vector<std::vector<Rank>> in_order(Rank ranks, Rank each) {
  std::vector<std::vector<Rank>> places;
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank % each == 0) places.emplace_back();
    places.back().push_back(rank);
  }
  return places;
}

Call random_call(Rank ranks, const std::vector<Rank>& present, std::int64_t largest, Dice& dice) {
  constexpr core::DType kTypes[] = {core::DType::kF32,  core::DType::kF32, core::DType::kF16,
                                    core::DType::kBF16, core::DType::kF64, core::DType::kI32};
  constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kSum, Reduction::kAvg,
                                       Reduction::kMin, Reduction::kMax};
  Call call;
  call.op = dice.chance(40) ? Op::kAllReduce : static_cast<Op>(1 + dice.below(9));
  call.dtype = kTypes[dice.below(6)];
  call.reduction = kReductions[dice.below(5)];
  call.site = "train.py:" + std::to_string(1 + dice.below(99));
  call.root =
      present[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(present.size())))];
  if (whole(call.op)) call.count = dice.below(dice.chance(50) ? 12 : largest);
  if (call.op == Op::kAllGather || call.op == Op::kReduceScatter) {
    const bool even = dice.chance(50);
    const std::int64_t size = dice.below(20);
    call.counts.assign(ranks, 0);
    for (const Rank rank : present) call.counts[rank] = even ? size : dice.below(20);
  }
  call.shape = core::Dims{call.count};
  return call;
}

Call random_replicated(Rank ranks, const std::vector<Rank>& present, Dice& dice) {
  Call call;
  do {
    call = random_call(ranks, present, 400, dice);
  } while (!replicated(call.op));
  if (call.op == Op::kBroadcast && dice.chance(50)) call.root = kNoRank;
  return call;
}

void add_collective(Plan& plan, Number number, const Call& call, Dice& dice) {
  std::vector<std::vector<std::int64_t>> matrix;
  std::vector<Rank> present;
  for (const auto& ranks : plan.ranks_of) present.insert(present.end(), ranks.begin(), ranks.end());
  if (call.op == Op::kAllToAll || call.op == Op::kGather || call.op == Op::kScatter) {
    matrix.assign(plan.ranks, std::vector<std::int64_t>(plan.ranks, 0));
    for (const Rank from : present) {
      for (const Rank to : present) matrix[from][to] = dice.below(24);
    }
  }
  plan.programs.resize(plan.ranks);
  for (const Rank rank : present) {
    Step step;
    step.number = number;
    step.call = own_call(call, rank, matrix);
    step.operand = random_operand(call.dtype, operand_elements(step.call, rank), dice);
    step.result_bytes = static_cast<std::size_t>(result_elements(step.call, rank)) * item_of(call);
    plan.programs[rank].push_back(std::move(step));
  }
}

History::History(std::uint64_t seed) {
  Dice dice(seed);
  elastic_ = dice.chance(25);
  uneven_cuts_ = !elastic_ && dice.chance(40);
  place_ranks(dice);
  write_programs(dice);
  break_calls(dice);
  if (!elastic_) add_transfers(dice);
  if (!elastic_ && dice.chance(10)) {
    const Rank rank =
        present_[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(present_.size())))];
    plan_.stops[rank] = static_cast<std::size_t>(
        dice.below(static_cast<std::int64_t>(plan_.programs[rank].size())));
    lethal_.insert(rank);
  }
  plan_.leaves = !elastic_ && dice.chance(plan_.stops.empty() ? 15 : 70);
  if (dice.chance(60)) plan_.cut_every = 200 + dice.below(5000);
  if (uneven_cuts_ || dice.chance(30)) {
    plan_.late = (uneven_cuts_ ? 20000 : 1000) + dice.below(30000);
    plan_.drains_again = static_cast<std::size_t>((uneven_cuts_ ? 8 : 1) + dice.below(6));
  }
  world_ = std::make_unique<World>(plan_, seed ^ 0x5bd1e995u);
  break_world(dice);
  if (elastic_) lose_ranks(dice);
}

void History::lose_ranks(Dice& dice) {
  for (std::int64_t i = 1 + dice.below(4); i > 0; --i) {
    const Rank rank =
        present_[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(present_.size())))];
    lethal_.insert(rank);
    world_->at(dice.below(8000), [this, rank] { world_->lose(rank); });
  }
}

void History::place_ranks(Dice& dice) {
  const bool large = dice.chance(2);
  plan_.ranks = static_cast<Rank>(large ? 40 + dice.below(80) : 1 + dice.below(14));
  Place places =
      static_cast<Place>(1 + dice.below(std::min<std::int64_t>(plan_.ranks, large ? 80 : 9)));
  constexpr Place kRadices[] = {64, 2, 3, 4, 8};
  plan_.radix = kRadices[dice.below(5)];
  if (elastic_) plan_.radix = 0;
  if (uneven_cuts_) {
    plan_.radix = static_cast<Place>(2 + dice.below(2));
    places = plan_.radix + 1 + static_cast<Place>(dice.below(2)) * plan_.radix;
    plan_.ranks = places + static_cast<Rank>(dice.below(6));
  }
  // Ranks are on random places, or adjoining ranks on one place.
  const bool mixed = dice.chance(50);
  const Rank each = (plan_.ranks + places - 1) / places;
  std::vector<std::vector<Rank>> of(places);
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (plan_.ranks > 1 && dice.chance(5)) continue;  // the rank is absent
    of[mixed ? static_cast<std::size_t>(dice.below(places)) : rank / each].push_back(rank);
  }
  std::erase_if(of, [](const auto& ranks) { return ranks.empty(); });
  if (of.empty()) of = {{0}};
  for (const auto& ranks : of) present_.insert(present_.end(), ranks.begin(), ranks.end());
  std::sort(present_.begin(), present_.end());
  plan_.ranks_of = std::move(of);
  plan_.limits = small_limits();
  plan_.limits.elastic = elastic_;
  plan_.delay = 50 + dice.below(500);
  plan_.outstanding = static_cast<std::size_t>(1 + dice.below(10));
}

void History::write_programs(Dice& dice) {
  const Number numbers = static_cast<Number>(2 + dice.below(10));
  for (Number number = 1; number <= numbers; ++number) {
    const Call call = elastic_ ? random_replicated(plan_.ranks, present_, dice)
                               : random_call(plan_.ranks, present_, 400, dice);
    add_collective(plan_, number, call, dice);
  }
  add_collective(plan_, numbers + 1, Call(), dice);  // a barrier: nothing may be left after it
}

void History::break_calls(Dice& dice) {
  for (const Rank rank : present_) {
    for (Step& step : plan_.programs[rank]) {
      if (step.call.op == Op::kBarrier || !dice.chance(plan_.ranks > 20 ? 0 : 1)) continue;
      if (dice.chance(50)) {
        step.failed = {core::Code::kResourceExhausted, "out of memory at train.py:40"};
      } else if (whole(step.call.op)) {
        ++step.call.count;
        step.operand.resize(step.operand.size() + item_of(step.call));
        step.result_bytes += item_of(step.call);
      } else if (!step.call.sends.empty()) {
        ++step.call.receives[present_.front()];
        step.result_bytes += item_of(step.call);
      } else {
        step.call = Call();
        step.operand.clear();
        step.result_bytes = 0;
      }
    }
  }
}

void History::add_transfers(Dice& dice) {
  if (present_.size() < 2) return;
  const std::int64_t ranks = static_cast<std::int64_t>(present_.size());
  for (std::int64_t tag = 1, transfers = dice.below(6); tag <= transfers; ++tag) {
    const std::size_t from = static_cast<std::size_t>(dice.below(ranks));
    const std::size_t to =
        (from + 1 + static_cast<std::size_t>(dice.below(ranks - 1))) % present_.size();
    Step send, receive;
    send.call.op = Op::kSend;
    send.call.count = receive.call.count = dice.below(60);
    send.call.tag = receive.call.tag = tag;
    send.call.peer = present_[to];
    receive.call.op = Op::kRecv;
    receive.call.peer = dice.chance(30) ? kNoRank : present_[from];
    send.operand = random_operand(send.call.dtype, send.call.count, dice);
    receive.result_bytes = send.operand.size();
    if (dice.chance(5)) send.failed = {core::Code::kOutOfRange, "index 9 is out of range"};
    if (dice.chance(5)) {
      ++receive.call.count;
      receive.result_bytes += 4;
    }
    for (auto& [step, at] : {std::pair(&send, from), std::pair(&receive, to)}) {
      std::vector<Step>& program = plan_.programs[present_[at]];
      const std::int64_t index = dice.below(static_cast<std::int64_t>(program.size()));
      program.insert(program.begin() + index, std::move(*step));
    }
  }
}

void History::break_world(Dice& dice) {
  const Place places = world_->group().places();
  const auto place = [&] { return static_cast<Place>(dice.below(places)); };
  const auto time = [&] { return dice.below(8000); };
  const std::int64_t drains = dice.chance(25) ? 1 + dice.below(3) : 0;
  for (std::int64_t i = uneven_cuts_ ? 2 + drains : drains; i > 0; --i) {
    world_->at(time(), [this, p = place()] { world_->drain(p); });
  }
  if (dice.chance(25)) {  // some daemons at once, or nearly so
    const Time when = time(), apart = dice.chance(50) ? 1 : 1 + dice.below(4000);
    const Time patience = dice.chance(50) ? 1'000'000 : dice.below(4000);
    for (std::int64_t i = 1 + dice.below(places); i > 0; --i) {
      world_->at(when + dice.below(apart),
                 [this, p = place(), patience] { world_->shut_down(p, patience); });
    }
  }
  for (std::int64_t i = dice.chance(15) ? 1 + dice.below(2) : 0; i > 0; --i) {
    world_->at(time(), [this, p = place()] { world_->interrupt(p); });
  }
  if (places > 1 && dice.chance(8)) {
    const Place p = place();
    for (const Rank rank : world_->group().ranks_of(p)) lethal_.insert(rank);
    world_->at(time(), [this, p] { world_->kill(p); });
  }
}

std::vector<std::string> History::run() {
  if (!world_->run()) return {"does not come to an end"};
  return check(*world_, lethal_);
}

}  // namespace teletensor::collective::sim
