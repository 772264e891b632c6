#include "engine/backends/cuda/device_table.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/fold_plan.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/plans/loop_plan.h"
#include "engine/backends/cuda/plans/matmul_plan.h"
#include "engine/backends/cuda/plans/random_plan.h"
#include "engine/backends/cuda/plans/row_plan.h"

namespace teletensor::backends::cuda {

std::string_view name_of(Skeleton skeleton) {
  switch (skeleton) {
    case Skeleton::kHost:
      return "host";
    case Skeleton::kLoop:
      return "loop";
    case Skeleton::kFold:
      return "fold";
    case Skeleton::kRows:
      return "rows";
    case Skeleton::kIndex:
      return "index";
    case Skeleton::kScan:
      return "scan";
    case Skeleton::kRandom:
      return "random";
    case Skeleton::kMatmul:
      return "matmul";
    case Skeleton::kCell:
      return "cell";
  }
  return "host";
}

void DeviceTable::add(std::string_view op, Skeleton skeleton, Describe describe) {
  const ops::OpDef* definition = catalog_.find(op);
  if (definition == nullptr || kernels_[catalog_.id(*definition)].describe != nullptr) {
    std::fprintf(
        stderr,
        "device kernel for '%.*s': the catalog has no such op, or the op already has a kernel\n",
        static_cast<int>(op.size()), op.data());
    std::abort();
  }
  kernels_[catalog_.id(*definition)] = {skeleton, describe};
}

DeviceTable make_device_table(const ops::Catalog& catalog) {
  DeviceTable table(catalog);
  add_loop_kernels(table, catalog);
  add_attention_kernels(table);
  add_cell_kernels(table);
  add_conv_kernels(table);
  add_copy_kernels(table);
  add_fold_kernels(table);
  add_index_kernels(table);
  add_loss_kernels(table);
  add_matmul_kernels(table);
  add_norm_kernels(table);
  add_pool_kernels(table);
  add_random_kernels(table);
  add_row_kernels(table);
  add_scan_kernels(table);
  add_scatter_kernels(table);
  add_search_kernels(table);
  add_select_kernels(table);
  add_step_kernels(table);
  return table;
}

KernelSource print_kernel(std::string_view key) {
  switch (KeyReader(key).get<KernelKind>()) {
    case KernelKind::kFold:
      return print_fold(FoldGraph::of_key(key));
    case KernelKind::kCheck:
      return print_check(CheckGraph::of_key(key));
    case KernelKind::kIndex:
      return print_index(IndexGraph::of_key(key));
    case KernelKind::kMatmul:
      return print_matmul(MatmulGraph::of_key(key));
    case KernelKind::kRandom:
      return print_random(RandomGraph::of_key(key));
    case KernelKind::kRecipe:
      return print_recipe(RecipeGraph::of_key(key));
    case KernelKind::kRows:
      return print_rows(RowGraph::of_key(key));
    case KernelKind::kLoop:
      break;
  }
  return print_loop(LoopGraph::of_key(key));
}

}  // namespace teletensor::backends::cuda
