#include "clients/session/commands.h"

#include <algorithm>

namespace teletensor::client {

using autograd::Handle;
using ops::Var;

namespace {

// Items of a command that are reserved for counts and single numbers.
constexpr std::size_t kOtherItems = 64;
// Number of commands after an out-of-memory error for which releases are sent at once.
constexpr std::uint64_t kShort = 4096;
// Number of releases that are collected before they are sent.
constexpr std::size_t kReleaseBatch = 8;

}  // namespace

Status nameable(const autograd::Graph& graph, const Handle& h) {
  if (h.id == 0) return outside_its_vmap();
  if (h.objects() == &graph.objects()) return {};
  if (h.layout.device.kind == core::DeviceKind::kMeta) return no_data();
  return core::invalid(
      "a tensor of another session cannot be used here; copy it into this session: with "
      "session.as_current(): y = teletensor.tensor(x.numpy())");
}

Commands::Commands(const SessionLimits& limits, ClientHooks& hooks, autograd::Graph& graph,
                   CommandStream& stream, Recorder& recorder, ProgramTable& programs,
                   Unsettled& open)
    : limits_(limits),
      hooks_(hooks),
      graph_(graph),
      stream_(stream),
      recorder_(recorder),
      programs_(programs),
      open_(open) {
  graph_.objects().on_death = [this](program::HandleId id) {
    releases_.push_back(id);
    stream_.hold_releases();
    if (tracer_) tracer_->died(id);
  };
}

Commands::~Commands() { graph_.objects().on_death = nullptr; }

void Commands::start_at(std::uint64_t next_seq, program::HandleId next_id,
                        std::uint64_t completed_upto, std::uint64_t handles) {
  handles_ = handles;
  seq_ = next_seq - 1;
  next_id_ = next_id;
  trimmed_ = completed_upto;
  stream_.start_at(next_seq, next_id, completed_upto);
}

bool Commands::short_of_room() const {
  return short_of_memory() || (limits_.most.handles != 0 && handles_ + 1024 > limits_.most.handles);
}

void Commands::note_shortage() { short_until_ = seq_ + kShort; }

Status Commands::ready(bool reads) {
  if (stream_.origin().is_parents()) [[unlikely]]
    return stream_.origin().check();
  if (!frozen_.ok() && !reads) [[unlikely]]
    return frozen_;
  if (open_.unsettled()) TT_RETURN_IF_ERROR(open_.settle());
  const std::uint64_t completed = stream_.completed_upto();
  if (completed > trimmed_ + 256 && !stream_.received().errors.any()) {
    graph_.undo().completed(trimmed_ = completed);
  }
  if (short_of_room() && !releases_.empty()) [[unlikely]]
    flush_releases();
  if (stream_.takes_after(seq_)) return {};
  TT_RETURN_IF_ERROR(hooks_.block([&] { return stream_.over() || stream_.takes_after(seq_); }));
  return stream_.status();
}

Status Commands::fits_frame(ops::OpId op, std::span<const Var> arguments,
                            const core::Attributes& attributes) const {
  const std::size_t items = arguments.size() + wire::items_of(attributes);
  if (items + kOtherItems <= limits_.frame.items) return {};
  return fits_frame(graph_.catalog().at(op).name, items);
}

Status Commands::fits_frame(std::string_view what, std::size_t items) const {
  if (items + kOtherItems <= limits_.frame.items) return {};
  return core::invalid(std::string(what) + ": " + std::to_string(items) +
                       " tensors and numbers in one call, at most " +
                       std::to_string(limits_.frame.items - kOtherItems) + " can be sent");
}

namespace {

std::vector<core::Dims> shapes_of(const autograd::Call& call) {
  std::vector<core::Dims> shapes;
  for (const Var& argument : call.arguments) {
    shapes.push_back(argument.is_tensor() ? autograd::handle_of(argument).layout.geometry.shape
                                          : core::Dims());
  }
  return shapes;
}

}  // namespace

void Commands::issue(const autograd::Call& call, bool inplace, std::uint32_t made) {
  core::InlineVector<program::Argument, 4> arguments;
  for (const Var& argument : call.arguments) {
    if (argument.is_tensor()) {
      arguments.push_back(program::Argument::of(autograd::handle_of(argument).id));
    } else if (argument.is_number()) {
      arguments.push_back(program::Argument::of(argument.number()));
    } else {
      arguments.push_back(program::Argument::absent());
    }
  }
  const wire::ApplyView view{call.op,
                             call.record,
                             inplace,
                             call.default_dtype,
                             {arguments.data(), arguments.size()},
                             call.counts,
                             *call.attributes};
  stream_.append(view, made);
  hooks_.note_site(++seq_);
  if (recorder_.shapes()) [[unlikely]]
    recorder_.add(Recorder::Shapes{seq_, shapes_of(call)});
  if (autograd::Tracer* trace = tracer()) [[unlikely]] {
    program::Apply apply;
    apply.op = call.op;
    apply.record = call.record;
    apply.inplace = inplace;
    apply.default_dtype = call.default_dtype;
    for (const program::Argument& argument : arguments) apply.arguments.push_back(argument);
    for (const std::uint32_t count : call.counts) apply.counts.push_back(count);
    apply.attributes = *call.attributes;
    trace->record(std::move(apply), seq_, next_id_ - made, made);
  }
  if (releases_.size() >= kReleaseBatch) flush_releases();
}

void Commands::issue(const program::Command& command, std::uint32_t made) {
  stream_.append(command, made);
  hooks_.note_site(++seq_);
  if (autograd::Tracer* trace = tracer()) [[unlikely]]
    trace->record(command, seq_, next_id_ - made, made);
}

Status Commands::wait_until(const std::function<bool()>& is_done) {
  TT_RETURN_IF_ERROR(hooks_.block([&] { return is_done() || !stream_.lost_status().ok(); }));
  return stream_.loss();
}

void Commands::trace_made(Handle& h) {
  if (tracer_->follows()) tracer_->made(h);
}

void Commands::flush_releases() {
  stream_.held_releases().let_go();
  for (const std::uint64_t fetch : std::exchange(takens_, {})) {
    begin();
    issue(program::Command(program::Taken{fetch}), 0);
  }
  while (programs_.has_released() && !tracer_) {
    const std::uint64_t number = programs_.take_released();
    begin();
    issue(program::Command(program::Undefine{number}), 0);
  }
  while (!releases_.empty()) {
    program::Release release;
    const std::size_t count = std::min<std::size_t>(releases_.size(), 512);
    release.handles.assign(releases_.begin(),
                           releases_.begin() + static_cast<std::ptrdiff_t>(count));
    releases_.erase(releases_.begin(), releases_.begin() + static_cast<std::ptrdiff_t>(count));
    handles_ -= count;
    begin();
    issue(program::Command(std::move(release)), 0);
  }
}

void Commands::idle() {
  if (!open_.unsettled() && stream_.takes_after(seq_)) flush_releases();
}

}  // namespace teletensor::client
