#include "clients/cpp/keeper.h"

#include <algorithm>
#include <utility>

namespace teletensor::client {

using core::Code;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kFirstPause{20}, kLongestPause{2000}, kLongestBulkPause{500};
// If no process listens for this long, the daemon is considered gone. A daemon that restores its
// sessions after a restart says how long to wait instead.
constexpr milliseconds kGone{1500};
// Time that the client adds to the lease, because the daemon counts the lease from the moment when
// it notices the disconnect.
constexpr seconds kMargin{10};
constexpr double kAttachTimeout = 5;
constexpr int kFutile = 50;  // Maximum number of consecutive streams that end without a message.

}  // namespace

Keeper::Keeper(Session& session, Route& route, std::string instance, const HelloAnswer& hello)
    : session_(session),
      route_(route),
      instance_(std::move(instance)),
      lease_seconds_(hello.lease_seconds),
      restart_(hello.restart),
      epoch_(hello.epoch) {
  const std::string address = route.address();
  if (!hello.ticket.empty() && (address.starts_with("unix:") || address.starts_with("/"))) {
    const std::string path = address.starts_with("/") ? address : address.substr(5);
    local_.emplace(ShareAddress{path + wire::kShareSuffix, hello.session, hello.ticket});
  }
  session_.stream().take_up(attach_, 0);
  thread_ = std::thread([this, end = start_stream()] { serve(end); });
}

std::shared_ptr<StreamEnd> Keeper::start_stream() {
  return session_.stream().attach(route_.channel()->run(attach_, local_ ? &*local_ : nullptr));
}

void Keeper::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  session_.stream().detach();
  if (thread_.joinable()) thread_.join();
}

bool Keeper::is_cut(const Status& status, const std::string& word) {
  // The daemon has saved the session for its successor, has moved it to a peer, is receiving it
  // from one, or is about to move it; or it refuses one more stream for now.
  for (const char* each : {"restart", "moved", "arriving", "resting", "streams"}) {
    if (word == each) return true;
  }
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
  session_.stream().lost(Status(Code::kUnavailable, "the session is lost: " + text));
}

void Keeper::serve(std::shared_ptr<StreamEnd> end) {
  for (int futile = 0; end;) {
    const std::uint64_t before = session_.stream().progress_upto();
    while (!end->wait(std::chrono::hours(1))) {
    }
    {
      const std::lock_guard lock(mutex_);
      attached_ = false;
    }
    futile = session_.stream().progress_upto() == before ? futile + 1 : 0;
    if (stopped_ || session_.stream().over() || lease_seconds_ == 0 || futile > kFutile ||
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

Status Keeper::attach(std::uint64_t number, AttachAnswer& answer, std::string* word) {
  AttachAsked asked;
  asked.instance = instance_;
  asked.attach = number;
  asked.epoch = epoch_;
  // In this order: completed_upto may be ahead of progress_upto, but never lag behind it.
  asked.progress_upto = session_.stream().progress_upto();
  asked.completed_upto = session_.stream().completed_upto();
  asked.uploads = session_.uploads_upto();
  asked.replay_from = session_.stream().replay_from();
  const auto reply = route_.channel()->unary(
      "/teletensor.v1.Compute/Attach", encode_attach(asked), kAttachTimeout, false,
      [this] { return stopped_.load(); }, word);
  TT_RETURN_IF_ERROR(reply.status());
  return decode_attach(*reply, answer);
}

std::shared_ptr<StreamEnd> Keeper::again(const StreamEnd& before) {
  const auto began = steady_clock::now();
  auto refused_since = steady_clock::time_point::max();
  milliseconds wait = kFirstPause, patience = std::max(kGone, restart_);
  while (pause(wait)) {
    std::string word;
    AttachAnswer answer;
    const Status status = attach(++attach_, answer, &word);
    if (status.ok() && !answer.moved_to.empty()) {
      if (const Status followed = route_.follow(answer.moved_to); !followed.ok()) {
        lost(Status(Code::kUnavailable,
                    "it has moved to " + answer.moved_to +
                        ", where this program does not go: " + followed.message()),
             "moved");
        return nullptr;
      }
      local_.reset();
      // Limits the rate if two daemons refer to each other.
      wait = std::min(2 * wait, kLongestPause);
      continue;
    }
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      if (stopped_) return nullptr;
      epoch_ = answer.epoch;
      if (answer.replay) {
        session_.stream().replay(attach_, answer.received_upto, answer.credit_upto,
                                 answer.credit_bytes, answer.bytes_received);
      } else {
        session_.stream().take_up(attach_, answer.received_upto);
      }
      auto end = start_stream();
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
    if (status.code() == Code::kUnavailable && word.empty()) route_.connect_again();
    wait = std::min(2 * wait, kLongestPause);
  }
  return nullptr;
}

bool Keeper::may_retry(const std::string& word, int tries) {
  // serve() learns of a lost connection meanwhile. A session may be paused, and other streams may
  // last, for seconds.
  const bool is_long = word == "resting" || word == "streams";
  const milliseconds wait =
      is_long ? std::min(kFirstPause * (1 + tries), kLongestBulkPause) : kFirstPause;
  if (lease_seconds_ == 0 || !pause(wait)) return false;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, seconds(lease_seconds_) + kMargin,
                    [this] { return attached_ || stopped_ || session_.stream().over(); });
  return attached_ && !stopped_ && !session_.stream().over();
}

}  // namespace teletensor::client
