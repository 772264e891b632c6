#include "clients/torch/plan.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <unordered_map>

namespace teletensor::torch {

namespace {

struct Words {
  std::string_view op;  // empty: a function
  std::vector<std::string_view> used, ignored;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    if (const auto part = trimmed(text.substr(0, end)); !part.empty()) parts.push_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

Words words_of(std::string_view text) {
  const std::size_t open = text.find('('), close = text.rfind(')');
  Words words;
  words.op = trimmed(text.substr(0, open));
  const std::string_view inside = text.substr(open + 1, close - open - 1);
  const std::size_t bar = inside.find('|');
  words.used = split(inside.substr(0, bar), ',');
  if (bar != std::string_view::npos) words.ignored = split(inside.substr(bar + 1), ',');
  return words;
}

// Arguments that say where a tensor is made and how it is laid out: no row needs them.
bool is_placement(std::string_view name) {
  return name == "layout" || name == "device" || name == "pin_memory" || name == "out";
}

}  // namespace

std::unique_ptr<Plan> plan_of(const Row& row, const tt_schema& schema) {
  auto plan = std::make_unique<Plan>();
  plan->row = &row;
  plan->in_place = schema.form == TT_IN_PLACE;
  plan->name = schema.name;
  for (std::size_t i = 0; i < schema.count; ++i) plan->names.emplace_back(schema.arguments[i]);
  const Words words = words_of(row.text);
  std::vector<bool> seen(schema.count);
  const auto find = [&](std::string_view name) {
    const auto at = std::ranges::find(plan->names, name) - plan->names.begin();
    const bool found = static_cast<std::size_t>(at) < schema.count;
    if (found) seen[static_cast<std::size_t>(at)] = true;
    return found ? static_cast<int>(at) : -1;
  };
  for (std::string_view word : words.used) {
    Term term;
    if (word == "-") {
      term.kind = Term::Kind::kNone;
    } else if (word.front() == '\'') {
      term.kind = Term::Kind::kText;
      term.text = word.substr(1, word.size() - 2);
    } else if ((word.front() >= '0' && word.front() <= '9') ||
               (word.front() == '-' && word.size() > 1)) {
      term.kind = Term::Kind::kNumber;
      term.number = std::strtod(std::string(word).c_str(), nullptr);
    } else {
      const bool optional = word.back() == '?';
      if (optional) word.remove_suffix(1);
      const int at = find(word);
      if (at < 0 && !optional) return nullptr;
      term.kind = at < 0 ? Term::Kind::kDefault : Term::Kind::kArgument;
      term.argument = static_cast<std::size_t>(std::max(at, 0));
    }
    plan->terms.push_back(std::move(term));
  }
  for (std::string_view word : words.ignored) (void)find(word);
  plan->generator = find("generator");
  for (std::size_t i = 0; i < schema.count; ++i) {
    if (!seen[i] && !is_placement(plan->names[i])) return nullptr;
  }
  if (row.function != nullptr && words.op.empty()) return plan;
  std::string_view name = schema.name;
  if (plan->in_place && ops::catalog().find(name) == nullptr) name.remove_suffix(1);
  plan->op = ops::catalog().find(words.op.empty() ? name : words.op);
  if (plan->op == nullptr) return nullptr;
  plan->id = ops::catalog().id(*plan->op);
  const std::size_t wanted = plan->op->parameters.size() - (plan->op->random ? 2 : 0);
  while (plan->terms.size() < wanted) plan->terms.push_back({Term::Kind::kDefault, 0, 0, {}});
  return plan->terms.size() == wanted ? std::move(plan) : nullptr;
}

struct Table::Impl {
  std::unordered_map<std::string_view, std::vector<const Row*>> rows;  // by operator
  std::vector<std::unique_ptr<Plan>> plans;
};

Table::Table() : impl_(std::make_unique<Impl>()) {
  for (const auto& rows : {pointwise_rows(), reduction_rows(), order_rows(), matrix_rows(),
                           linalg_rows(), neural_rows(), loss_rows(), window_rows(),
                           resample_rows(), index_rows(), creation_rows(), optimizer_rows()}) {
    for (const Row& row : rows) {
      for (std::string_view name : split(row.names, ' ')) impl_->rows[name].push_back(&row);
    }
  }
}
Table::~Table() = default;

int Table::resolve(const tt_schema& schema) {
  std::string_view name = schema.name;
  auto found = impl_->rows.find(name);
  if (found == impl_->rows.end() && name.ends_with('_')) {
    name.remove_suffix(1);
    found = impl_->rows.find(name);
  }
  if (found == impl_->rows.end()) return -1;
  for (const Row* row : found->second) {
    if (auto plan = plan_of(*row, schema)) {
      impl_->plans.push_back(std::move(plan));
      return static_cast<int>(impl_->plans.size()) - 1;
    }
  }
  return -1;
}

std::span<const tt_value> Table::arguments(int row, const tt_value* values) const {
  return {values, impl_->plans[static_cast<std::size_t>(row)]->names.size()};
}

Status Table::call(Host& host, int row, std::span<const tt_value> arguments,
                   std::vector<tt_result>& results) const {
  const Plan& plan = *impl_->plans[static_cast<std::size_t>(row)];
  results.clear();
  Call call(host, plan, arguments, results);
  if (plan.row->function != nullptr) {
    plan.row->function(call);
  } else {
    call.run_row();
  }
  const Status status = call.session.take_status();
  if (!status.ok()) {
    for (const tt_result& each : results) delete each.tensor.storage;
    results.clear();
  }
  return status;
}

}  // namespace teletensor::torch
