// Huge pages: a hint for tables of many megabytes.
#pragma once

#include <cstddef>
#include <vector>

namespace hybridengine {

/// Asks the system for huge pages under fresh memory: the first touch of each small page would cost
/// more than filling it. Only a hint: does nothing where it is refused, or the memory is small.
void prefer_huge_pages(void* data, size_t bytes);

/// Room for `count` elements in an empty vector, on huge pages where it is large.
template <class Element>
void reserve_huge(std::vector<Element>& elements, size_t count) {
  elements.reserve(count);
  prefer_huge_pages(elements.data(), count * sizeof(Element));
}

}  // namespace hybridengine
