# The module `_cuda`: what needs nvcc. cudart is linked statically and libcuda is found at run time, so
# that the module imports on a machine without a driver.
pybind11_add_module(_cuda MODULE
  csrc/bindings/cuda_module.cc
  csrc/device/cuda/devices.cu
)
target_include_directories(_cuda PRIVATE csrc)
target_link_libraries(_cuda PRIVATE CUDA::cudart_static)
set_target_properties(_cuda PROPERTIES
  CUDA_RUNTIME_LIBRARY Static
  CUDA_VISIBILITY_PRESET hidden
)
target_compile_options(_cuda PRIVATE
  $<$<AND:$<BOOL:${HYBRIDENGINE_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
he_target(_cuda)
install(TARGETS _cuda LIBRARY DESTINATION hybridengine)
