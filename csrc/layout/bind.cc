// bind: a rule run over a spec.
//
// Vocabulary: a tensor that meets a tensor rule is a *slot*. Slots with the same local name are a
// *group*: the local tensor they are joined into. Slots of one rule, shape, element type and stage
// have one *slot kind*: every mesh position holds the same *share* of them. Groups of the same slot
// kinds have one *group kind*: on every mesh position they are *stored* in the same way.
//
// Models have many tensors and few kinds, so cutting and joining is done once per kind and mesh
// position, and each group then only takes copies.
#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "layout/layout.h"
#include "layout/share.h"

namespace hybridengine {
namespace {

struct SlotKind {
  const TensorRule* rule = nullptr;
  int32_t layer_owner = -1;  // coordinate along rule->layer_axis; -1: no condition
  const TensorInfo* example = nullptr;
  std::vector<std::optional<Share>> at;  // by mesh position, in rank order
  int32_t num_pieces = 0;                // over all positions
};

struct Slot {
  int32_t tensor = 0;
  int32_t kind = 0;
  int32_t group = 0;  // which has the same index as its name
};

/// A group as one mesh position stores it: what differs from group to group is left open.
struct Stored {
  LocalTensor local;
  std::vector<std::pair<int32_t, Piece>> pieces;  // with the index of their slot
};

using GroupKind = std::vector<std::optional<Stored>>;  // by mesh position, in rank order

bool lives_at(const TensorRule& rule, int32_t layer_owner, const Mesh& mesh, int32_t position) {
  if (layer_owner >= 0 && mesh.coordinate(position, rule.layer_axis) != layer_owner) return false;
  return std::all_of(rule.where.begin(), rule.where.end(), [&](const Where& where) {
    const int32_t coordinate = mesh.coordinate(position, where.axis);
    return where.begin <= coordinate && coordinate < where.end;
  });
}

/// The local name, over what `result` held before.
void substitute(const std::string& to, const std::string& from_name,
                const std::vector<int64_t>& numbers, std::string& result) {
  if (to == "**") {
    result = from_name;
    return;
  }
  result.clear();
  size_t next = 0;
  for (const char c : to) {
    if (c != '*')
      result += c;
    else if (next < numbers.size())
      result += std::to_string(numbers[next++]);
    else
      throw UsageError("a rule's local name has more '*' than its tensor's", to, "");
  }
}

}  // namespace

class Binder {
 public:
  Binder(const LayoutRule& rule, const SpecPtr& spec) : rule_(rule), tensors_(spec->tensors()) {
    num_positions_ = rule.mesh.num_positions();
    layout_ = std::shared_ptr<Layout>(new Layout);
    layout_->text_ = rule.text;
    layout_->spec_ = spec;
    slot_kinds_of_.resize(rule.rules.size());
    for (size_t i = 0; i < rule.rules.size(); ++i) {
      check_axes(rule.rules[i]);
      by_template_[rule.rules[i].from].push_back(i);
    }
    order_positions();
    size_t most_rules = 0;
    for (const auto& [name, rules] : by_template_) most_rules = std::max(most_rules, rules.size());
    layout_->names_.reserve(tensors_.size() * most_rules);
    group_of_.reserve(tensors_.size());
  }

  LayoutPtr run() {
    num_slots_.assign(tensors_.size(), 0);
    layout_->piece_begin_.assign(tensors_.size() + 1, 0);
    layout_->kinds_.assign(tensors_.size(), -1);
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(tensors_.size()); ++tensor)
      add_tensor(tensor);
    gather_groups();
    make_room();
    for (int32_t group = 0; group < num_groups(); ++group) place_group(group);
    finish_kinds();
    return layout_;
  }

