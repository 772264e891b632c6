// Exchange: the data of one collective at one place, from the announcement of the own ranks until
// results stand and everything that others need has been sent.
//
// Segments of partial sums are added when those of all holders are there; segments of results are
// sent on as soon as they stand. A segment's additions are a Job of the owner; nothing here reads
// an element. No threads; the Outbox takes what is to be done.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "engine/collective/ranges.h"
#include "engine/collective/schedule.h"

namespace teletensor::collective {

class Exchange {
 public:
  // `calls`: of the ranks of the place, in their order. group, limits and out outlive it.
  Exchange(const Group& group, Place place, Number number, std::vector<Call> calls,
           const Limits& limits, Outbox& out);

  // Partial sums of up to Limits::eager go out before the vote.
  void announce();
  // All ranks have announced the same call; and unless it is small, its turn has come.
  void start();
  // Needs so little staging that it does not wait for its turn (Limits::active).
  bool small() const { return whole(calls_.front().op) && !schedule_.scattered; }
  // Finished, or the number fails, or the epoch is over: frees all staging; no more events.
  void release();

  // Segments of partial sums that a place may send before it hears of a credit.
  static constexpr std::int64_t kGranted = 2;
  // Staging that an exchange reserves itself has a lower index than this.
  static constexpr std::uint64_t kOwnStaging = 1000;

  // A Status where no such partial sums can come.
  core::Status check(Place from, const Message& message);
  // Where the payload of a result goes; a Status where no such result can come.
  core::Result<Slice> expect(Place from, const Message& message);
  // A payload is there, at `at`. Where this succeeds, staging there is the exchange's to free.
  core::Status receive(Place from, const Message& message, const Slice& at);
  // A job is done. False: not one of this exchange.
  bool reduced(std::uint64_t job);
  // Sends what can be sent; after a message of any kind from a place, its `done` may allow more.
  void pump();

  bool started() const { return started_; }
  // The results of the own ranks stand.
  bool complete() const { return started_ && missing_ == 0 && copies_ == 0; }
  // Also nobody waits for this place, and no staging is left.
  bool finished() const;
  // Places that have partial sums for this one, and send them when they know that it is its turn.
  const std::vector<Place>& givers() const { return givers_; }
  // Places from which something is missing.
  std::vector<Place> waits_for() const;

 private:
  struct Segment {  // of partial sums, owned here
    Range range;
    const Schedule::Owned* owned = nullptr;
    std::vector<std::optional<Slice>> given;
    std::size_t missing = 0;
    bool running = false;
  };
  struct Stage {
    std::vector<Segment> segments;  // ascending
    std::size_t reduced = 0;
    Sum sum;
    std::vector<Node> nodes;                              // what its slots are: own, then given
    std::map<Place, std::int64_t> granted, total, taken;  // segments, of each holder
  };
  struct Transfer {
    Place to = 0;
    int level = 0;
    bool partial = false;
    const Schedule::Part* part = nullptr;
    std::vector<Range> segments;
    std::size_t next = 0;
    std::int64_t granted = 0;
  };
  struct Running {
    enum class Kind { kPresum, kStage, kCopy } kind = Kind::kCopy;
    int level = 0;
    std::size_t segment = 0;
    Range range;
    std::int64_t counts = 0;  // elements that are no longer missing
  };

  void prepare();
  bool eager(const Forest& forest) const;
  bool may_send(const Transfer& transfer) const;
  void plan_stage(int level);
  void plan_transfers(int level);
  void plan_home();
  void presum();
  void give_operands();
  void run_stages();
  void run_segment(int level, std::size_t index);
  void stand(Range range, std::int64_t counts);
  void stage_reduced(const Running& done);
  void send_segment(Transfer& transfer);
  Transfer* transfer_to(Place to, int level);

  std::size_t node_bytes(const Node& node) const;
  Slice partial_at(int level, std::size_t node, Range range) const;
  std::vector<Slice> final_at(Range range) const;
  Slice part_at(Rank to, Rank from, Range range) const;
  Buffer staging(std::uint64_t index) const { return {number_, Buffer::Kind::kStaging, index}; }
  void copy(Slice from, std::vector<Slice> to, std::int64_t elements, Running running);

  core::Result<Segment*> segment_of(Place from, const Message& message, std::size_t* holder);

  const Group& group_;
  const Place place_;
  const Number number_;
  const std::vector<Call> calls_;
  const Limits& limits_;
  Outbox& out_;
  const Schedule schedule_;
  const std::int64_t item_;

  std::vector<Stage> stages_;
  std::vector<Region> regions_;   // what is held at each level
  std::vector<Ranges> partials_;  // of them: what has been added
  std::vector<Transfer> transfers_;
  std::vector<Place> givers_;
  std::vector<Rank> wanting_;  // own ranks that get the whole
  Region home_;                // elements of results that stand here where no rank wants them
  Ranges final_;
  std::map<std::pair<Rank, Rank>, Ranges> parts_;  // received, by (to, from)
  std::map<std::uint64_t, Running> running_;
  std::map<Buffer, std::int64_t> staged_;
  std::int64_t missing_ = 0;
  std::size_t copies_ = 0;
  bool started_ = false;
};

}  // namespace teletensor::collective
