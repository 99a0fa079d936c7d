// bind: a rule run over a spec.
//
// Each (tensor, matching tensor rule) is a *slot*. Slots with the same local name are a *group*:
// the local tensor they are joined into. Groups are made once; then every mesh position cuts its
// share of every group that lives there.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "layout/layout.h"

namespace hybridengine {
namespace {

struct Slot {
  int32_t tensor = 0;
  const TensorRule* rule = nullptr;
  int32_t layer_owner = -1;  // coordinate along rule->layer_axis; -1: no condition
};

struct Group {
  int32_t name = 0;
  std::vector<Slot> slots;
};

/// What one mesh position holds of one tensor.
struct Share {
  Box box;
  Dims local_size{};  // box.size, or more where padded
};

struct Narrowed {
  int64_t start, size, local_size;
};

[[noreturn]] void refuse_cut(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh,
                             const std::string& why) {
  throw UsageError(str_cat("'", tensor.name, "' ", tensor.shape.to_string(), " cannot be cut"),
                   str_cat("dim ", cut.dim, " by ", mesh.axes[cut.axis].name, "=",
                           mesh.axes[cut.axis].size, ", ", why),
                   "");
}

Narrowed narrow_units(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh, int64_t n,
                      int64_t coordinate) {
  const int64_t axis = mesh.axes[cut.axis].size;
  if (cut.units <= 0 || n % cut.units != 0)
    refuse_cut(tensor, cut, mesh, str_cat(n, " rows are not ", cut.units, " equal units"));
  const int64_t unit = n / cut.units;
  if (cut.units % axis == 0) {
    const int64_t size = cut.units / axis * unit;
    return {coordinate * size, size, size};
  }
  if (axis % cut.units != 0)
    refuse_cut(tensor, cut, mesh, str_cat(cut.units, " units do not divide"));
  return {coordinate / (axis / cut.units) * unit, unit, unit};
}

Narrowed narrow(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh, int64_t n,
                int64_t coordinate) {
  const int64_t axis = mesh.axes[cut.axis].size;
  switch (cut.kind) {
    case CutKind::kChunk: {
      const int64_t rows = (n + axis - 1) / axis;
      const int64_t start = std::min(coordinate * rows, n);
      const int64_t size = std::min(rows, n - start);
      return {start, size, size};
    }
    case CutKind::kEven: {
      if (n % axis != 0) refuse_cut(tensor, cut, mesh, str_cat(n, " does not divide"));
      return {coordinate * (n / axis), n / axis, n / axis};
    }
    case CutKind::kUnits:
      return narrow_units(tensor, cut, mesh, n, coordinate);
    case CutKind::kPadded: {
      const int64_t padded = (n + cut.units - 1) / cut.units * cut.units;
      if (padded % axis != 0)
        refuse_cut(tensor, cut, mesh, str_cat(n, " padded to ", padded, " does not divide"));
      const int64_t start = std::min(coordinate * (padded / axis), n);
      return {start, std::min(padded / axis, n - start), padded / axis};
    }
  }
  throw InternalError("unknown kind of cut", str_cat(static_cast<int>(cut.kind)), "");
}

Share share_of(const TensorInfo& tensor, const TensorRule& rule, const Mesh& mesh,
               int32_t position) {
  Share share{Box(tensor.shape), tensor.shape.size};
  for (const Cut& cut : rule.cuts) {
    if (tensor.shape.ndim == 0 && cut.kind == CutKind::kChunk) continue;
    if (cut.dim < 0 || cut.dim >= tensor.shape.ndim) refuse_cut(tensor, cut, mesh, "no such dim");
    if (share.local_size[cut.dim] != share.box.size[cut.dim])
      refuse_cut(tensor, cut, mesh, "it is padded already");
    const Narrowed part =
        narrow(tensor, cut, mesh, share.box.size[cut.dim], mesh.coordinate(position, cut.axis));
    share.box.start[cut.dim] += part.start;
    share.box.size[cut.dim] = part.size;
    share.local_size[cut.dim] = part.local_size;
  }
  return share;
}

bool lives_at(const Slot& slot, const Mesh& mesh, int32_t position) {
  if (slot.layer_owner >= 0 && mesh.coordinate(position, slot.rule->layer_axis) != slot.layer_owner)
    return false;
  return std::all_of(slot.rule->where.begin(), slot.rule->where.end(), [&](const Where& where) {
    const int32_t coordinate = mesh.coordinate(position, where.axis);
    return where.begin <= coordinate && coordinate < where.end;
  });
}

std::string substitute(const std::string& to, const std::string& from_name,
                       const std::vector<int64_t>& numbers) {
  if (to == "**") return from_name;
  std::string name;
  size_t next = 0;
  for (const char c : to) {
    if (c != '*')
      name += c;
    else if (next < numbers.size())
      name += std::to_string(numbers[next++]);
    else
      throw UsageError("a rule's local name has more '*' than its tensor's", to, "");
  }
  return name;
}

class Binder {
 public:
  Binder(const LayoutRule& rule, const SpecPtr& spec) : rule_(rule), spec_(spec) {
    num_positions_ = rule.mesh.num_positions();
    for (const TensorRule& each : rule.rules) {
      check_axes(each);
      by_template_[each.from].push_back(&each);
    }
  }

