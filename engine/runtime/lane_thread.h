// What a lane's thread agrees with the operating system.
//
// A lane computes for seconds on end; the threads that read sockets, and clients on this machine,
// need a core for some microseconds, often. The system looks whose turn it is when its clock ticks,
// 1 to 4 ms apart, so a lane offers its core between the parts of its work. From who offers, Linux
// takes what is left of its slice (6.18): lanes ask for short ones, and so keep their share of the
// cores beside other programs that compute.
#pragma once

#include <chrono>

namespace teletensor::runtime {

inline constexpr std::chrono::microseconds kLaneSlice{100};
inline constexpr std::chrono::microseconds kOfferEvery{200};

// The calling thread is a lane from now on, by name and by slice (kernels before 6.12 have one
// slice for all, and take nothing). Where that is refused, it offers nothing.
void begin_lane_thread();

// Whoever waits for this core goes first, where it is a lane's and has not been offered for
// kOfferEvery. Nothing on other threads.
void offer_core();

}  // namespace teletensor::runtime
