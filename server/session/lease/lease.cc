#include "server/session/lease/lease.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/base/log.h"
#include "server/base/secrets.h"
#include "server/session/codec.h"
#include "server/session/lease/saved_client.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

// The source line of a tensor is kept as long as the tensor is one of the session's kKeptTensors
// largest. A tensor may move up in the list when larger ones are freed, and the client may have
// forgotten its line by then.
constexpr std::size_t kKeptTensors = 500;

}  // namespace

bool lacks_command(const Lease& lease, std::uint64_t seq, std::chrono::milliseconds most) {
  const Clock::time_point since = lease.outbox().idle_since();
  return seq > lease.outbox().received_upto() && since != Clock::time_point{} &&
         Clock::now() - since > most && lease.streams().attached();
}

Status no_command_came(std::chrono::milliseconds waited) {
  return Status(Code::kDeadlineExceeded,
                "download: no command came for " + std::to_string(waited.count() / 1000) + " s");
}

std::string make_token() { return random_hex(16); }

Lease::Lease(Leases* table, std::string token, std::string ticket, ClientInfo client,
             const Limits& limits)
    : token(std::move(token)),
      ticket(std::move(ticket)),
      client(std::move(client)),
      table_(table),
      intake_(wire::FrameReader(limits.frame, this->client.ops, this->client.op_names,
                                this->client.thin, this->client.protocol)),
      outbox_(limits, this->client.survives(), this->client.attach_counter),
      streams_(this->client, outbox_),
      staging_(held_) {}

Lease::~Lease() = default;

Status Lease::submit(const LeaseCall* run, std::string_view bytes) {
  wire::Frame frame;
  TT_RETURN_IF_ERROR(intake_.read(bytes, frame));
  const core::Result<LeaseStreams::Arrival> arrival = streams_.arrive(run, frame, bytes.size());
  if (!arrival.ok()) return arrival.status();
  if (*arrival == LeaseStreams::Arrival::kReplaced) return {};
  outbox_.acknowledged(frame.ack_upto);
  if (*arrival == LeaseStreams::Arrival::kKnown) return {};
  return with_session([&](engine::Session& session) {
    session.submit(
        frame.first_seq, frame.first_id, std::move(frame.commands),
        [self = shared_from_this()](Status s) { self->consumed(std::move(s)); }, intake_.thin());
    return Status();
  });
}

void Lease::consumed(Status status) {
  if (!status.ok()) return table_->end(*this, std::move(status), "protocol");
  streams_.consumed();
  wake();
}

core::Result<Attached> Lease::attach(const AttachCall& call, std::string* word) {
  core::Result<LeaseStreams::Reattached> done = streams_.attach(call, saved_, word);
  if (!done.ok()) return done.status();
  if (done->older) {
    table_->lingering().dismiss(
        done->older, {Status(Code::kAborted, "a later attach has replaced this stream"), "fenced"});
  }
  log_info("session_attached", {{"session", client.name},
                                {"attach", call.attach},
                                {"from", done->reply.received_upto},
                                {"replay", done->reply.replay ? call.completed : 0}});
  return done->reply;
}

Status Lease::advised(Status status) const {
  return table_->reaper().detached().advise(client.user, std::move(status));
}

void Lease::set_sites(const CommandHistory::Sites& sites) {
  for (const auto& [seq, text] : sites) table_->slow_log().set_site(client.id, seq, text);
  commands_.add_sites(sites);
}

std::vector<std::uint64_t> Lease::wanted_sites(std::uint64_t upto) {
  const std::vector<std::uint64_t> slow = table_->slow_log().without_site(client.id);
  std::set<std::uint64_t> wanted(slow.begin(), slow.end()), kept;
  (void)with_session([&](engine::Session& session) {
    std::size_t rank = 0;
    for (const engine::Holding& held : session.largest(kKeptTensors)) {
      kept.insert(held.seq);
      if (rank++ < CommandHistory::kMaxSites) wanted.insert(held.seq);
    }
    return Status();
  });
  return commands_.without_site(std::move(wanted), std::move(kept), upto);
}