  LayoutPtr run() {
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(spec_->tensors().size()); ++tensor)
      add_tensor(tensor);
    for (Group& group : groups_) order_slots(group);
    std::vector<int32_t> positions(num_positions_);
    for (int32_t i = 0; i < num_positions_; ++i) positions[i] = i;
    std::sort(positions.begin(), positions.end(),
              [&](int32_t a, int32_t b) { return rule_.mesh.ranks[a] < rule_.mesh.ranks[b]; });
    for (const int32_t position : positions)
      for (const Group& group : groups_) place_group(group, position);
    std::vector<Rank> ranks = rule_.mesh.ranks;
    std::sort(ranks.begin(), ranks.end());
    auto layout = std::make_shared<Layout>(rule_.text, spec_, std::move(ranks), std::move(names_),
                                           std::move(locals_), std::move(pieces_));
    layout->check();
    return layout;
  }

 private:
  void check_axes(const TensorRule& each) const {
    const auto known = [&](int axis) {
      return axis >= 0 && axis < static_cast<int>(rule_.mesh.axes.size());
    };
    bool good = each.layer_axis == -1 || known(each.layer_axis);
    for (const Cut& cut : each.cuts) good = good && known(cut.axis);
    for (const Where& where : each.where) good = good && known(where.axis);
    if (!good) throw UsageError("a tensor rule names an axis that its mesh lacks", each.from, "");
  }

  void add_tensor(int32_t tensor) {
    const std::string& name = spec_->tensors()[tensor].name;
    std::vector<int64_t> numbers;
    auto found = by_template_.find(template_of(name, numbers));
    if (found == by_template_.end()) found = by_template_.find("**");
    if (found == by_template_.end())
      throw UsageError(str_cat("no rule of ", rule_.text, " says where '", name, "' goes"), "",
                       "Add it to the mapping.");
    for (const TensorRule* each : found->second) {
      const std::string local = substitute(each->to, name, numbers);
      const auto [entry, fresh] = group_of_.emplace(local, groups_.size());
      if (fresh) {
        groups_.push_back({static_cast<int32_t>(names_.size()), {}});
        names_.push_back(local);
      }
      groups_[entry->second].slots.push_back({tensor, each, layer_owner(*each, name, numbers)});
    }
  }

