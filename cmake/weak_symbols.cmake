# Fails when one of OBJECTS defines a weak symbol. Run as: cmake -DNM=nm -DOBJECTS=a.o;b.o -P <this>
# Code of one instruction set must not stand in for another's: a weak symbol (an inline function of
# std, say) has one copy in each object, and the linker keeps any of them for all.
include(${CMAKE_CURRENT_LIST_DIR}/fail.cmake)

execute_process(COMMAND ${NM} --defined-only ${OBJECTS}
  OUTPUT_VARIABLE he_symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [WVuwv] [^\n]+" he_weak "${he_symbols}")
if(he_weak)
  list(JOIN he_weak "," he_weak)
  he_fail("weak symbols in the loops of one instruction set:${he_weak}. Give them internal linkage, or force them inline.")
endif()
