// The files that prelude() joins; CMake compiles them in (tt_embed).
#pragma once

#include <string_view>

namespace teletensor::backends::cuda::texts {

extern const std::string_view kStd, kHalf, kComplex, kDevice, kFold, kMatmul, kRows, kRandom,
    kCalls, kPooling, kCreation, kGates, kOptimizers, kNorms, kLosses, kScatter, kConv, kAttention,
    kTensorCores, kTensorAttention, kScan, kSort, kSelect, kSearch, kEmulate;  // text/*
extern const std::string_view kCoreHalf, kCoreComplex;
extern const std::string_view kScalarMath, kScalarComplex, kScalarCommon, kScalarBinary,
    kScalarTernary, kScalarUnary, kScalarConvert, kScalarGamma, kScalarError, kScalarRare,
    kScalarBessel, kScalarPolynomials, kScalarSpecial, kScalarRandom, kScalarSteps, kScalarLosses,
    kScalarSearch;

}  // namespace teletensor::backends::cuda::texts