  int32_t layer_owner(const TensorRule& each, const std::string& name,
                      const std::vector<int64_t>& numbers) const {
    if (each.layer_axis < 0) return -1;
    int64_t end = 0;
    for (size_t coordinate = 0; !numbers.empty() && coordinate < rule_.layers.size();
         ++coordinate) {
      end += rule_.layers[coordinate];
      if (numbers.front() < end) return static_cast<int32_t>(coordinate);
    }
    throw UsageError(str_cat("'", name, "' belongs to no pipeline stage"),
                     str_cat(rule_.text, " has ", end, " layers"), "");
  }

  /// A group may repeat its slots for several positions (a tied head on the last stage): what must
  /// differ are the slots of one position, which place_group() sees in this order.
  static void order_slots(Group& group) {
    std::stable_sort(group.slots.begin(), group.slots.end(),
                     [](const Slot& a, const Slot& b) { return a.rule->slot < b.rule->slot; });
  }

  void place_group(const Group& group, int32_t position) {
    std::vector<std::pair<const Slot*, Share>>& here = here_;
    here.clear();
    for (const Slot& slot : group.slots) {
      if (!lives_at(slot, rule_.mesh, position)) continue;
      if (!here.empty() && here.back().first->rule->slot == slot.rule->slot)
        throw UsageError(
            "two tensors claim the same slot of a local tensor",
            str_cat("'", spec_->tensors()[slot.tensor].name, "' in '", names_[group.name], "'"),
            "");
      here.emplace_back(&slot,
                        share_of(spec_->tensors()[slot.tensor], *slot.rule, rule_.mesh, position));
    }
    if (here.empty()) return;
    const Rank rank = rule_.mesh.ranks[position];
    LocalTensor local{rank, group.name, spec_->tensors()[here.front().first->tensor].dtype,
                      fused_shape(group)};
    const Dims strides = local.shape.contiguous_strides();
    int64_t offset = 0;
    for (const auto& [slot, share] : here) {
      pieces_.push_back({slot->tensor, static_cast<int32_t>(locals_.size()), rank, share.box,
                         Place{offset, strides}});
      if (here.size() > 1)
        offset += share.local_size[slot->rule->cat_dim] * strides[slot->rule->cat_dim];
    }
    locals_.push_back(local);
  }

  /// The shape of the slots in here_, joined.
  Shape fused_shape(const Group& group) const {
    const TensorInfo& first = spec_->tensors()[here_.front().first->tensor];
    Shape shape = first.shape;
    shape.size = here_.front().second.local_size;
    for (size_t i = 1; i < here_.size(); ++i) {
      const TensorInfo& next = spec_->tensors()[here_[i].first->tensor];
      const int cat_dim = here_[i].first->rule->cat_dim;
      bool fits = next.shape.ndim == shape.ndim && next.dtype == first.dtype &&
                  cat_dim < shape.ndim && cat_dim == here_.front().first->rule->cat_dim;
      for (int dim = 0; fits && dim < shape.ndim; ++dim)
        fits = dim == cat_dim || here_[i].second.local_size[dim] == shape.size[dim];
      if (!fits)
        throw UsageError(
            str_cat("tensors cannot be joined into '", names_[group.name], "'"),
            str_cat("'", first.name, "' ", first.shape.to_string(), " ", dtype_name(first.dtype),
                    " and '", next.name, "' ", next.shape.to_string(), " ", dtype_name(next.dtype)),
            "");
      shape.size[cat_dim] += here_[i].second.local_size[cat_dim];
    }
    return shape;
  }

  const LayoutRule& rule_;
  const SpecPtr& spec_;
  int32_t num_positions_ = 0;
  std::unordered_map<std::string, std::vector<const TensorRule*>> by_template_;
  std::unordered_map<std::string, size_t> group_of_;
  std::vector<Group> groups_;
  std::vector<std::pair<const Slot*, Share>> here_;
  std::vector<std::string> names_;
  std::vector<LocalTensor> locals_;
  std::vector<Piece> pieces_;
};

}  // namespace

LayoutPtr bind(const LayoutRule& rule, const SpecPtr& spec) { return Binder(rule, spec).run(); }

}  // namespace hybridengine
