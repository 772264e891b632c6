// ValueReads reads the values of tensors. It keeps the values of small tensors that the client has
// sent, has read, or can derive from such values, so that reading them again needs no Fetch.
//
// A kept value belongs to a cell at one version: Graph::write, through which every write in the
// mirror goes, drops it. It is also dropped when an error is raised or commands are cancelled,
// because the command that makes a tensor may be one of those that failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "proto/wire/progress.h"

namespace teletensor::client {

class Session;
class ValueReads;

// The contents of a contiguous part of a cell. Cell::known refers to it for as long as the cell has
// these contents. Empty if they have not been received, or were dropped to save memory.
class KnownValue final : public core::Counted {
 public:
  KnownValue(ValueReads& reads, core::DType dtype, std::int64_t begin)
      : reads_(reads), dtype_(dtype), begin_(begin) {}
  ~KnownValue() override;

  // Whether it contains all elements of a tensor with this layout.
  bool contains(const core::Layout& layout) const;
  // The elements of such a tensor, row-major.
  std::string elements(const core::Layout& layout) const;

 private:
  friend class ValueReads;
  ValueReads& reads_;
  const core::DType dtype_;
  const std::int64_t begin_;  // Index of the first element in the storage.
  std::string bytes_;         // In the order of the storage.
  bool listed_ = false;       // Whether it is in the list of reads_.
  KnownValue* newer_ = nullptr;
  KnownValue* older_ = nullptr;
};

// Used by API threads only, one at a time. The object must outlive the graph of its session.
class ValueReads {
 public:
  // Size in bytes of the largest value that is kept, and the default of the bound on all of them.
  static constexpr std::size_t kLargest = 4096;
  static constexpr std::size_t kMost = 4 << 20;

  // `most_inline` is the size in bytes of the largest value that a Fetch can return directly.
  explicit ValueReads(std::uint64_t most_inline);
  ValueReads(const ValueReads&) = delete;
  ValueReads& operator=(const ValueReads&) = delete;

  // Returns the value of h without I/O if it is known. Returns nothing if the value must be
  // fetched: it is unknown, other sessions or the program itself may change it, or the read has to
  // raise an error (of the session, of a capture, or a pending one).
  std::optional<wire::FetchedValue> find(Session& session, const autograd::Handle& h);

  // A value that is being fetched.
  struct Asked {
    std::uint64_t seq = 0;  // Number of the Fetch.
    autograd::HandleRef h;
    autograd::HandleRef fetched;    // h, or the base of which h is a view.
    core::Ref<KnownValue> known{};  // Null if the value will not be kept.
  };
  // Issues a Fetch for the value of h. If h is a view of a small tensor, that tensor is fetched, so
  // that its other elements are known afterwards.
  core::Result<Asked> ask(Session& session, autograd::Handle& h);
  // Waits for the value of asked.h. As after Session::wait_fetched(), the caller must raise pending
  // errors before it uses the value.
  core::Result<wire::FetchedValue> wait(Session& session, const Asked& asked);

  // The contents of h, a new contiguous tensor, are `bytes`.
  void add(autograd::Handle& h, std::string_view bytes);
  // Whether the client may be able to derive the value of the op's result, which has this layout.
  bool may_derive(ops::OpId op, const core::Layout& result) const {
    const Derive derive = derives_[op];
    return derive != Derive::kNothing && (constructs(derive) || is_single(result));
  }
  // The elements of the op's result, a contiguous tensor with this layout, if `op` compares, adds,
  // subtracts, multiplies or negates single elements with known values, fills a small tensor with
  // one number, or counts in small integers. Empty if they do not follow, or might be rounded in
  // another way by a kernel.
  std::string derived(const Session& session, ops::OpId op, std::span<const ops::Var> arguments,
                      const core::Attributes& attributes, const core::Layout& result) const;
  // Like derived(), for an op that writes its result into arguments[0]. Must be called before the
  // write.
  std::string derived_inplace(const Session& session, ops::OpId op,
                              std::span<const ops::Var> arguments,
                              const core::Attributes& attributes) const;
  // Drops all values.
  void clear();

  // Number of calls that have waited for the daemon's answer.
  std::uint64_t waits() const { return waits_; }
  void count_wait() { ++waits_; }
  // Size in bytes of the largest value that is kept.
  std::size_t largest() const { return largest_; }
  // Bound on the memory of the known values, in bytes. 0 keeps no value.
  std::size_t most() const { return most_; }
  void set_most(std::size_t bytes);
  // The memory that the known values use.
  std::size_t used() const { return used_; }

 private:
  friend class KnownValue;
  enum class Derive : std::uint8_t {
    kNothing,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kAdd,
    kSub,
    kMul,
    kNeg,
    kFull,
    kArange
  };

  static bool constructs(Derive derive) {
    return derive == Derive::kFull || derive == Derive::kArange;
  }
  static bool is_single(const core::Layout& layout) {
    for (const std::int64_t size : layout.geometry.shape) {
      if (size != 1) return false;
    }
    return true;
  }
  bool is_small(const core::Layout& layout) const;
  // h, or its base if fetching that costs no more and makes more elements known.
  autograd::Handle& fetched_for(autograd::Handle& h) const;
  // The value of the only element of `argument`, if it is known and of this dtype. A number is
  // converted as the op converts it; nothing if the conversion is not obvious.
  template <class T>
  std::optional<T> element(core::DType dtype, const ops::Var& argument) const;
  template <class T>
  std::optional<bool> compared(Derive comparison, core::DType dtype,
                               std::span<const ops::Var> arguments) const;
  std::string comparison(Derive comparison, std::span<const ops::Var> arguments) const;
  template <class T>
  std::string computed(Derive operation, core::DType dtype,
                       std::span<const ops::Var> arguments) const;
  std::string arithmetic(Derive operation, std::span<const ops::Var> arguments,
                         const core::Attributes& attributes, const core::Layout& result) const;
  // The bytes of the number in this dtype. Empty if the conversion is not obvious.
  std::string element_of(core::DType dtype, const ops::Var& number) const;
  std::string filled(const ops::Var& number, const core::Layout& result) const;
  std::string counted(const ops::Var& start, const ops::Var& step,
                      const core::Layout& result) const;
  void keep(KnownValue& known, std::string bytes);
  void drop(KnownValue& known);
  void link(KnownValue& known);
  void unlink(KnownValue& known);

  const std::size_t largest_;
  std::vector<Derive> derives_;  // By op.
  std::size_t most_ = kMost;
  std::size_t used_ = 0;
  std::uint64_t waits_ = 0;
  KnownValue* newest_ = nullptr;  // The list of non-empty values, most recently used first.
  KnownValue* oldest_ = nullptr;
};

}  // namespace teletensor::client
