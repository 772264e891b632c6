// Part of _bridge.cpp, which is one translation unit: the operators of which PyTorch's modules of
// attention consist in evaluation, composed of other operators of the device.
#pragma once

#include <ATen/Functions.h>

#include <cmath>
#include <optional>
#include <tuple>

namespace {

// A mask of attention as one that broadcasts with scores [batch, heads, targets, sources].
// PyTorch's numbers of masks: 0, [targets, sources]; 1, [batch, sources]; 2, that of the scores. A
// bool mask is true where a source is hidden; another one is added to the scores.
std::optional<at::Tensor> mask_of_scores(const std::optional<at::Tensor>& mask,
                                         std::optional<int64_t> type, c10::ScalarType dtype) {
  if (!mask || !mask->defined()) return std::nullopt;
  at::Tensor added = *mask;
  if (added.scalar_type() == at::kBool) {
    added = at::zeros(mask->sizes(), mask->options().dtype(dtype)).masked_fill(*mask, -INFINITY);
  }
  return type.value_or(2) == 1 ? added.unsqueeze(1).unsqueeze(1) : added;
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t, int64_t heads,
    const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out_weight,
    const at::Tensor& out_bias, const std::optional<at::Tensor>& mask, bool need_weights,
    bool average, std::optional<int64_t> mask_type) {
  const auto weights = weight.chunk(3), biases = bias.chunk(3);
  const auto projected = [&](const at::Tensor& x, std::size_t i) {
    return at::linear(x, weights[i], biases[i])
        .view({x.size(0), x.size(1), heads, -1})
        .transpose(1, 2);
  };
  const at::Tensor q = projected(query, 0), k = projected(key, 1), v = projected(value, 2);
  const auto added = mask_of_scores(mask, mask_type, q.scalar_type());
  at::Tensor mixed, shares;
  if (need_weights) {
    at::Tensor scores =
        at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
    if (added) scores = scores + *added;
    shares = scores.softmax(-1);
    mixed = at::matmul(shares, v);
    if (average) shares = shares.mean(1);
  } else {
    mixed = at::scaled_dot_product_attention(q, k, v, added);
  }
  return {at::linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias), shares};
}

at::Tensor transformer_encoder_layer(
    const at::Tensor& source, int64_t size, int64_t heads, const at::Tensor& weight,
    const at::Tensor& bias, const at::Tensor& out_weight, const at::Tensor& out_bias, bool gelu,
    bool norm_first, double eps, const at::Tensor& norm_weight_1, const at::Tensor& norm_bias_1,
    const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1,
    const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2, const at::Tensor& ffn_bias_2,
    const std::optional<at::Tensor>& mask, std::optional<int64_t> mask_type) {
  const auto first = [&](const at::Tensor& x) {
    return at::layer_norm(x, {size}, norm_weight_1, norm_bias_1, eps);
  };
  const auto second = [&](const at::Tensor& x) {
    return at::layer_norm(x, {size}, norm_weight_2, norm_bias_2, eps);
  };
  const auto attended = [&](const at::Tensor& x) {
    return std::get<0>(multi_head_attention(x, x, x, size, heads, weight, bias, out_weight,
                                            out_bias, mask, false, false, mask_type));
  };
  const auto fed_forward = [&](const at::Tensor& x) {
    const at::Tensor hidden = at::linear(x, ffn_weight_1, ffn_bias_1);
    return at::linear(gelu ? at::gelu(hidden) : at::relu(hidden), ffn_weight_2, ffn_bias_2);
  };
  if (norm_first) {
    const at::Tensor x = source + attended(first(source));
    return x + fed_forward(second(x));
  }
  const at::Tensor x = first(source + attended(source));
  return second(x + fed_forward(x));
}

// nn.TransformerEncoder makes nested tensors, which the device does not have, unless a padding mask
// is not aligned.
bool nested_tensor_is_possible(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace
