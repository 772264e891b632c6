#include <utility>

#include "engine/core/inline_vector.h"
#include "engine/program/program.h"

namespace teletensor::program {

namespace {

template <class T>
std::uint64_t bytes_of(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

// The memory of the items that do not fit into the vector itself.
template <class T, std::size_t N>
std::uint64_t bytes_of(const core::InlineVector<T, N>& items) {
  return items.size() > N ? items.size() * sizeof(T) : 0;
}

std::uint64_t bytes_of(const core::Attributes& attributes) {
  std::uint64_t bytes = attributes.size() > 3 ? attributes.size() * sizeof(core::Attribute) : 0;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    bytes += bytes_of(attributes.at(i).ints) + attributes.at(i).text.size();
  }
  return bytes;
}

std::uint64_t bytes_of(const Block& block) {
  std::uint64_t bytes =
      bytes_of(block.parameters) + bytes_of(block.steps) + bytes_of(block.results);
  for (const Step& step : block.steps) {
    bytes += bytes_of(step.operands) + bytes_of(step.results) + bytes_of(step.attributes) +
             bytes_of(step.counts) + bytes_of(step.blocks);
    for (const Block& inner : step.blocks) bytes += bytes_of(inner);
  }
  return bytes;
}

}  // namespace

std::uint64_t memory_of(const Program& program) {
  std::uint64_t bytes = sizeof(Program) + bytes_of(program.values) + bytes_of(program.literals) +
                        bytes_of(program.body) + bytes_of(program.rebinds) +
                        bytes_of(program.gradients) + bytes_of(program.aliases) +
                        bytes_of(program.numbers) + bytes_of(program.parameter_names) +
                        bytes_of(program.origins);
  for (const Literal& literal : program.literals) bytes += literal.bytes.size();
  for (const std::string& name : program.parameter_names) bytes += name.size();
  for (const std::string& origin : program.origins) bytes += origin.size();
  return bytes;
}

namespace {

class Counted : public Program {
 public:
  Counted(Program program, std::shared_ptr<std::atomic<std::uint64_t>> total)
      : Program(std::move(program)), total_(std::move(total)), bytes_(memory_of(*this)) {
    total_->fetch_add(bytes_, std::memory_order_relaxed);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { total_->fetch_sub(bytes_, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<std::atomic<std::uint64_t>> total_;
  const std::uint64_t bytes_;
};

}  // namespace

std::shared_ptr<const Program> counted(Program program,
                                       std::shared_ptr<std::atomic<std::uint64_t>> total) {
  return std::make_shared<const Counted>(std::move(program), std::move(total));
}

}  // namespace teletensor::program
