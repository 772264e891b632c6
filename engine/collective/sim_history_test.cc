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

// Numbers of so different sizes that the order of additions shows.
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

// Each rank's own sizes of one call.
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

struct Sight {  // one rank's step
  Rank rank;
  const Step* step;
};

Bytes expected(const std::vector<Sight>& sights, const Sight& mine, Rank ranks) {
  const Call& call = mine.step->call;
  const std::size_t item = item_of(call);
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
  if (call.op == Op::kBroadcast) return by_rank[call.root]->operand;
  Bytes result;
  for (Rank from = 0; from < ranks; ++from) {
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

void check_number(Number number, const World& world, const std::set<Rank>& lethal,
                  std::vector<std::string>& wrong) {
  std::vector<Sight> all;
  for (const Rank rank : world.group().present()) {
    for (const Step& step : world.program(rank)) {
      if (step.number == number) all.push_back({rank, &step});
    }
  }
  const Sight* failing = nullptr;
  bool desync = false;
  std::uint64_t sum = 0;
  for (const Sight& sight : all) {
    desync = desync || fingerprint(sight.step->call) != fingerprint(all.front().step->call);
    sum += balance(sight.step->call, sight.rank);
    if (failing == nullptr && sight.step->failed.code != core::Code::kOk) failing = &sight;
  }
  desync = desync || sum != 0;
  const std::string* text = nullptr;
  std::optional<Bytes> same;  // on all ranks
  for (const Sight& sight : all) {
    const auto bad = [&](const std::string& what) {
      wrong.push_back("#" + std::to_string(number) + " " + describe(sight.step->call) + ", rank " +
                      std::to_string(sight.rank) + ": " + what);
    };
    const Place place = world.group().place_of(sight.rank);
    if (!world.alive(place)) continue;
    const core::Status& status = sight.step->status;
    const std::optional<core::Status> ended = world.ended(place);
    if (sight.step->state != Step::State::kComplete) {
      // A stopped rank has not come so far; nor need a rank whose daemon has heard of the end.
      const bool stopped = ended || lethal.contains(sight.rank);
      if (!stopped || sight.step->state == Step::State::kDeposited) bad("is not complete");
      continue;
    }
    if (ended && status.message() == ended->message()) continue;
    if (text != nullptr && *text != status.message()) bad("another outcome: " + status.message());
    text = &status.message();
    if (status.ok() != (!desync && failing == nullptr)) bad("unexpected outcome: " + *text);
    if (!status.ok() && !desync &&
        text->find("rank " + std::to_string(failing->rank) + " in ") == std::string::npos) {
      bad("not the root: " + *text);
    }
    if (!status.ok() && desync &&
        text->find(describe(all.front().step->call)) == std::string::npos) {
      bad("does not name the calls: " + *text);
    }
    if (!status.ok()) continue;
    const Op op = sight.step->call.op;
    if (op != Op::kAllReduce && op != Op::kBroadcast && op != Op::kAllGather) {
      if (sight.step->result != expected(all, sight, world.group().ranks())) bad("wrong bits");
      continue;
    }
    if (!same) same = expected(all, sight, world.group().ranks());
    if (sight.step->result != *same) bad("wrong bits");
  }
}

void check_transfers(const World& world, const std::set<Rank>& lethal,
                     std::vector<std::string>& wrong) {
  std::map<std::int64_t, std::vector<Sight>> by_tag;  // each transfer of a history has its own
  for (const Rank rank : world.group().present()) {
    for (const Step& step : world.program(rank)) {
      if (step.number == 0) by_tag[step.call.tag].push_back({rank, &step});
    }
  }
  for (const auto& [tag, sights] : by_tag) {
    const Step* sent = nullptr;
    const Step* received = nullptr;
    bool over = false;
    for (const Sight& sight : sights) {
      (sight.step->call.op == Op::kSend ? sent : received) = sight.step;
      const Place place = world.group().place_of(sight.rank);
      const auto ended = world.ended(place);
      over = over || !world.alive(place) || ended || lethal.contains(sight.rank);
      if (!over && sight.step->state != Step::State::kComplete) wrong.push_back("a transfer hangs");
    }
    if (over) continue;
    const bool fails =
        sent->failed.code != core::Code::kOk || sent->call.count != received->call.count;
    if (sent->status.message() != received->status.message())
      wrong.push_back("a transfer: two outcomes");
    if (sent->status.ok() == fails) wrong.push_back("a transfer: " + sent->status.message());
    if (sent->status.ok() && sent->operand != received->result)
      wrong.push_back("a transfer: wrong bits");
  }
}

bool names(const std::string& text, const std::set<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) {
    const std::string name = "rank " + std::to_string(rank);
    const std::size_t at = text.find(name);
    return at != std::string::npos &&
           !std::isdigit(static_cast<unsigned char>(text[at + name.size()]));
  });
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
  place_ranks(dice);
  write_programs(dice);
  break_calls(dice);
  add_transfers(dice);
  if (dice.chance(10)) {
    const Rank rank =
        present_[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(present_.size())))];
    plan_.stops[rank] = static_cast<std::size_t>(
        dice.below(static_cast<std::int64_t>(plan_.programs[rank].size())));
    lethal_.insert(rank);
  }
  if (dice.chance(60)) plan_.cut_every = 200 + dice.below(5000);
  if (dice.chance(40)) {
    plan_.late = 1000 + dice.below(30000);
    plan_.drains_again = static_cast<std::size_t>(1 + dice.below(6));
  }
  world_ = std::make_unique<World>(plan_, seed ^ 0x5bd1e995u);
  break_world(dice);
}

