// GroupAdder: computes the additions of groups with the host's kernels, and allocates the memory
// for partial sums.
#pragma once

#include <memory>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/runtime/device.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

class GroupAdder final : public Groups::Adder {
 public:
  // The catalog, the host's device and the lanes must outlive this object. `owner` differs from all
  // sessions' numbers.
  GroupAdder(const ops::Catalog& catalog, Device& host, Lanes& lanes, memory::OwnerId owner);

  // Blocks of the jobs run on the calling thread and on free lanes.
  core::Status add(std::span<const collective::Job> jobs, const Address& address) override;
  // The memory is charged to no session; collective::Limits::staging bounds it for each group.
  core::Ref<memory::Storage> allocate(std::size_t bytes) override;

 private:
  struct Slot;
  struct Block;
  core::Status run(const Block& block, const Address& address);
  static std::vector<Slot> slots_of(const Block& block, const Address& address);
  char* room(Slot& slot, core::DType dtype, const core::Geometry& geometry);
  core::Status cast(Slot& slot, core::DType to, const core::Geometry& geometry);
  core::Status call(const ops::OpDef& op, backends::TensorArg a, backends::TensorArg b, Slot& into,
                    const core::Geometry& geometry);

  const ops::Catalog& catalog_;
  Device& host_;
  Lanes& lanes_;
  const CopyKernels copies_;
  const memory::PoolHandle pool_;
};

}  // namespace teletensor::runtime
