// Status and Result: report errors that a peer or the operating system can cause, in the engine, on
// the wire and in the server.
//
// The codes have the numbers of absl and gRPC, so server/ converts them by value. Bugs of this
// program are CHECK failures, not Statuses. An OK Status is a single pointer and cheap to pass.
//
// Clients show the text of a Status to their users, as the text of an exception. So it begins with
// the op or the call that was refused, and names the facts that caused the refusal.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace teletensor::core {

// The numbers are used on the wire and must never change.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// A code and a text. The compiler warns if a returned Status is ignored; a caller that may ignore
// an error says so with (void). Not thread-safe, but copies are independent of each other.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : state_(std::make_unique<State>(State{code, std::move(message)})) {}
  Status(const Status& other)
      : state_(other.state_ ? std::make_unique<State>(*other.state_) : nullptr) {}
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& other) { return *this = Status(other); }
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return state_ == nullptr; }
  Code code() const { return state_ ? state_->code : Code::kOk; }
  // "op: fact, shapes"; empty if OK. Valid until the Status is changed or destroyed.
  const std::string& message() const {
    static const std::string empty;
    return state_ ? state_->message : empty;
  }

 private:
  struct State {
    Code code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

// The error of an argument that the caller must change. It is the usual error of refused input.
inline Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}
// The error of a call that is valid but not supported here.
inline Status unimplemented(std::string message) {
  return Status(Code::kUnimplemented, std::move(message));
}
// The error of a state that only a bug can cause, of this program or of a peer.
inline Status internal(std::string message) { return Status(Code::kInternal, std::move(message)); }

// A T, or the Status that explains why there is none. T may be a type that can only be moved:
// `std::move(*result)` takes the value.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  // Precondition: the status is not OK.
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  // OK if there is a value.
  const Status& status() const { return status_; }
  // Precondition of the functions below: ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns the status of `expression` from the calling function unless it is OK. Also usable in a
// function that returns a Result. The expression is evaluated once.
#define TT_RETURN_IF_ERROR(expression)                                                          \
  do {                                                                                          \
    if (::teletensor::core::Status tt_status = (expression); !tt_status.ok()) return tt_status; \
  } while (false)

}  // namespace teletensor::core