void History::place_ranks(Dice& dice) {
  const bool large = dice.chance(2);
  plan_.ranks = static_cast<Rank>(large ? 40 + dice.below(80) : 1 + dice.below(14));
  const Place places =
      static_cast<Place>(1 + dice.below(std::min<std::int64_t>(plan_.ranks, large ? 80 : 9)));
  constexpr Place kRadices[] = {64, 2, 3, 4, 8};
  plan_.radix = kRadices[dice.below(5)];
  const bool mixed = dice.chance(50);  // ranks anywhere, else neighbours together
  const Rank each = (plan_.ranks + places - 1) / places;
  std::vector<std::vector<Rank>> of(places);
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (plan_.ranks > 1 && dice.chance(5)) continue;  // left, or healed away
    of[mixed ? static_cast<std::size_t>(dice.below(places)) : rank / each].push_back(rank);
  }
  std::erase_if(of, [](const auto& ranks) { return ranks.empty(); });
  if (of.empty()) of = {{0}};
  for (const auto& ranks : of) present_.insert(present_.end(), ranks.begin(), ranks.end());
  std::sort(present_.begin(), present_.end());
  plan_.ranks_of = std::move(of);
  plan_.limits = small_limits();
  plan_.delay = 50 + dice.below(500);
  plan_.outstanding = static_cast<std::size_t>(1 + dice.below(10));
}

void History::write_programs(Dice& dice) {
  const Number numbers = static_cast<Number>(2 + dice.below(10));
  for (Number number = 1; number <= numbers; ++number) {
    add_collective(plan_, number, random_call(plan_.ranks, present_, 400, dice), dice);
  }
  add_collective(plan_, numbers + 1, Call(), dice);  // a barrier: nothing is kept behind it
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
  for (std::int64_t i = dice.chance(35) ? 1 + dice.below(3) : 0; i > 0; --i) {
    world_->at(time(), [this, p = place()] { world_->drain(p); });
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

std::vector<std::string> check(const World& world, const std::set<Rank>& lethal) {
  std::vector<std::string> wrong = world.wrong;
  if (!wrong.empty()) return wrong;
  Number last = 0;
  for (const Rank rank : world.group().present()) {
    for (const Step& step : world.program(rank)) last = std::max(last, step.number);
  }
  for (Number number = 1; number <= last; ++number) check_number(number, world, lethal, wrong);
  check_transfers(world, lethal, wrong);
  bool killed = false, over = false;
  for (Place place = 0; place < world.group().places(); ++place) {
    killed = killed || !world.alive(place);
    over = over || (world.alive(place) && world.ended(place));
  }
  for (Place place = 0; place < world.group().places(); ++place) {
    if (!world.alive(place)) continue;
    const auto ended = world.ended(place);
    if ((over || killed) && !ended) wrong.push_back("a survivor has not heard of the end");
    // A transfer waits for a rank that may itself wait for the one that has stopped.
    const bool transfer = ended && !lethal.empty() &&
                          (ended->message().find("timeout in send(") != std::string::npos ||
                           ended->message().find("timeout in recv(") != std::string::npos);
    if (ended && !transfer && !names(ended->message(), lethal))
      wrong.push_back("no true cause: " + ended->message());
  }
  // What the last barrier has retired; without one, results of the last numbers are still retained.
  const bool barrier =
      world.program(world.group().present().front()).back().call.op == Op::kBarrier;
  for (const std::string& name : barrier ? world.left_over() : std::vector<std::string>())
    wrong.push_back("is kept: " + name);
  if (wrong.size() > 5) wrong.resize(5);
  return wrong;
}

}  // namespace teletensor::collective::sim