void Lease::save(v1::SavedHead& head, v1::SavedBody& body) {
  save_client(client, head, body);
  head.set_token(token);
  head.set_completed_upto(outbox_.completed_upto());
  body.set_ticket(ticket);
  const Outbox::Sealed sealed = outbox_.seal();
  v1::SavedOutbox& outbox = *body.mutable_outbox();
  outbox.set_number(sealed.number);
  outbox.set_bytes_received(sealed.bytes_received);
  for (const auto& [number, message] : sealed.kept) {
    v1::SavedMessage& kept = *outbox.add_kept();
    kept.set_number(number);
    kept.set_progress(*message);
  }
  body.set_attach(streams_.attach_counter());
  commands_.save(body);
  staging_.save(body);
}

void Lease::restore(const v1::SavedHead& head, const v1::SavedBody& body, const std::string& file) {
  Outbox::Sealed sealed;
  sealed.number = body.outbox().number();
  sealed.bytes_received = body.outbox().bytes_received();
  for (const v1::SavedMessage& kept : body.outbox().kept()) {
    sealed.kept.emplace_back(kept.number(), std::make_shared<const std::string>(kept.progress()));
  }
  const v1::SavedImage& image = body.image();
  const std::uint64_t received = image.next_seq() - 1;
  outbox_.restore(std::move(sealed), received,
                  image.entries_size() == 0 ? received : head.completed_upto());
  active_at_ = Clock::now().time_since_epoch().count();
  (void)saved_.set(file, received);
  commands_.restore(body);
  staging_.restore(body);
  streams_.restore(body.attach(),
                   {std::max<std::uint64_t>(image.next_upload(), 1) - 1,
                    std::any_of(image.storages().begin(), image.storages().end(),
                                [](const auto& storage) { return storage.common() != 0; })});
}

bool Lease::set_file(const std::string& file, std::uint64_t upto) {
  if (!saved_.set(file, upto)) return false;
  outbox_.written(upto);
  wake();
  return true;
}

void Lease::hand_on_file(Lease& next) {
  const auto [file, upto] = saved_.hand_on();
  (void)next.set_file(file, upto);
}

bool Lease::busy() {
  const core::Result<std::size_t> queued = with_session(
      [](engine::Session& session) -> core::Result<std::size_t> { return session.load().queued; });
  return queued.ok() && *queued != 0;
}

Clock::time_point Lease::unused_since() const {
  const Clock::time_point detached = streams_.detached_since();
  return detached == Clock::time_point{} ? detached : std::max(detached, active_at());
}

void Lease::wake() {
  if (const std::shared_ptr<LeaseCall> run = streams_.run()) run->wake();
}

void Lease::on_completed(std::uint64_t seq) {
  outbox_.completed(seq);
  active_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  wake();
}

// Runs in the session's executor, where no call can be failed for lack of memory. In that case the
// session ends.
template <class Act>
void Lease::tell(Act act) {
  const Status status = core::with_memory("what its client is to be told", act);
  if (!status.ok()) return table_->end(*this, status, "protocol");
  wake();
}

void Lease::on_fetched(engine::Fetched fetched) {
  tell([&]() -> Status {
    const Status status = outbox_.fetched(to_wire(std::move(fetched), table_->limits()));
    if (!status.ok()) table_->end(*this, status, "slow");
    return {};
  });
}

void Lease::on_error(engine::LateError error) {
  tell([&]() -> Status {
    error.status = LateErrors::shortened(advised(std::move(error.status)));
    commands_.failed(error.root, error.status);
    outbox_.error({error.root, std::move(error.status)});
    return {};
  });
}

void Lease::on_raised(engine::Raised raised) {
  commands_.raised(raised.root);
  outbox_.raised({raised.seq, raised.root, std::move(raised.rebinds)});
  wake();
}

void Lease::on_rank_lost(engine::LostRank lost) {
  outbox_.rank_lost({lost.group, lost.rank, std::move(lost.why)});
  wake();
}

void Lease::on_slow(engine::SlowOp slow) {
  const auto took = std::chrono::nanoseconds(slow.ns);
  if (took < table_->limits().slow) return;
  table_->slow_log().add({Clock::now(), client.id, client.user, client.name, std::move(slow.op),
                          took, slow.seq, commands_.site_of(slow.seq)});
}

}  // namespace teletensor::server
