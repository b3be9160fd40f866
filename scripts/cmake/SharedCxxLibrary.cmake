# SPDX-License-Identifier: Apache-2.0
# Links the shared C++ library where the compiler would take the static one (as with a GCC that is
# installed without libstdc++.so). Each of our libraries would have one of its own then, and an
# exception that goes from one to another, or through PyTorch, would end the process.
function(commensal_share_cxx_library)
  set(source "${PROJECT_BINARY_DIR}/shared_cxx_library.cpp")
  set(made "${PROJECT_BINARY_DIR}/shared_cxx_library")
  file(WRITE "${source}" "#include <stdexcept>\nint main() { throw std::logic_error(\"\"); }\n")
  try_compile(compiles "${PROJECT_BINARY_DIR}/try_shared_cxx_library" SOURCES "${source}"
              COPY_FILE "${made}" CXX_STANDARD 20)
  if(NOT compiles)
    return() # what is wrong will be said by what is built next
  endif()
  file(STRINGS "${made}" needed REGEX "^lib(std)?c\\+\\+\\.so")
  if(needed)
    return()
  endif()
  message(STATUS "The compiler has only the static C++ library: linking libstdc++.so.6")
  link_libraries(-l:libstdc++.so.6)
endfunction()
