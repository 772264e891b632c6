#include "proto/wire/canonical.h"
#include "proto/wire/frame.h"
#include "proto/wire/reader/apply_reader.h"
#include "proto/wire/reader/kind_reader.h"

namespace teletensor::wire {

using core::Code;
using core::Status;
using program::Command;

namespace {

// Reads the body of one command. After an error the status says why, without the position in the
// frame.
class CommandReader : public PartReader {
 public:
  using PartReader::PartReader;

  Status read() {
    if (!fields_.next()) {
      if (!fields_.status().ok()) return std::move(fields_.status());
      return core::invalid("an empty command");
    }
    if (fields_.field() < field::kMade) {
      ApplyReader(context_, fields_, out_).read();
    } else {
      std::uint32_t made = 0;
      bool stated = false;
      if (fields_.field() == field::kMade) {
        stated = read_made(made) && fields_.next();
        if (!stated) fields_.bad("`made` without a command");
      }
      if (fields_.status().ok()) KindReader(context_, fields_, out_).read();
      if (fields_.status().ok() && fields_.next()) fields_.bad("one command has two kinds");
      if (!fields_.status().ok()) return std::move(fields_.status());
      const std::uint32_t ids = stated ? made : usual_made(out_.back());
      if (!context_.late.ok()) {
        out_.back() = program::Refused{context_.late.code(), context_.late.message(), ids};
      }
      if (!context_.thin || take_items(ids)) advance(ids);
    }
    return std::move(fields_.status());
  }
};

bool is_refused(const Command& command) {
  return std::holds_alternative<program::Refused>(command);
}

Status at_command(std::uint64_t seq, const Status& status) {
  return Status(status.code(), "frame: command " + std::to_string(seq) + ": " + status.message());
}

// Appends the instruction if it is known. Returns false if it must be decoded.
bool repeat(std::string_view body, KnownApplies& known, ReadContext& context,
            std::vector<Command>& out) {
  program::Repeated repeated;
  std::size_t items = 0;
  if (!known.find(body, context.next, repeated, items) ||
      items > context.limits.items - context.items) {
    return false;
  }
  context.items += items;
  ++context.next;
  out.emplace_back(std::move(repeated));
  return true;
}

// Sets `canonical` to the canonical form of a command that was refused with `status`, or late if
// that is ok. Returns false if there is no other form; `status` is then the reason, or ok if the
// late refusal stands.
[[gnu::noinline]] bool rewrite(std::string_view body, std::string& canonical, Status& status) {
  core::Result<std::string> form = canonical_command(body);
  if (form.ok() && *form != body) {
    canonical = std::move(*form);
    return true;
  }
  if (!form.ok() && !status.ok()) status = form.status();
  return false;
}

}  // namespace

Status FrameReader::read(std::string_view bytes, Frame& frame, KnownApplies* known) const {
  if (thin_) known = nullptr;
  frame.commands.clear();
  frame.first_seq = frame.first_id = frame.ack_upto = frame.attach_counter = frame.next_id = 0;
  if (bytes.size() > limits_.bytes) {
    return Status(Code::kResourceExhausted, "frame: " + std::to_string(bytes.size()) +
                                                " bytes, at most " + std::to_string(limits_.bytes));
  }
  // First reads the header and counts the commands, so that the list is allocated only once.
  Cursor cursor(bytes), commands;
  std::size_t count = 0;
  while (!cursor.done()) {
    const Cursor here = cursor;
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return core::invalid("frame: a malformed tag");
    const WireType expected = field == field::kCommands ? WireType::kBytes : WireType::kVarint;
    if (field > field::kCommands) {
      return core::invalid("frame: unknown field " + std::to_string(field));
    }
    if (type != expected) {
      return core::invalid("frame: field " + std::to_string(field) + " has the wrong wire type");
    }
    std::string_view body;
    bool whole = false;
    switch (field) {
      case field::kFirstSeq:
        whole = cursor.varint(frame.first_seq);
        break;
      case field::kFirstId:
        whole = cursor.varint(frame.first_id);
        break;
      case field::kAckUpto:
        whole = cursor.varint(frame.ack_upto);
        break;
      case field::kAttachCounter:
        whole = cursor.varint(frame.attach_counter);
        break;
      default:
        if (count++ == 0) commands = here;
        whole = cursor.bytes(body);
    }
    if (!whole) return core::invalid("frame: truncated");
  }
  if (count > limits_.commands) {
    return Status(Code::kResourceExhausted, "frame: " + std::to_string(count) +
                                                " commands, at most " +
                                                std::to_string(limits_.commands));
  }
  if (frame.first_seq == 0 || frame.first_id == 0 || frame.first_id >> 62 != 0) {
    return core::invalid("frame: first_seq and first_id start at 1");
  }
  ReadContext context{limits_, ops_, names_, thin_, protocol_, 0, frame.first_id, {}};
  frame.commands.reserve(count);
  std::string canonical;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t field = 0;
    WireType type{};
    std::string_view body;
    do {
      if (!commands.tag(field, type)) return core::internal("frame: changed");
      const bool whole = field == field::kCommands ? commands.bytes(body) : commands.skip(type);
      if (!whole) return core::internal("frame: changed");
    } while (field != field::kCommands);
    if (known != nullptr && repeat(body, *known, context, frame.commands)) continue;
    const std::size_t items = context.items;
    const program::HandleId next = context.next;
    // The readers expect the canonical form; a command that they refuse may have another form.
    // There is one call of them, so that they are inlined.
    for (std::string_view form = body;;) {
      Fields fields(form);
      context.late = {};
      CommandReader reader(context, fields, frame.commands);
      Status status = reader.read();
      if (status.ok() && !(thin_ && is_refused(frame.commands.back()))) break;
      if (form.data() == body.data() && rewrite(body, canonical, status)) {
        form = canonical;
        frame.commands.erase(frame.commands.begin() + static_cast<std::ptrdiff_t>(i),
                             frame.commands.end());
        context.items = items;
        context.next = next;
        continue;
      }
      if (!status.ok()) return at_command(frame.first_seq + i, status);
      break;
    }
    if (known == nullptr) continue;
    const auto* apply = std::get_if<program::Apply>(&frame.commands.back());
    if (apply != nullptr && !apply->inplace && context.next == next + 1) {
      known->decoded(*apply, context.items - items);
    }
  }
  frame.next_id = context.next;
  return {};
}

}  // namespace teletensor::wire
