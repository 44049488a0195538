# The warnings of a strict project, as errors, with gcc and clang.
function(tally_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
    -Wwrite-strings -Wformat=2 -Wundef -Wcast-qual -Wimplicit-fallthrough -Wno-unused-parameter
    -Werror -fno-strict-aliasing -fno-common -fstack-protector-strong
    # One order of sums gives the same bits everywhere: the compiler may not fuse or reorder on its own.
    -ffp-contract=off -fno-fast-math -fno-math-errno)
endfunction()
