// prelude(): joins the texts under text/ and the headers of the functors into one text. CMake
// compiles the files into the binary.
#include <algorithm>
#include <string>
#include <string_view>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/codegen/texts.h"

namespace teletensor::backends::cuda {
namespace {

// Lines that the device does not need: includes (the one text contains every header after those
// that it uses), comments, and facts about the functors, which would become variables of each
// module.
bool dropped(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  for (const std::string_view start :
       {"#include", "#pragma once", "//", "static constexpr std::string_view kOp",
        "static constexpr Types kTypes", "static constexpr bool kLibm",
        "static constexpr int kCost"}) {
    if (line.starts_with(start)) return true;
  }
  return false;
}

void append(std::string& to, std::string_view text) {
  bool inside = false;  // in a declaration of several lines
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    const bool fact = inside || dropped(line);
    if (!fact) to += line;
    inside = fact && line.find("static constexpr") != line.npos
                 ? line.find(';') == line.npos
                 : inside && line.find(';') == line.npos;
    text.remove_prefix(end);
  }
}

std::string make_prelude() {
  std::string text;
  append(text, texts::kStd);
  append(text, "#ifdef __CUDACC_RTC__\n");
  append(text, texts::kHalf);
  append(text, "#else\n");
  append(text, texts::kCoreHalf);
  append(text, "#endif\n");
  for (const std::string_view header : {texts::kCoreComplex,   texts::kComplex,
                                        texts::kScalarMath,    texts::kScalarComplex,
                                        texts::kScalarCommon,  texts::kScalarBinary,
                                        texts::kScalarTernary, texts::kScalarUnary,
                                        texts::kScalarConvert, texts::kScalarGamma,
                                        texts::kScalarError,   texts::kScalarRare,
                                        texts::kScalarBessel,  texts::kScalarPolynomials,
                                        texts::kScalarSpecial, texts::kScalarRandom,
                                        texts::kScalarSteps,   texts::kScalarLosses,
                                        texts::kScalarSearch,  texts::kDevice,
                                        texts::kFold,          texts::kMatmul,
                                        texts::kRows,          texts::kRandom,
                                        texts::kCalls,         texts::kPooling,
                                        texts::kCreation,      texts::kGates,
                                        texts::kOptimizers,    texts::kNorms,
                                        texts::kLosses,        texts::kScatter,
                                        texts::kConv,          texts::kAttention,
                                        texts::kTensorCores,   texts::kTensorAttention,
                                        texts::kScan,          texts::kSort,
                                        texts::kSelect,        texts::kSearch}) {
    append(text, header);
  }
  return text;
}

}  // namespace

std::string_view prelude() {
  static const std::string text = make_prelude();
  return text;
}

}  // namespace teletensor::backends::cuda
