// Ranges: a set of elements. Region: a list of ranges that are stored one after another.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "engine/collective/group.h"

namespace teletensor::collective {

// Divides the range into segments of `grain` elements; the last one may be smaller.
inline std::vector<Range> segments_of(Range range, std::int64_t grain) {
  std::vector<Range> segments;
  for (std::int64_t at = range.begin; at < range.end; at += grain) {
    segments.push_back({at, std::min(at + grain, range.end)});
  }
  return segments;
}

class Ranges {
 public:
  bool covers(Range range) const {
    if (range.size() == 0) return true;
    const auto after = ends_.upper_bound(range.begin);
    return after != ends_.begin() && std::prev(after)->second >= range.end;
  }
  // Returns false, without side effects, if the set already contains some of the elements.
  bool add(Range range) {
    if (range.size() == 0) return true;
    auto after = ends_.lower_bound(range.begin);
    if (after != ends_.end() && after->first < range.end) return false;
    if (after != ends_.begin() && std::prev(after)->second > range.begin) return false;
    if (after != ends_.end() && after->first == range.end) {
      range.end = after->second;
      after = ends_.erase(after);
    }
    if (after != ends_.begin() && std::prev(after)->second == range.begin) {
      std::prev(after)->second = range.end;
    } else {
      ends_[range.begin] = range.end;
    }
    return true;
  }

 private:
  std::map<std::int64_t, std::int64_t> ends_;  // begin -> end; no two ranges touch
};

class Region {
 public:
  void add(Range range) {
    ranges_.push_back(range);
    starts_.push_back(size_);
    size_ += range.size();
  }
  std::int64_t size() const { return size_; }
  // Returns true if the region has all elements of the range, stored one after another.
  bool has(Range range) const {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (!(ranges_[i].begin <= range.begin && range.begin < ranges_[i].end)) continue;
      std::int64_t end = ranges_[i].end;
      while (end < range.end && ++i < ranges_.size() && ranges_[i].begin == end) {
        end = ranges_[i].end;
      }
      return range.end <= end;
    }
    return false;
  }
  // The number of elements stored before `at`. Precondition: a range contains it.
  std::int64_t place_of(std::int64_t at) const {
    std::size_t i = 0;
    while (!(ranges_[i].begin <= at && at < ranges_[i].end)) ++i;
    return starts_[i] + at - ranges_[i].begin;
  }

 private:
  std::vector<Range> ranges_;
  std::vector<std::int64_t> starts_;
  std::int64_t size_ = 0;
};

}  // namespace teletensor::collective
