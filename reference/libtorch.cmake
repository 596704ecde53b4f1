# Finds LibTorch: LOCKSTEP_LIBTORCH, the folder that has its include and lib, and
# LOCKSTEP_LIBTORCH_VERSION. Whoever names one where CMake looks for packages (Torch_DIR,
# CMAKE_PREFIX_PATH: a folder of LibTorch or what torch.utils.cmake_prefix_path says) gets that one,
# everybody else the one that tools/setup installs into LOCKSTEP_VENV. Not find_package(Torch):
# where a wheel was made for CUDA, that wants a CUDA toolkit.
function(lockstep_find_libtorch)
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
  list(PREPEND prefixes ${CMAKE_PREFIX_PATH})
  set(places ${prefixes})
  list(TRANSFORM places APPEND /../..)  # from LIBTORCH/share/cmake
  foreach(package IN ITEMS "$ENV{Torch_DIR}" "${Torch_DIR}")
    if(package)
      list(PREPEND places ${package}/../../..)  # from LIBTORCH/share/cmake/Torch
    endif()
  endforeach()
  file(GLOB installed ${LOCKSTEP_VENV}/lib/python3*/site-packages/torch)
  set(version_file share/cmake/Torch/TorchConfigVersion.cmake)
  find_path(LOCKSTEP_LIBTORCH ${version_file} PATHS ${places} ${prefixes} ${installed}
    NO_DEFAULT_PATH DOC "Folder that has LibTorch's include and lib")
  if(NOT EXISTS "${LOCKSTEP_LIBTORCH}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "LibTorch was wanted in ${LOCKSTEP_VENV} and is not there: run "
      "tools/setup, or name another one with -DLOCKSTEP_LIBTORCH, -DTorch_DIR or "
      "-DCMAKE_PREFIX_PATH, or build with -DLOCKSTEP_TORCH=OFF")
  endif()

  set(least 2.7)
  file(STRINGS ${LOCKSTEP_LIBTORCH}/${version_file} line REGEX "^set\\(PACKAGE_VERSION ")
  string(REGEX MATCH "[0-9][0-9.]*" version "${line}")
  file(STRINGS ${LOCKSTEP_LIBTORCH}/share/cmake/Torch/TorchConfig.cmake old_abi
    REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  if(version VERSION_LESS least OR old_abi)
    message(FATAL_ERROR "LibTorch ${version} of ${LOCKSTEP_LIBTORCH} does not fit: ${least} or "
      "later with the C++11 ABI was wanted; name another one with -DLOCKSTEP_LIBTORCH, or let "
      "tools/setup install one")
  endif()
  set(LOCKSTEP_LIBTORCH_VERSION ${version} PARENT_SCOPE)
endfunction()
