#include "clients/cpp/route.h"

#include <utility>

namespace teletensor::client {

Route::Route(std::string address, Credentials credentials)
    : address_(std::move(address)), credentials_(std::move(credentials)) {
  connect();
}

std::string Route::address() const {
  const std::lock_guard lock(mutex_);
  return address_;
}

std::shared_ptr<Channel> Route::channel() const {
  const std::lock_guard lock(mutex_);
  return channel_;
}

void Route::set_session(const std::string& token) {
  const std::lock_guard lock(mutex_);
  session_ = token;
  set_metadata();
}

void Route::connect_again() {
  const std::lock_guard lock(mutex_);
  connect();
}

core::Status Route::follow(const std::string& address) {
  const std::lock_guard lock(mutex_);
  try {
    credentials_ = credentials_.at(address);
  } catch (const Error& error) {
    return core::invalid(error.what());
  }
  address_ = address;
  connect();
  return {};
}

void Route::connect() {
  const auto text = [](const std::string& pem) { return pem.empty() ? nullptr : pem.c_str(); };
  const tt_wire_tls tls{text(credentials_.authorities), text(credentials_.certificate),
                        text(credentials_.key)};
  channel_ = std::make_shared<Channel>(*teletensor_wire(), credentials_.target,
                                       credentials_.tls ? &tls : nullptr);
  set_metadata();
}

void Route::set_metadata() {
  std::vector<std::pair<std::string, std::string>> metadata;
  if (!credentials_.token.empty()) {
    metadata.emplace_back("authorization", "Bearer " + credentials_.token);
  }
  if (!session_.empty()) metadata.emplace_back("teletensor-token", session_);
  channel_->set_metadata(std::move(metadata));
}

}  // namespace teletensor::client
