#include "transport/transport.h"

namespace hybridengine {

RegionPtr Transport::staging(size_t bytes, const std::function<void()>& between) {
  if (!caps().payload || bytes == 0) return nullptr;
  if (!staging_ || staging_->span().bytes < bytes)
    staging_ = Region::make("staging", bytes, between);
  return staging_;
}

}  // namespace hybridengine
