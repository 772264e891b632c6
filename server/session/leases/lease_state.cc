// Writes the state of a lease into a snapshot, and restores it.
#include <algorithm>

#include "server/session/leases/lease.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

using core::MutexLock;
using core::Status;

void Lease::save(v1::SavedHead& head, v1::SavedBody& body) {
  head.set_id(client.id);
  head.set_name(client.name);
  head.set_named(client.named);
  head.set_user(client.user);
  head.set_token(token);
  head.set_completed_upto(outbox_.completed_upto());
  body.set_ticket(ticket);
  body.set_instance(client.instance);
  body.set_client_version(client.version);
  body.set_by_socket(client.by_socket);
  body.set_thin(client.thin);
  body.set_protocol(client.protocol);
  body.set_memory_quota(client.memory_asked);
  for (const program::AmountField& each : program::kAmountFields) {
    body.add_limits(client.limits.*each.field);
  }
  body.set_lease_seconds(static_cast<std::uint64_t>(client.lease.count()));
  for (const std::string& name : client.op_names) body.add_op_names(name);
  const Outbox::Sealed sealed = outbox_.seal();
  v1::SavedOutbox& outbox = *body.mutable_outbox();
  outbox.set_number(sealed.number);
  outbox.set_bytes_received(sealed.bytes_received);
  for (const auto& [number, message] : sealed.kept) {
    v1::SavedMessage& kept = *outbox.add_kept();
    kept.set_number(number);
    kept.set_progress(*message);
  }
  MutexLock lock(mutex_);
  body.set_attach(attach_);
  for (const auto& [root, status] : open_errors_) {
    v1::SavedError& error = *body.add_open_errors();
    error.set_root(root);
    error.set_code(static_cast<std::uint32_t>(status.code()));
    error.set_text(status.message());
  }
  for (const auto& [seq, text] : sites_) {
    v1::SavedSite& site = *body.add_sites();
    site.set_seq(seq);
    site.set_text(text);
  }
  for (const auto& [key, upload] : uploads_) {
    v1::SavedUploadKey& item = *body.add_upload_keys();
    item.set_key(key);
    item.set_upload(upload);
  }
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
  MutexLock lock(mutex_);
  attach_ = body.attach();
  origin_ = Origin::kRestored;
  met_ = true;  // The client that had the session has a complete lease term to return.
  detached_at_ = Clock::now();
  for (const v1::SavedError& error : body.open_errors()) {
    open_errors_.emplace(error.root(),
                         Status(static_cast<core::Code>(error.code() % 17), error.text()));
  }
  for (const v1::SavedSite& site : body.sites()) sites_.emplace(site.seq(), site.text());
  for (const v1::SavedUploadKey& item : body.upload_keys()) {
    uploads_.emplace_back(item.key(), item.upload());
  }
  const auto& storages = body.image().storages();
  no_replay_ = std::any_of(storages.begin(), storages.end(),
                           [](const auto& storage) { return storage.common() != 0; });
  restored_uploads_ = std::max<std::uint64_t>(body.image().next_upload(), 1) - 1;
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

bool Lease::over() const {
  MutexLock lock(mutex_);
  return ended_ && ending_.word != "daemon" && ending_.word != "restart" && ending_.word != "taken";
}

}  // namespace teletensor::server
