#include "server/session/image_codec.h"

#include <map>
#include <unordered_map>

namespace teletensor::server {

using core::Status;
using program::Image;

std::uint32_t number_of(core::Device device) {
  return static_cast<std::uint32_t>(device.kind) * 256 + device.index;
}

core::Device device_from(std::uint32_t number) {
  return {static_cast<core::DeviceKind>(number / 256 % 3), static_cast<std::uint8_t>(number % 256)};
}

namespace {

std::uint32_t out(Image::Index index) { return index + 1; }
Image::Index in(std::uint32_t saved) { return saved - 1; }

v1::DType out(core::DType dtype) { return static_cast<v1::DType>(dtype); }
core::DType dtype_of(v1::DType saved, bool& good) {
  const auto dtype = core::dtype_from_number(static_cast<std::uint64_t>(saved));
  good = good && dtype.has_value();
  return dtype.value_or(core::DType::kF32);
}

void write(const core::Layout& layout, v1::SavedImage::Layout& out_) {
  out_.set_dtype(out(layout.dtype));
  out_.set_device(number_of(layout.device));
  for (const std::int64_t size : layout.geometry.shape) out_.add_shape(size);
  for (const std::int64_t stride : layout.geometry.strides) out_.add_strides(stride);
  out_.set_offset(layout.geometry.offset);
}
core::Layout read(const v1::SavedImage::Layout& saved, bool& good) {
  core::Layout layout;
  layout.dtype = dtype_of(saved.dtype(), good);
  layout.device = device_from(saved.device());
  if (saved.shape_size() > core::kMaxRank || saved.strides_size() > core::kMaxRank) {
    good = false;
    return layout;
  }
  for (const std::int64_t size : saved.shape()) layout.geometry.shape.push_back(size);
  for (const std::int64_t stride : saved.strides()) layout.geometry.strides.push_back(stride);
  layout.geometry.offset = saved.offset();
  return layout;
}

void write(const core::Number& number, v1::Program::Number& saved) {
  saved.set_kind(static_cast<std::uint32_t>(number.kind));
  saved.set_integer(number.integer);
  saved.set_real(number.real);
  saved.set_imaginary(number.imaginary);
}
core::Number read(const v1::Program::Number& saved, bool& good) {
  good = good && saved.kind() <= 4;
  return {static_cast<core::Number::Kind>(saved.kind() % 5), saved.integer(), saved.real(),
          saved.imaginary(), 0};
}

void write(const core::Attribute& attribute, v1::Program::Attribute& saved) {
  saved.set_kind(static_cast<std::uint32_t>(attribute.kind));
  saved.set_integer(attribute.integer);
  saved.set_real(attribute.real);
  for (const std::int64_t value : attribute.ints) saved.add_ints(value);
  saved.set_text(attribute.text);
}
core::Attribute read(const v1::Program::Attribute& saved, bool& good) {
  good = good && saved.kind() <= static_cast<std::uint32_t>(core::Attribute::Kind::kDevice);
  core::Attribute attribute;
  attribute.kind = static_cast<core::Attribute::Kind>(saved.kind() % 8);
  attribute.integer = saved.integer();
  attribute.real = saved.real();
  for (const std::int64_t value : saved.ints()) attribute.ints.push_back(value);
  attribute.text = saved.text();
  return attribute;
}

void write(const Image::Edge& edge, v1::SavedImage::Edge& saved) {
  saved.set_node(out(edge.node));
  saved.set_leaf(out(edge.leaf));
  saved.set_output(edge.output);
}
Image::Edge read(const v1::SavedImage::Edge& saved) {
  return {in(saved.node()), in(saved.leaf()), saved.output()};
}

void write(std::uint64_t root, const Status& status, v1::SavedError& saved) {
  saved.set_root(root);
  saved.set_code(static_cast<std::uint32_t>(status.code()));
  saved.set_text(status.message());
}
Status read(const v1::SavedError& saved) {
  return Status(static_cast<core::Code>(saved.code() % 17), saved.text());
}

void write(const Image::Handle& handle, v1::SavedImage::Handle& saved) {
  saved.set_id(handle.id);
  write(handle.layout, *saved.mutable_layout());
  saved.set_cell(out(handle.cell));
  saved.set_clock(out(handle.clock));
  saved.set_base(out(handle.base));
  saved.set_node(out(handle.node));
  saved.set_leaf(out(handle.leaf));
  saved.set_grad(out(handle.grad));
  saved.set_made(handle.made);
  saved.set_flag(handle.flag);
  saved.set_retains(handle.retains);
  saved.set_output(handle.output);
  saved.set_seen(handle.seen);
}
Image::Handle read(const v1::SavedImage::Handle& saved, bool& good) {
  Image::Handle handle;
  handle.id = saved.id();
  handle.layout = read(saved.layout(), good);
  handle.cell = in(saved.cell());
  handle.clock = in(saved.clock());
  handle.base = in(saved.base());
  handle.node = in(saved.node());
  handle.leaf = in(saved.leaf());
  handle.grad = in(saved.grad());
  handle.made = static_cast<std::uint8_t>(saved.made());
  handle.flag = saved.flag();
  handle.retains = saved.retains();
  handle.output = saved.output();
  handle.seen = saved.seen();
  return handle;
}

// Maps operators to their positions in the image's own table.
class OpTable {
 public:
  OpTable(const ops::Catalog& catalog, v1::SavedImage& image) : catalog_(catalog), image_(image) {}
  std::uint32_t place(program::OpId op) {
    const auto [entry, is_new] =
        places_.try_emplace(op, static_cast<std::uint32_t>(image_.ops_size()));
    if (is_new) image_.add_ops(op_title(catalog_.at(op)));
    return entry->second;
  }