 private:
  void order_positions() {
    const std::vector<Rank>& ranks = rule_.mesh.ranks;
    positions_.resize(num_positions_);
    for (int32_t i = 0; i < num_positions_; ++i) positions_[i] = i;
    std::sort(positions_.begin(), positions_.end(),
              [&](int32_t a, int32_t b) { return ranks[a] < ranks[b]; });
    layout_->ranks_ = ranks;
    std::sort(layout_->ranks_.begin(), layout_->ranks_.end());
    Layout::check_ranks(layout_->ranks_);
  }

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
    const std::string& name = tensors_[tensor].name;
    find_template(name, template_, numbers_);
    auto found = by_template_.find(name);
    if (found == by_template_.end()) found = by_template_.find(template_);
    if (found == by_template_.end()) found = by_template_.find("**");
    if (found == by_template_.end())
      throw UsageError(str_cat("no rule of ", rule_.text, " says where '", name, "' goes"), "",
                       "Add it to the mapping.");
    for (const size_t rule : found->second) {
      substitute(rule_.rules[rule].to, name, numbers_, local_name_);
      const int32_t group = group_named(local_name_);
      const int32_t kind = slot_kind_of(rule, tensors_[tensor]);
      slots_.push_back({tensor, kind, group});
      layout_->piece_begin_[tensor + 1] += slot_kinds_[kind].num_pieces;
      // Tensors in several groups are kinds of their own: they are rare (tied heads).
      layout_->kinds_[tensor] = num_slots_[tensor]++ == 0 ? kind : -1;
    }
  }

  int32_t group_named(const std::string& name) {
    const auto found = group_of_.find(name);
    if (found != group_of_.end()) return found->second;
    const auto group = static_cast<int32_t>(layout_->names_.size());
    layout_->names_.push_back(name);
    group_of_.emplace(layout_->names_.back(), group);
    return group;
  }

  int32_t slot_kind_of(size_t rule_index, const TensorInfo& tensor) {
    const TensorRule& rule = rule_.rules[rule_index];
    const int32_t owner = layer_owner(rule, tensor.name);
    for (const int32_t known : slot_kinds_of_[rule_index]) {
      const SlotKind& kind = slot_kinds_[known];
      if (kind.layer_owner == owner && kind.example->dtype == tensor.dtype &&
          kind.example->shape == tensor.shape)
        return known;
    }
    SlotKind kind{&rule, owner, &tensor, {}, 0};
    for (const int32_t position : positions_) {
      kind.at.emplace_back();
      if (!lives_at(rule, owner, rule_.mesh, position)) continue;
      kind.at.back() = share_of(tensor, rule, rule_.mesh, position);
      if (!kind.at.back()->box.empty()) ++kind.num_pieces;
    }
    slot_kinds_of_[rule_index].push_back(static_cast<int32_t>(slot_kinds_.size()));
    slot_kinds_.push_back(std::move(kind));
    return static_cast<int32_t>(slot_kinds_.size() - 1);
  }

  int32_t layer_owner(const TensorRule& each, const std::string& name) const {
    if (each.layer_axis < 0) return -1;
    int64_t end = 0;
    for (size_t coordinate = 0; !numbers_.empty() && coordinate < rule_.layers.size();
         ++coordinate) {
      end += rule_.layers[coordinate];
      if (numbers_.front() < end) return static_cast<int32_t>(coordinate);
    }
    throw UsageError(str_cat("'", name, "' belongs to no pipeline stage"),
                     str_cat(rule_.text, " has ", end, " layers"), "");
  }

  /// Brings the slots of each group together, in the order in which they are joined.
  void gather_groups() {
    group_begin_.assign(layout_->names_.size() + 1, 0);
    for (const Slot& slot : slots_) ++group_begin_[slot.group + 1];
    for (size_t i = 1; i < group_begin_.size(); ++i) group_begin_[i] += group_begin_[i - 1];
    std::vector<Slot> gathered(slots_.size());
    std::vector<int32_t> next(group_begin_.begin(), group_begin_.end() - 1);
    for (const Slot& slot : slots_) gathered[next[slot.group]++] = slot;
    slots_.swap(gathered);
    const auto order = [&](const Slot& slot) { return slot_kinds_[slot.kind].rule->slot; };
    for (int32_t group = 0; group < num_groups(); ++group) {
      std::stable_sort(slots_.begin() + group_begin_[group],
                       slots_.begin() + group_begin_[group + 1],
                       [&](const Slot& a, const Slot& b) { return order(a) < order(b); });
      group_kind_.push_back(group_kind_of(slots_of(group)));
    }
  }

  int32_t num_groups() const { return static_cast<int32_t>(layout_->names_.size()); }
  std::span<const Slot> slots_of(int32_t group) const {
    return std::span(slots_).subspan(group_begin_[group],
                                     group_begin_[group + 1] - group_begin_[group]);
  }

  int32_t group_kind_of(std::span<const Slot> slots) {
    key_.clear();
    for (const Slot& slot : slots) key_.push_back(slot.kind);
    const auto [entry, fresh] =
        group_kind_index_.emplace(key_, static_cast<int32_t>(group_kinds_.size()));
    if (fresh) {
      group_kinds_.emplace_back();
      for (int32_t at = 0; at < num_positions_; ++at)
        group_kinds_.back().push_back(store(slots, at));
      group_counts_.push_back(0);
    }
    ++group_counts_[entry->second];
    return entry->second;
  }

  /// A group may repeat its slots for several positions (a tied head on the last stage): what must
  /// differ are the slots of one position.
  std::optional<Stored> store(std::span<const Slot> slots, int32_t at) {
    here_.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      const SlotKind& kind = slot_kinds_[slots[i].kind];
      if (!kind.at[at]) continue;
      if (!here_.empty() && slot_kinds_[slots[here_.back()].kind].rule->slot == kind.rule->slot)
        throw UsageError("two tensors claim the same slot of a local tensor",
                         str_cat("'", tensors_[slots[i].tensor].name, "' in '",
                                 layout_->names_[slots.front().group], "'"),
                         "");
      here_.push_back(i);
    }
    if (here_.empty()) return std::nullopt;
    check_parts(slots, at);
    const Rank rank = layout_->ranks_[at];
    Stored stored{{rank, 0, tensors_[slots[here_.front()].tensor].dtype, joined(slots, at)}, {}};
    const Dims strides = stored.local.shape.contiguous_strides();
    int64_t offset = 0;
    for (const size_t i : here_) {
      const SlotKind& kind = slot_kinds_[slots[i].kind];
      const Share& share = *kind.at[at];
      if (!share.box.empty())
        stored.pieces.emplace_back(i, Piece{0, 0, rank, share.box, LocalPlace{offset, strides}});
      if (here_.size() > 1)
        offset += share.local_size[kind.rule->cat_dim] * strides[kind.rule->cat_dim];
    }
    return stored;
  }

  /// A fused tensor without one of its parts would be another tensor.
  void check_parts(std::span<const Slot> slots, int32_t at) {
    const Slot& first = slots[here_.front()];
    const std::string& to = slot_kinds_[first.kind].rule->to;
    if (to == "**") return;
    for (const TensorRule& part : rule_.rules) {
      if (part.to != to || !lives_at(part, -1, rule_.mesh, positions_[at])) continue;
      const auto fills = [&](size_t i) {
        return slot_kinds_[slots[i].kind].rule->slot == part.slot;
      };
      if (std::any_of(here_.begin(), here_.end(), fills)) continue;
      const std::string& present = tensors_[first.tensor].name;
      find_template(present, template_, numbers_);
      substitute(part.from, present, numbers_, local_name_);
      throw UsageError(
          str_cat("'", layout_->names_[first.group], "' lacks a part"),
          str_cat("there is no '", local_name_, "' beside '", present, "', ", rule_.text),
          "Pass all that is fused there, or none of it.");
    }
  }

  /// The shape of the slots in here_, joined.
  Shape joined(std::span<const Slot> slots, int32_t at) const {
    const auto kind_at = [&](size_t i) -> const SlotKind& {
      return slot_kinds_[slots[here_[i]].kind];
    };
    const TensorInfo& first = tensors_[slots[here_.front()].tensor];
    Shape shape = first.shape;
    shape.size = kind_at(0).at[at]->local_size;
    for (size_t i = 1; i < here_.size(); ++i) {
      const TensorInfo& next = tensors_[slots[here_[i]].tensor];
      const Dims& local_size = kind_at(i).at[at]->local_size;
      const int cat_dim = kind_at(i).rule->cat_dim;
      bool fits = next.shape.ndim == shape.ndim && next.dtype == first.dtype && cat_dim >= 0 &&
                  cat_dim < shape.ndim && cat_dim == kind_at(0).rule->cat_dim;
      for (int dim = 0; fits && dim < shape.ndim; ++dim)
        fits = dim == cat_dim || local_size[dim] == shape.size[dim];
      if (!fits)
        throw UsageError(
            str_cat("tensors cannot be joined into '", layout_->names_[slots.front().group], "'"),
            str_cat("'", first.name, "' ", first.shape.to_string(), " ", dtype_name(first.dtype),
                    " and '", next.name, "' ", next.shape.to_string(), " ", dtype_name(next.dtype)),
            "");
      shape.size[cat_dim] += local_size[cat_dim];
    }
    shape.num_elems();  // throws where 63 bits do not count it
    return shape;
  }

  /// Sizes locals and pieces, and finds where each position's locals and each tensor's pieces
  /// begin.
  void make_room() {
    std::vector<int64_t>& begin = layout_->piece_begin_;
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    next_piece_.assign(begin.begin(), begin.end() - 1);
    resize_unwritten(layout_->pieces_, begin.back());
    int64_t num_locals = 0, bytes = 0;
    for (int32_t at = 0; at < num_positions_; ++at) {
      next_local_.push_back(static_cast<int32_t>(num_locals));
      for (size_t kind = 0; kind < group_kinds_.size(); ++kind) {
        if (!group_kinds_[kind][at]) continue;
        num_locals += group_counts_[kind];
        add_bytes(group_kinds_[kind][at]->local, group_counts_[kind], bytes);
      }
    }
    resize_unwritten(layout_->locals_, num_locals);
    layout_->local_begin_ = next_local_;
    layout_->local_begin_.push_back(static_cast<int32_t>(num_locals));
  }

  void add_bytes(const LocalTensor& local, int64_t count, int64_t& bytes) const {
    int64_t more = local.shape.num_elems();
    if (__builtin_mul_overflow(more, dtype_bytes(local.dtype), &more) ||
        __builtin_mul_overflow(more, count, &more) || __builtin_add_overflow(bytes, more, &bytes))
      throw UsageError("a layout has more bytes than 63 bits count", rule_.text, "");
  }

  void place_group(int32_t group) {
    const std::span<const Slot> slots = slots_of(group);
    const GroupKind& kind = group_kinds_[group_kind_[group]];
    for (int32_t at = 0; at < num_positions_; ++at) {
      if (!kind[at]) continue;
      const int32_t local = next_local_[at]++;
      layout_->locals_[local] = kind[at]->local;
      layout_->locals_[local].name = group;
      for (const auto& [slot, open] : kind[at]->pieces) {
        const int32_t tensor = slots[slot].tensor;
        Piece& piece = layout_->pieces_[next_piece_[tensor]++] = open;
        piece.tensor = tensor;
        piece.local = local;
      }
    }
  }

  /// Numbers the kinds of tensors from slot kinds, orders the pieces of tensors in several groups,
  /// and checks what the rules leave out.
  void finish_kinds() {
    layout_->num_kinds_ = static_cast<int32_t>(slot_kinds_.size());
    std::vector<bool> covered(slot_kinds_.size());
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(tensors_.size()); ++tensor) {
      int32_t& kind = layout_->kinds_[tensor];
      if (kind < 0) {
        kind = layout_->num_kinds_++;
        covered.push_back(false);
        std::sort(layout_->pieces_.begin() + layout_->piece_begin_[tensor],
                  layout_->pieces_.begin() + layout_->piece_begin_[tensor + 1],
                  [](const Piece& a, const Piece& b) { return a.local < b.local; });
      }
      if (!covered[kind]) layout_->check_covered(tensor);
      covered[kind] = true;
    }
  }

  const LayoutRule& rule_;
  const std::vector<TensorInfo>& tensors_;
  std::shared_ptr<Layout> layout_;
  int32_t num_positions_ = 0;
  std::vector<int32_t> positions_;  // mesh positions in rank order
  std::unordered_map<std::string, std::vector<size_t>> by_template_;
  std::vector<SlotKind> slot_kinds_;
  std::vector<std::vector<int32_t>> slot_kinds_of_;         // by rule
  std::vector<Slot> slots_;                                 // by group once they are gathered
  std::vector<int32_t> group_begin_;                        // into slots_
  std::vector<int32_t> group_kind_;                         // by group
  std::unordered_map<std::string_view, int32_t> group_of_;  // the names of layout_, which stay put
  std::map<std::vector<int32_t>, int32_t> group_kind_index_;
  std::vector<GroupKind> group_kinds_;
  std::vector<int64_t> group_counts_;  // groups of each kind
  std::vector<int32_t> num_slots_;     // by tensor
  std::vector<int64_t> next_piece_;    // by tensor
  std::vector<int32_t> next_local_;    // by position in rank order
  // Memory that is used again and again.
  std::string template_, local_name_;
  std::vector<int64_t> numbers_;
  std::vector<int32_t> key_;
  std::vector<size_t> here_;
};

LayoutPtr bind(const LayoutRule& rule, const SpecPtr& spec) { return Binder(rule, spec).run(); }

}  // namespace hybridengine
