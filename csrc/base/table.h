// Table: a vector for many plain values, which are all written once it has its size.
//
// resize() leaves new elements as the memory is: with tens of megabytes, filling them with zeros
// first costs as much as what is written then. Everything else is std::vector's.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/page_hint.h"

namespace hybridengine {

template <class Element>
struct TableAllocator : std::allocator<Element> {
  static_assert(std::is_trivially_copyable_v<Element>, "elements may come from raw memory");

  template <class Other>
  struct rebind {
    using other = TableAllocator<Other>;
  };
  TableAllocator() = default;
  template <class Other>
  TableAllocator(const TableAllocator<Other>&) noexcept {}

  template <class Other>
  void construct(Other*) noexcept {}
  template <class Other, class... Args>
  void construct(Other* place, Args&&... args) {
    ::new (static_cast<void*>(place)) Other(std::forward<Args>(args)...);
  }
};

template <class Element>
using Table = std::vector<Element, TableAllocator<Element>>;

/// Makes an empty table `count` elements long, on huge pages where it is large. Every element must
/// then be written.
template <class Element>
void resize_unwritten(Table<Element>& table, size_t count) {
  table.reserve(count);
  prefer_huge_pages(table.data(), count * sizeof(Element));
  table.resize(count);
}

}  // namespace hybridengine
