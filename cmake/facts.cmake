# Finds what the build report names and writes it to generated/build_facts.h.
# Needs Python_EXECUTABLE and the outcome of cuda.cmake.

# he_find_nccl(header reason): nccl.h of $NCCL_HOME, of the `nvidia-nccl` Python package, of the CUDA
# toolkit or of the system. A build in isolation hides site-packages from sys.path, not from sysconfig.
function(he_find_nccl header reason)
  set(script "import site, sys, sysconfig
paths = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), site.getusersitepackages(), *sys.path]
print(';'.join(dict.fromkeys(path + '/nvidia/nccl/include' for path in paths if path)))")
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "${script}"
    OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(folders ${packages} ${CUDAToolkit_INCLUDE_DIRS} /usr/local/include /usr/include)
  if(NOT "$ENV{NCCL_HOME}" STREQUAL "")
    list(PREPEND folders "$ENV{NCCL_HOME}/include")
  endif()
  find_path(folder NAMES nccl.h PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  set(${header} "" PARENT_SCOPE)
  if(folder)
    string(REGEX REPLACE "/+$" "" folder "${folder}")
    set(${header} "${folder}/nccl.h" PARENT_SCOPE)
    set(${reason} "nccl.h found in ${folder}" PARENT_SCOPE)
  else()
    set(${reason} "no nccl.h in NCCL_HOME, the Python package nvidia-nccl or the system" PARENT_SCOPE)
  endif()
endfunction()

# he_find_commit(result): the commit of this checkout, or "unknown" outside of one.
function(he_find_commit result)
  set(commit "")
  find_program(git NAMES git NO_CACHE)
  if(git AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
    execute_process(COMMAND "${git}" rev-parse --short=12 HEAD
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(EXISTS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS .git/logs/HEAD)
    endif()
  endif()
  if(NOT commit)
    set(commit "unknown")
  endif()
  set(${result} "${commit}" PARENT_SCOPE)
endfunction()

he_find_nccl(HE_NCCL_HEADER HE_NCCL_REASON)
he_find_commit(HE_COMMIT)
find_path(he_verbs_folder NAMES infiniband/verbs.h NO_CACHE)
if(he_verbs_folder)
  set(HE_RDMA_HEADER "${he_verbs_folder}/infiniband/verbs.h")
  set(HE_RDMA_REASON "infiniband/verbs.h found in ${he_verbs_folder}")
else()
  set(HE_RDMA_HEADER "")
  set(HE_RDMA_REASON "no infiniband/verbs.h (Debian: libibverbs-dev)")
endif()
set(HE_CUDA_BOOL false)
if(HYBRIDENGINE_WITH_CUDA)
  set(HE_CUDA_BOOL true)
endif()
configure_file(cmake/build_facts.h.in generated/build_facts.h @ONLY)

message(STATUS "hybridengine ${PROJECT_VERSION}: CUDA ${HYBRIDENGINE_WITH_CUDA} (${HYBRIDENGINE_CUDA_REASON})")
message(STATUS "hybridengine: NCCL header: ${HE_NCCL_REASON}; RDMA header: ${HE_RDMA_REASON}")
