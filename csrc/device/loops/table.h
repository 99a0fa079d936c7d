// The tables that the build makes, one per instruction set. Read by isa.cc.
#pragma once

#include "device/loops.h"

namespace hybridengine {

#ifdef HE_X86_ISAS
namespace x86_64_v2 {
extern const Loops kLoops;
}
namespace x86_64_v3 {
extern const Loops kLoops;
}
namespace x86_64_v4 {
extern const Loops kLoops;
}
#else
namespace portable {
extern const Loops kLoops;
}
#endif

}  // namespace hybridengine
