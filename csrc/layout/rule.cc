#include "layout/rule.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace hybridengine {

int32_t Mesh::num_positions() const {
  int64_t count = 1;
  for (const Axis& axis : axes)
    if (axis.size < 1 || __builtin_mul_overflow(count, axis.size, &count))
      throw UsageError("a mesh has an axis of an impossible size",
                       str_cat(axis.name, "=", axis.size), "");
  if (count != static_cast<int64_t>(ranks.size()))
    throw UsageError("a mesh has another number of positions than of ranks",
                     str_cat(count, " positions, ", ranks.size(), " ranks"), "");
  return static_cast<int32_t>(count);
}

int32_t Mesh::coordinate(int32_t position, int axis) const {
  for (int faster = static_cast<int>(axes.size()) - 1; faster > axis; --faster)
    position /= axes[faster].size;
  return position % axes[axis].size;
}

int Mesh::axis_index(const std::string& name) const {
  std::string names;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis].name == name) return static_cast<int>(axis);
    names += (axis ? ", " : "") + axes[axis].name;
  }
  throw UsageError(str_cat("'", name, "' is not an axis of the mesh"), "", "It has " + names + ".");
}

void find_template(std::string_view name, std::string& result, std::vector<int64_t>& numbers) {
  result.clear();
  numbers.clear();
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t number = 0;
    const char* const rest = std::from_chars(part.data(), part.data() + part.size(), number).ptr;
    // 18 digits fit 63 bits; a longer component is just a name.
    const bool numeric = !part.empty() && part.size() <= 18 && part.front() != '-' &&
                         rest == part.data() + part.size();
    if (numeric) numbers.push_back(number);
    if (begin > 0) result += '.';
    result += numeric ? "*" : part;
    begin = end + 1;
  }
}

}  // namespace hybridengine
