# Enables C++, or stops with one line where CMake itself would print a page.
# Include at the top level: languages are enabled in the scope of the project.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  he_fail("no working C++ compiler: CXX is '$ENV{CXX}', and PATH has no c++, g++ or clang++ that works. Install one with C++20 (e.g. apt-get install g++) or set CXX to it.")
endif()
enable_language(CXX)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The hot loops lie in single files, so link-time optimisation would only cost build time.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# he_target(target): warnings and sanitizers as the options ask.
function(he_target target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
    $<$<AND:$<BOOL:${HYBRIDENGINE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
  if(HYBRIDENGINE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HYBRIDENGINE_SANITIZE} -fno-sanitize-recover=all
        -fno-omit-frame-pointer -O1 -g1>)
    target_link_options(${target} PRIVATE -fsanitize=${HYBRIDENGINE_SANITIZE})
  endif()
endfunction()

# he_unite_folders(target APART names...): the sources of a folder are compiled as one file, so names in
# their anonymous namespaces must differ (python_tests/test_structure.py). Those whose file or folder is
# among the names stay apart.
function(he_unite_folders target)
  cmake_parse_arguments(PARSE_ARGV 1 he "" "" APART)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    if(NOT (source IN_LIST he_APART OR folder IN_LIST he_APART))
      string(MAKE_C_IDENTIFIER "${folder}" group)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
