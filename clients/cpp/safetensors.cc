#include "clients/cpp/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/geometry.h"

namespace teletensor::client {

using core::DType;
using core::Status;
using nlohmann::json;

namespace {

// Maximum size of the header in the file format, in bytes.
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::pair<const char*, DType> kCodes[] = {
    {"BOOL", DType::kBool}, {"U8", DType::kU8},   {"I8", DType::kI8},   {"I16", DType::kI16},
    {"I32", DType::kI32},   {"I64", DType::kI64}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
    {"F32", DType::kF32},   {"F64", DType::kF64}, {"C64", DType::kC64}, {"C128", DType::kC128},
    {"U16", DType::kU16},   {"U32", DType::kU32}, {"U64", DType::kU64},
};

Status damaged(const std::string& what) { return core::invalid("not a safetensors file: " + what); }

Status entry_of(const json& described, std::string_view data, SafetensorsFile::Entry& out) {
  const std::string code = described.at("dtype").get<std::string>();
  bool known = false;
  for (const auto& [name, dtype] : kCodes) {
    if (code == name) known = true, out.dtype = dtype;
  }
  if (!known) return damaged("it has a tensor of the unknown dtype " + code.substr(0, 20));
  for (const json& size : described.at("shape")) {
    if (!size.is_number_unsigned()) return damaged("the shape of a tensor is invalid");
    out.shape.push_back(size.get<std::int64_t>());
  }
  const auto count = core::checked_numel(out.shape);
  const json& offsets = described.at("data_offsets");
  if (!count.ok() || out.shape.size() > core::kMaxRank || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return damaged("the shape or the offsets of a tensor are invalid");
  }
  const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data.size() || (end - begin) % core::size_of(out.dtype) != 0 ||
      (end - begin) / core::size_of(out.dtype) != static_cast<std::uint64_t>(*count)) {
    return damaged("a tensor lies outside the file, or has another size than its shape");
  }
  out.bytes = data.substr(begin, end - begin);
  return {};
}

}  // namespace

core::Result<SafetensorsFile> SafetensorsFile::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::error_code ignored;
  if (!in || std::filesystem::is_directory(path, ignored)) {
    return Status(core::Code::kNotFound, "cannot open " + path);
  }
  SafetensorsFile file;
  const auto size = in.tellg();
  if (size < 0) return Status(core::Code::kNotFound, "cannot read " + path);
  file.contents_.resize(static_cast<std::size_t>(size));
  in.seekg(0);
  if (!in.read(file.contents_.data(), size)) {
    return Status(core::Code::kNotFound, "cannot read " + path);
  }
  try {
    const Status status = file.parse();
    if (!status.ok()) return Status(status.code(), path + ": " + status.message());
  } catch (const json::exception& error) {
    return core::invalid(path + ": " + damaged(error.what()).message());
  }
  return file;
}

Status SafetensorsFile::parse() {
  std::uint64_t length = 0;
  if (contents_.size() < 8) return damaged("it is too short");
  std::memcpy(&length, contents_.data(), 8);
  if (length > kMaxHeader || length > contents_.size() - 8) {
    return damaged("its header is truncated");
  }
  const std::string_view all(contents_.data(), contents_.size());
  const std::string_view header = all.substr(8, length), data = all.substr(8 + length);
  const json parsed = json::parse(header.begin(), header.end());
  if (!parsed.is_object()) return damaged("its header is not a JSON object");
  for (const auto& [name, described] : parsed.items()) {
    if (name == "__metadata__") {
      metadata_ = described.get<std::map<std::string, std::string>>();
      continue;
    }
    TT_RETURN_IF_ERROR(entry_of(described, data, entries_[name]));
  }
  return {};
}

const SafetensorsFile::Entry* SafetensorsFile::find(const std::string& name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second;
}

const std::string* SafetensorsFile::metadata(const std::string& key) const {
  const auto at = metadata_.find(key);
  return at == metadata_.end() ? nullptr : &at->second;
}

}  // namespace teletensor::client
