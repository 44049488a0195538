# SANITIZE=address (with undefined behaviour), undefined or thread, for every target.
if(SANITIZE STREQUAL "address")
  set(flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
elseif(SANITIZE STREQUAL "undefined")
  set(flags -fsanitize=undefined -fno-sanitize-recover=all -g)
elseif(SANITIZE STREQUAL "thread")
  set(flags -fsanitize=thread -fno-omit-frame-pointer -g)
elseif(NOT SANITIZE STREQUAL "")
  message(FATAL_ERROR "SANITIZE is '${SANITIZE}': allowed are address, undefined, thread")
endif()
if(flags)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags -Wno-maybe-uninitialized) # what sanitizers insert hides assignments from gcc; the release build keeps it
    # Looking for use after return, gcc 12 aligns a function's locals too little for 512-bit vectors, whose stores then fault.
    list(APPEND TALLY_FLAGS_avx512 --param=asan-use-after-return=0)
  endif()
  add_compile_options(${flags} -DTALLY_SANITIZE=1)
  add_link_options(${flags})
  # The 16-lane source with plain C lanes takes gcc ten minutes to instrument. Its AVX2 build, from the same source, is instrumented.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/cpu/lane_ops_plain.c PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O1")
  set(TALLY_SIMDE_FLAGS -fno-sanitize=all)
endif()