 private:
  const ops::Catalog& catalog_;
  v1::SavedImage& image_;
  std::map<program::OpId, std::uint32_t> places_;
};

void write(const Image::Node& node, OpTable& table, v1::SavedImage::Node& saved) {
  saved.set_at(node.at);
  saved.set_seq(node.seq);
  saved.set_op(table.place(node.op));
  saved.set_label(table.place(node.label));
  for (const Image::Edge& edge : node.edges) write(edge, *saved.add_edges());
  for (const Image::Operand& operand : node.operands) {
    v1::SavedImage::Operand& item = *saved.add_operands();
    write(operand.layout, *item.mutable_layout());
    if (operand.is_number) write(operand.number, *item.mutable_number());
  }
  for (const std::uint32_t count : node.counts) saved.add_counts(count);
  for (std::size_t i = 0; i < node.attributes.size(); ++i) {
    write(node.attributes.at(i), *saved.add_attributes());
  }
  for (const Image::Saved& slot : node.saved) {
    v1::SavedImage::Slot& item = *saved.add_saved();
    item.set_slot(static_cast<std::uint32_t>(slot.slot));
    item.set_value(out(slot.value));
    item.set_elements(slot.elements);
    write(slot.layout, *item.mutable_layout());
    write(slot.edge, *item.mutable_edge());
    item.set_requires_grad(slot.requires_grad);
  }
  for (const core::Layout& result : node.results) write(result, *saved.add_results());
  for (const auto& [output, handle] : node.retained) {
    saved.add_retained(output);
    saved.add_retained(out(handle));
  }
  saved.set_forgotten(node.forgotten);
  saved.set_keeps_number(node.keeps_number);
  saved.set_freed(node.freed);
  saved.set_remade_for(out(node.remade_for));
}

Image::Node read(const v1::SavedImage::Node& saved, const std::vector<program::OpId>& ops,
                 bool& good) {
  Image::Node node;
  node.at = saved.at();
  node.seq = saved.seq();
  if (saved.op() >= ops.size() || saved.label() >= ops.size()) {
    good = false;
    return node;
  }
  node.op = ops[saved.op()];
  node.label = ops[saved.label()];
  for (const auto& edge : saved.edges()) node.edges.push_back(read(edge));
  for (const auto& operand : saved.operands()) {
    Image::Operand& item = node.operands.emplace_back();
    item.layout = read(operand.layout(), good);
    item.is_number = operand.has_number();
    if (item.is_number) item.number = read(operand.number(), good);
  }
  node.counts.assign(saved.counts().begin(), saved.counts().end());
  for (const auto& attribute : saved.attributes()) {
    node.attributes.push_back(read(attribute, good));
  }
  for (const auto& slot : saved.saved()) {
    node.saved.push_back({static_cast<int>(slot.slot()), in(slot.value()), slot.elements(),
                          read(slot.layout(), good), read(slot.edge()), slot.requires_grad()});
  }
  for (const auto& result : saved.results()) node.results.push_back(read(result, good));
  for (int i = 0; i + 1 < saved.retained_size(); i += 2) {
    node.retained.emplace_back(saved.retained(i), in(saved.retained(i + 1)));
  }
  node.forgotten = saved.forgotten();
  node.keeps_number = saved.keeps_number();
  node.freed = saved.freed();
  node.remade_for = in(saved.remade_for());
  return node;
}

void write(const Image::Group& group, v1::SavedImage::Group& saved) {
  saved.set_number(group.number);
  saved.set_name(group.name);
  saved.set_rank(group.rank);
  saved.set_ranks(group.ranks);
  saved.set_timeout_ms(group.timeout_ms);
  saved.set_stamp(group.stamp);
  saved.set_former(group.former);
  saved.set_epoch(group.epoch);
  for (const Image::Group::Place& place : group.places) {
    v1::SavedImage::GroupPlace& item = *saved.add_places();
    item.set_daemon(place.daemon);
    item.mutable_ranks()->Assign(place.ranks.begin(), place.ranks.end());
  }
  saved.set_place(group.place);
  saved.mutable_joined()->Assign(group.joined.begin(), group.joined.end());
  saved.set_collectives(group.collectives);
  saved.set_generation(group.generation);
  saved.set_elastic(group.elastic);
  for (const Image::Group::Lost& lost : group.lost) {
    v1::SavedImage::LostRank& item = *saved.add_lost();
    item.set_rank(lost.rank);
    item.set_why(lost.why);
  }
  for (const Image::Group::Transfers& each : group.transfers) {
    v1::SavedImage::GroupTransfers& item = *saved.add_transfers();
    item.set_from(each.from);
    item.set_to(each.to);
    item.set_tag(each.tag);
    item.set_sent(each.sent);
    item.set_received(each.received);
  }
  for (const Image::Group::FailedTransfer& each : group.failed_transfers) {
    v1::SavedImage::FailedTransfer& item = *saved.add_failed_transfers();
    item.set_from(each.from);
    item.set_to(each.to);
    item.set_tag(each.tag);
    write(each.number, each.status, *item.mutable_error());
  }
}

Image::Group read(const v1::SavedImage::Group& saved) {
  Image::Group group;
  group.number = saved.number();
  group.name = saved.name();
  group.rank = saved.rank();
  group.ranks = saved.ranks();
  group.timeout_ms = saved.timeout_ms();
  group.stamp = saved.stamp();
  group.former = saved.former();
  group.epoch = saved.epoch();
  for (const auto& place : saved.places()) {
    group.places.push_back({place.daemon(), {place.ranks().begin(), place.ranks().end()}});
  }
  group.place = saved.place();
  group.joined.assign(saved.joined().begin(), saved.joined().end());
  group.collectives = saved.collectives();
  group.generation = saved.generation();
  group.elastic = saved.elastic();
  for (const auto& lost : saved.lost()) group.lost.push_back({lost.rank(), lost.why()});
  for (const auto& each : saved.transfers()) {
    group.transfers.push_back({each.from(), each.to(), each.tag(), each.sent(), each.received()});
  }
  for (const auto& each : saved.failed_transfers()) {
    group.failed_transfers.push_back(
        {each.from(), each.to(), each.tag(), each.error().root(), read(each.error())});
  }
  return group;
}

}  // namespace

std::string op_title(const ops::OpDef& def) {
  return def.name + " (revision " + std::to_string(def.revision) + ")";
}

void write_image(const Image& image, const ops::Catalog& catalog, v1::SavedImage& saved) {
  OpTable table(catalog, saved);
  for (const Image::Storage& storage : image.storages) {
    v1::SavedImage::Storage& item = *saved.add_storages();
    item.set_device(number_of(storage.device));
    item.set_bytes(storage.bytes);
    item.set_seq(storage.seq);
    item.set_common(storage.common);
    item.set_writes(storage.writes);
    item.set_gone(storage.gone);
  }
  saved.set_owner(image.owner);
  for (const Image::Failure& failure : image.failures) {
    write(failure.seq, failure.status, *saved.add_failures());
  }
  for (const Image::Value& value : image.values) {
    v1::SavedImage::Value& item = *saved.add_values();
    item.set_dtype(out(value.dtype));
    item.set_device(number_of(value.device));
    item.set_elements(value.elements);
    item.set_storage(out(value.storage));
    item.set_failure(out(value.failure));
    item.set_good(out(value.good));
  }
  for (const Image::Clock& clock : image.clocks) {
    v1::SavedImage::Clock& item = *saved.add_clocks();
    item.set_elements(clock.elements + 1);
    item.set_value(out(clock.value));
    item.set_now(clock.now);
    for (const std::uint32_t tick : clock.taken_back) item.add_taken_back(tick);
    item.set_shared(clock.shared);
    item.set_read_only(clock.read_only);
  }
  for (const Image::Handle& handle : image.handles) write(handle, *saved.add_handles());
  for (const Image::Node& node : image.nodes) write(node, table, *saved.add_nodes());
  for (const Image::Undo& undo : image.undo) {
    v1::SavedImage::Undo& item = *saved.add_undo();
    item.set_seq(undo.seq);
    item.set_cell(out(undo.cell));
    item.set_clock(out(undo.clock));
    item.set_tick(undo.tick);
    item.set_base(out(undo.base));
    item.set_node(out(undo.node));
    item.set_old_node(out(undo.old_node));
    item.set_old_output(undo.old_output);
  }
  for (const Image::Remade& remade : image.remade) {
    v1::SavedImage::Remade& item = *saved.add_remade();
    item.set_seq(remade.seq);
    item.set_clock(out(remade.clock));
    item.set_node(out(remade.node));
    write(remade.old, *item.mutable_old());
    item.set_old_seen(remade.old_seen);
    item.set_seen(remade.seen);
  }
  for (const auto& [seq, node] : image.recorded) {
    saved.add_recorded_seqs(seq);
    saved.add_recorded_nodes(out(node));
  }
  for (const auto& [name, handle] : image.kept) {
    v1::SavedImage::Kept& item = *saved.add_kept();
    item.set_name(name);
    item.set_handle(out(handle));
  }
  for (const auto& [number, bytes] : image.programs) {
    v1::SavedImage::DefinedProgram& item = *saved.add_programs();
    item.set_number(number);
    item.set_contents(bytes);
  }
  saved.set_tape_length(image.tape_length);
  saved.set_next_id(image.next_id);
  saved.set_next_seq(image.next_seq);
  saved.set_next_upload(image.next_upload);
  for (const Image::Upload& upload : image.uploads) {
    v1::SavedUploadKey& item = *saved.add_uploads();
    item.set_key(upload.number);
    item.set_upload(out(upload.storage));
  }
  for (const Image::Download& download : image.downloads) {
    v1::SavedImage::Download& item = *saved.add_downloads();
    item.set_seq(download.seq);
    if (!download.status.ok()) write(download.root, download.status, *item.mutable_error());
    core::Layout layout{download.dtype, download.device, {}};
    layout.geometry.shape = download.shape;
    write(layout, *item.mutable_layout());
    item.set_storage(out(download.storage));
    item.set_offset(download.offset);
    item.set_bytes(download.bytes);
  }
  for (const Image::Group& group : image.groups) write(group, *saved.add_groups());
  for (const Image::Entry& entry : image.entries) {
    v1::SavedImage::Entry& item = *saved.add_entries();
    item.set_kind(static_cast<std::uint32_t>(entry.kind));
    item.set_bulk(entry.bulk);
    item.set_seq(entry.seq);
    item.set_seed(entry.seed);
    item.set_ordinal(entry.ordinal);
    item.set_contents(entry.program);
    for (const Image::Index value : entry.values) item.add_values(out(value));
  }
  for (const std::uint64_t seq : image.given_up) saved.add_given_up(seq);
  saved.set_forsaken_upto(image.forsaken_upto);
  saved.set_cancelled_below(image.cancelled_below);
  for (const auto& [root, rebinds] : image.failed) {
    v1::SavedImage::Failed& item = *saved.add_failed();
    item.set_root(root);
    for (const std::uint64_t seq : rebinds) item.add_rebinds(seq);
  }
}

core::Result<Image> read_image(const v1::SavedImage& saved, const ops::Catalog& catalog) {
  std::unordered_map<std::string, program::OpId> known;
  for (std::size_t id = 0; id < catalog.size(); ++id) {
    const auto op = static_cast<program::OpId>(id);
    known.emplace(op_title(catalog.at(op)), op);
  }
  std::vector<program::OpId> ops;
  for (const std::string& title : saved.ops()) {
    const auto found = known.find(title);
    if (found == known.end()) {
      return Status(core::Code::kUnimplemented,
                    "the session has recorded the operation " + title + ", unknown here");
    }
    ops.push_back(found->second);
  }
  bool good = saved.recorded_seqs_size() == saved.recorded_nodes_size();
  Image image;
  for (const auto& item : saved.storages()) {
    image.storages.push_back({device_from(item.device()), item.bytes(), item.seq(), nullptr,
                              item.common(), item.writes(), item.gone()});
  }
  for (const v1::SavedError& item : saved.failures()) {
    image.failures.push_back({item.root(), read(item)});
  }
  for (const auto& item : saved.values()) {
    image.values.push_back({dtype_of(item.dtype(), good), device_from(item.device()),
                            item.elements(), in(item.storage()), in(item.failure()),
                            in(item.good())});
  }
  for (const auto& item : saved.clocks()) {
    image.clocks.push_back({item.elements() - 1,
                            in(item.value()),
                            item.now(),
                            {item.taken_back().begin(), item.taken_back().end()},
                            item.shared(),
                            item.read_only()});
  }
  image.owner = saved.owner();
  for (const auto& item : saved.handles()) image.handles.push_back(read(item, good));
  for (const auto& item : saved.nodes()) image.nodes.push_back(read(item, ops, good));
  for (const auto& item : saved.undo()) {
    image.undo.push_back({item.seq(), in(item.cell()), in(item.clock()), item.tick(),
                          in(item.base()), in(item.node()), in(item.old_node()),
                          item.old_output()});
  }
  for (const auto& item : saved.remade()) {
    image.remade.push_back({item.seq(), in(item.clock()), in(item.node()), read(item.old()),
                            item.old_seen(), item.seen()});
  }
  for (int i = 0; good && i < saved.recorded_seqs_size(); ++i) {
    image.recorded.emplace_back(saved.recorded_seqs(i), in(saved.recorded_nodes(i)));
  }
  for (const auto& item : saved.kept()) image.kept.emplace_back(item.name(), in(item.handle()));
  for (const auto& item : saved.programs()) {
    image.programs.emplace_back(item.number(), item.contents());
  }
  image.tape_length = saved.tape_length();
  image.next_id = saved.next_id();
  image.next_seq = saved.next_seq();
  image.next_upload = saved.next_upload();
  for (const v1::SavedUploadKey& item : saved.uploads()) {
    image.uploads.push_back({item.key(), in(static_cast<std::uint32_t>(item.upload()))});
  }
  for (const auto& item : saved.downloads()) {
    const core::Layout layout = read(item.layout(), good);
    image.downloads.push_back({item.seq(), item.error().root(),
                               item.has_error() ? read(item.error()) : Status(), layout.dtype,
                               layout.device, layout.geometry.shape, in(item.storage()),
                               item.offset(), item.bytes()});
  }
  for (const auto& group : saved.groups()) image.groups.push_back(read(group));
  for (const auto& item : saved.entries()) {
    good = good && item.kind() <= 2;
    Image::Entry& entry = image.entries.emplace_back();
    entry.kind = static_cast<Image::Entry::Kind>(item.kind() % 3);
    entry.bulk = item.bulk();
    entry.seq = item.seq();
    entry.seed = item.seed();
    entry.ordinal = item.ordinal();
    entry.program = item.contents();
    for (const std::uint32_t value : item.values()) entry.values.push_back(in(value));
  }
  image.given_up.assign(saved.given_up().begin(), saved.given_up().end());
  image.forsaken_upto = saved.forsaken_upto();
  image.cancelled_below = saved.cancelled_below();
  for (const auto& item : saved.failed()) {
    image.failed.emplace_back(
        item.root(), std::vector<std::uint64_t>{item.rebinds().begin(), item.rebinds().end()});
  }
  if (!good) return core::invalid("the session's snapshot is inconsistent");
  return image;
}

}  // namespace teletensor::server
