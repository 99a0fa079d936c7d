# he_fail(text): stop with one line. The leading space keeps CMake from folding the line.
function(he_fail text)
  message(FATAL_ERROR " ${text}")
endfunction()
