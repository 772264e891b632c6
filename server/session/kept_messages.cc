#include "server/session/kept_messages.h"

#include <algorithm>

namespace teletensor::server {

void KeptMessages::keep(std::uint64_t number, Message message, bool sent) {
  bytes_ += message->size();
  messages_.emplace_back(number, std::move(message));
  // The client reads messages without acknowledging them. It cannot reconnect if its stream is lost
  // after a message that it has not read was dropped.
  while (bytes_ > most_ && messages_.size() > unsent_ + 1) {
    forget_upto(dropped_upto_ = messages_.front().first);
  }
  if (!sent) ++unsent_;
}

void KeptMessages::forget_upto(std::uint64_t number) {
  while (!messages_.empty() && messages_.front().first <= number) {
    bytes_ -= messages_.front().second->size();
    messages_.pop_front();
  }
  unsent_ = std::min(unsent_, messages_.size());
}

bool KeptMessages::rewind(std::uint64_t number) {
  forget_upto(number);
  unsent_ = messages_.size();
  return dropped_upto_ <= number;
}

KeptMessages::Message KeptMessages::next() {
  if (unsent_ == 0) return nullptr;
  return messages_[messages_.size() - unsent_--].second;
}

std::vector<std::pair<std::uint64_t, KeptMessages::Message>> KeptMessages::all() const {
  return {messages_.begin(), messages_.end()};
}

}  // namespace teletensor::server
