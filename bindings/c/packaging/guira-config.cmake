# Targets guira::guira, the shared library, and guira::guira_static. Both have guira.h, and guira.hpp for C++17.
get_filename_component(_guira_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET guira::guira)
  add_library(guira::guira SHARED IMPORTED)
  set_target_properties(guira::guira PROPERTIES
    IMPORTED_LOCATION "${_guira_prefix}/lib/libguira.so.@VERSION@"
    IMPORTED_SONAME "libguira.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_guira_prefix}/include")

  add_library(guira::guira_static STATIC IMPORTED)
  set_target_properties(guira::guira_static PROPERTIES
    IMPORTED_LOCATION "${_guira_prefix}/lib/libguira.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_guira_prefix}/include"
    INTERFACE_LINK_LIBRARIES "@PRIVATE@")
endif()

unset(_guira_prefix)
