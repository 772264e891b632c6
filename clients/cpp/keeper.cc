#include "clients/cpp/keeper.h"

#include <algorithm>
#include <utility>

namespace teletensor::client {

using core::Code;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kFirstPause{20}, kLongestPause{2000};
// Nobody listens for so long, so the daemon is not there any more.
constexpr milliseconds kGone{1500};
constexpr seconds kMargin{10};  // beyond the lease: the daemon counts from when it noticed
constexpr double kAttachTimeout = 5;
constexpr int kFutile = 50;  // streams in a row that end without a word

}  // namespace

Keeper::Keeper(Session& session, Channel& channel, std::string instance, const HelloAnswer& hello)
    : session_(session),
      channel_(channel),
      instance_(std::move(instance)),
      lease_seconds_(hello.lease_seconds),
      epoch_(hello.epoch) {
  session_.take_up(attach_, 0);
  thread_ = std::thread([this, end = session_.attach(channel_.run(attach_))] { serve(end); });
}

void Keeper::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  session_.detach();
  if (thread_.joinable()) thread_.join();
}

bool Keeper::is_cut(const Status& status, const std::string& word) {
  if (word == "restart") return true;  // the daemon has kept the session for the next one
  if (!word.empty() && word != "fenced" && word != "slow") return false;
  const Code code = status.code();
  return code == Code::kOk || code == Code::kCancelled || code == Code::kUnknown ||
         code == Code::kDeadlineExceeded || code == Code::kInternal || code == Code::kUnavailable;
}

bool Keeper::is_refused(const Status& status) {
  const std::string& text = status.message();
  return text.find("refused") != std::string::npos ||
         text.find("No such file") != std::string::npos;
}

void Keeper::lost(const Status& status, const std::string& word) {
  std::string text = status.ok() ? "the daemon ended it" : status.message();
  text += " [" + (word.empty() ? std::string("connection") : word) + "]";
  session_.lost(Status(Code::kUnavailable, "the session is lost: " + text));
}

void Keeper::serve(std::shared_ptr<StreamEnd> end) {
  for (int futile = 0; end;) {
    const std::uint64_t before = session_.progress_upto();
    while (!end->wait(std::chrono::hours(1))) {
    }
    {
      const std::lock_guard lock(mutex_);
      attached_ = false;
    }
    futile = session_.progress_upto() == before ? futile + 1 : 0;
    if (stopped_ || session_.over() || lease_seconds_ == 0 || futile > kFutile ||
        !is_cut(end->status(), end->word())) {
      lost(end->status(), end->word());
      break;
    }
    end = again(*end);
  }
  changed_.notify_all();
}

bool Keeper::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopped_.load(); });
}

Status Keeper::attach(std::uint64_t number, std::string* word) {
  AttachAsked asked;
  asked.instance = instance_;
  asked.attach = number;
  asked.epoch = epoch_;
  // In this order: completed_upto may be ahead of what progress_upto says, never behind.
  asked.progress_upto = session_.progress_upto();
  asked.completed_upto = session_.completed_upto();
  asked.uploads = session_.uploads_upto();
  const auto reply = channel_.unary(
      "/teletensor.v1.Compute/Attach", encode_attach(asked), kAttachTimeout, false,
      [this] { return stopped_.load(); }, word);
  TT_RETURN_IF_ERROR(reply.status());
  return decode_attach(*reply, epoch_, received_upto_);
}

std::shared_ptr<StreamEnd> Keeper::again(const StreamEnd& before) {
  const auto began = steady_clock::now();
  auto refused_since = steady_clock::time_point::max();
  milliseconds wait = kFirstPause, patience = kGone;
  while (pause(wait)) {
    std::string word;
    const Status status = attach(++attach_, &word);
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      if (stopped_) return nullptr;
      session_.take_up(attach_, received_upto_);
      auto end = session_.attach(channel_.run(attach_));
      attached_ = true;
      changed_.notify_all();
      return end;
    }
    const auto now = steady_clock::now();
    const bool refused = is_refused(status);
    refused_since = refused ? std::min(refused_since, now) : steady_clock::time_point::max();
    if (before.word() == "restart" || word == "restart") patience = seconds(lease_seconds_);
    const bool gone = refused && now - refused_since > patience;
    if (gone || !is_cut(status, word) || now - began > seconds(lease_seconds_) + kMargin) {
      lost(status, gone ? "daemon" : word);
      return nullptr;
    }
    wait = std::min(2 * wait, kLongestPause);
  }
  return nullptr;
}

bool Keeper::comes_again() {
  if (lease_seconds_ == 0 || !pause(kFirstPause)) return false;  // serve() hears of it meanwhile
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, seconds(lease_seconds_) + kMargin,
                    [this] { return attached_ || stopped_ || session_.over(); });
  return attached_ && !stopped_ && !session_.over();
}

}  // namespace teletensor::client
