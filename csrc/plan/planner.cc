// The planner: patterns first, then the choices among ranks that could all serve a demand.
//
// Over the whole plan every holder serves as much as the others (layout/holders.h): at most one
// demand per holder and set is cut. Where sets are disjoint or nested, as those of replicas are, no
// choice has a smaller largest sender but for an element or two.
#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {

PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst) {
  if (dst->op() != Op::kCopy)
    throw UsageError("a destination cannot be partial", dst->text(),
                     "Reduce into a layout whose pieces are values.");
  const bool combined = src->op() != Op::kCopy;
  Pairing pairing = pair_tensors(*src, *dst);
  if (combined)
    for (const TensorInfo& info : dst->spec().tensors()) check_reducible(src->op(), info.dtype);
  HolderSets sets;
  std::vector<Pattern> patterns;
  patterns.reserve(pairing.kinds.size());
  for (const PairKind& kind : pairing.kinds)
    patterns.push_back(combined ? make_combined(*src, *dst, kind, sets)
                                : make_copied(*src, *dst, kind, sets));
  std::vector<const Demands*> demands;
  for (const Pattern& pattern : patterns) demands.push_back(&pattern.demands);
  deal(sets, demands, pairing.kind_of);
  return std::make_shared<const Plan>(src, dst, std::move(pairing), std::move(patterns),
                                      std::move(sets));
}

}  // namespace hybridengine
