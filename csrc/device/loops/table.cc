#include "device/loops/table.h"

#include "device/loops/parts.h"

namespace hybridengine::HE_ISA {

const Loops kLoops{kCopyLoops, kConvertLoops, kReduceLoops, kMaskLoops, kMaskedSumLoops};

}  // namespace hybridengine::HE_ISA
