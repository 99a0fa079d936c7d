# The loops of the host, compiled once per instruction set. Sets he_loop_objects (their objects, for
# the library) and defines HE_X86_ISAS for hybridengine_core where there are several sets. Include
# after hybridengine_core.
include(CheckCXXSourceCompiles)

set(he_loop_sources
  csrc/device/loops/convert.cc
  csrc/device/loops/copy.cc
  csrc/device/loops/mask.cc
  csrc/device/loops/masked_sum.cc
  csrc/device/loops/reduce.cc
  csrc/device/loops/table.cc
  csrc/device/loops/transpose.cc
)

# Other CPUs, and compilers that cannot ask a CPU for its level, get the one portable table.
check_cxx_source_compiles("
  #include <immintrin.h>
  #ifndef __x86_64__
  #error another CPU
  #endif
  __attribute__((target(\"arch=x86-64-v4\"))) int f() { return 1; }
  int main() { return __builtin_cpu_supports(\"x86-64-v4\") ? f() : 0; }" HE_HAS_X86_ISAS)

# he_loops(namespace flags...): one object library; its objects join he_loop_objects.
function(he_loops namespace)
  set(target hybridengine_loops_${namespace})
  add_library(${target} OBJECT ${he_loop_sources})
  target_include_directories(${target} PRIVATE csrc)
  # gcc 12 warns of the operands that its own AVX-512 intrinsics leave undefined.
  # No contraction into fused operations: every instruction set must round alike. Traps are not
  # looked at, which lets selects become vector code. Tables for exceptions would be weak symbols.
  target_compile_options(${target} PRIVATE ${ARGN} -ffp-contract=off -fno-trapping-math
    -fno-math-errno -fno-exceptions
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> -Wshadow -Wconversion -Wno-sign-conversion)
  target_compile_definitions(${target} PRIVATE HE_ISA=${namespace})
  if(HE_HAS_X86_ISAS)
    target_compile_definitions(${target} PRIVATE HE_X86_ISAS)
  endif()
  he_target(${target})
  set(he_loop_objects ${he_loop_objects} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

# he_refuse_weak_symbols(target): a target that is linked from he_loop_objects does not link when
# these have symbols of which the linker would keep one and drop the others.
function(he_refuse_weak_symbols target)
  if(CMAKE_NM)
    add_custom_command(TARGET ${target} PRE_LINK VERBATIM
      COMMAND ${CMAKE_COMMAND} "-DNM=${CMAKE_NM}" "-DOBJECTS=${he_loop_objects}"
        -P ${PROJECT_SOURCE_DIR}/cmake/weak_symbols.cmake)
  endif()
endfunction()

set(he_loop_objects "")
if(HE_HAS_X86_ISAS)
  target_compile_definitions(hybridengine_core PRIVATE HE_X86_ISAS)
  he_loops(x86_64_v2 -march=x86-64-v2)
  he_loops(x86_64_v3 -march=x86-64-v3)
  he_loops(x86_64_v4 -march=x86-64-v4)
else()
  he_loops(portable)
endif()
