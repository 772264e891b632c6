// Exchange: transfers the data of one collective at one place, from the announcement of its ranks
// until their results are complete and all data that other places need has been sent.
//
// A segment of partial sums is added when it has arrived from all places that hold one; a segment
// of a result is sent as soon as it is complete. The owner of the participant runs the additions of
// a segment as a Job; the exchange reads no element. It has no threads, and adds its actions to the
// Outbox.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "engine/collective/exchange/ranges.h"
#include "engine/collective/exchange/schedule.h"

namespace teletensor::collective {

class Exchange {
 public:
  // `calls` are the calls of the place's ranks, in their order. group, limits and out must outlive
  // this object.
  Exchange(const Group& group, Place place, Number number, std::vector<Call> calls,
           const Limits& limits, Outbox& out);

  // Called when the ranks of this place have announced the collective. Partial sums of up to
  // Limits::eager are sent now, before the vote.
  void announce();
  // Called when all ranks have announced the same call and the turn of the collective has come;
  // exchanges that are small() need not wait for their turn.
  void start();
  // Returns true if it needs so little staging that it does not wait for its turn (Limits::active).
  bool small() const { return whole(calls_.front().op) && !schedule_.scattered; }
  // Frees all staging. Called when the collective is finished or fails, or the epoch is over;
  // nothing may be called afterwards.
  void release();

  // The number of segments of partial sums that a place may send before it receives a credit.
  static constexpr std::int64_t kGranted = 2;
  // Staging that an exchange reserves itself has a lower index than this.
  static constexpr std::uint64_t kOwnStaging = 1000;

  // Returns InvalidArgument if no peer may send these partial sums.
  core::Status check(Place from, const Message& message);
  // Returns the location to which the payload of a result must be written, or InvalidArgument if no
  // peer may send it.
  core::Result<Slice> expect(Place from, const Message& message);
  // Processes a payload that was written to `at`. If it succeeds, the exchange frees the staging
  // there.
  core::Status receive(Place from, const Message& message, const Slice& at);
  // Reports that a job has run. Returns false if it is not a job of this exchange.
  bool reduced(std::uint64_t job);
  // Sends all segments that may be sent. A new `done` in any message of a peer may allow more.
  void pump();

  bool started() const { return started_; }
  // Returns true if the results of this place's ranks are complete.
  bool complete() const { return started_ && missing_ == 0; }
  // Returns true if the exchange is complete, no other place waits for this one, and no job runs.
  bool finished() const;
  // The places that send their partial sums to this one when they know that its turn has come.
  const std::vector<Place>& givers() const { return givers_; }
  // The places whose partial sums are missing.
  std::vector<Place> waits_for() const;

 private:
  struct Segment {  // a segment of partial sums that this place adds
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
    std::vector<Node> nodes;  // the contents of its slots: own nodes, then received ones
    std::map<Place, std::int64_t> granted, total, taken;  // counts of segments, by sending place
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
  struct Level {
    Region region;    // the elements that this place holds
    Ranges complete;  // the part of them whose partial sums are complete
  };
  std::vector<Level> levels_;
  std::vector<Transfer> transfers_;
  std::vector<Place> givers_;
  std::vector<Rank> wanting_;  // ranks of this place that receive the whole
  Region home_;                // elements of a result that no rank of this place receives
  Ranges final_;
  std::map<std::pair<Rank, Rank>, Ranges> parts_;  // received parts of results, by (to, from)
  std::map<std::uint64_t, Running> running_;
  std::map<Buffer, std::int64_t> staged_;
  std::int64_t missing_ = 0;
  bool started_ = false;
};

}  // namespace teletensor::collective
