"""An include never points up the walk of a request: check_includes.py ROOT

The matrix below is the one in docs/design.md. A project header is included by its path from the root (a test's own may lie beside
it); a third-party header lives in the files named for it; anything else must be the C library's, POSIX's or Linux's own. First the
check is tried on samples that break each rule.
"""
from __future__ import annotations

import fnmatch
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Files that may include any project header: the program's own, and tests.
PROGRAMS = ("server/main.c", "server/cmd_*.c", "server/commands.h", "server/eval.h", "quant/tool_*.c", "tests/*")

# Project headers that a folder may include, the first folder that matches a file.
PROJECT = (
    ("engine/base/*", ("engine/base/*.h",)),
    ("quant/*", ("engine/base/*.h", "quant/*.h")),
    ("kernels/*", ("engine/base/*.h", "quant/format.h", "kernels/*.h", "kernels/*.cuh")),
    ("engine/*", ("engine/*.h", "quant/format.h", "quant/import_*.h", "kernels/*.h")),
    ("server/*", ("engine/base/*.h", "server/*.h", "engine/engine.h", "engine/tokenizer.h", "engine/detokenizer.h",
                  "engine/ledger.h")),
    ("client/*", ("engine/base/*.h", "client/*.h")),
)

# What is not the system's, and the only files where it may be.
THIRD_PARTY = (
    ("microhttpd.h", ("server/http.c",)),
    ("jansson.h", ("server/json_in.c", "server/json_in.h", "client/*", "server/main.c", "server/cmd_*.c", "server/eval.h",
                      "tests/*")),
    ("cyaml/*", ("server/config.c", "server/config_yaml.c", "tests/*")),
    ("pcre2.h", ("engine/pretokenizer.c", "tests/*")),
    ("utf8proc.h", ("engine/*", "tests/*")),
    ("xxhash.h", ("engine/*",)),
    ("curl/*", ("client/*", "tests/*")),
    ("cmocka.h", ("tests/*",)),
    ("*intrin.h", ("kernels/cpu/simd.h",)),
    ("simde/*", ("kernels/cpu/simd.h",)),
    ("cuda*.h", ("kernels/cuda/*", "kernels/device.h")),
    ("cublas*.h", ("kernels/cuda/linear_cublas.cu",)),
)

SYSTEM = ("alloca.h arpa/*.h assert.h cpuid.h ctype.h dirent.h endian.h errno.h fcntl.h fenv.h float.h getopt.h inttypes.h iso646.h "
          "limits.h linux/*.h locale.h math.h net/*.h netdb.h netinet/*.h poll.h pthread.h sched.h semaphore.h setjmp.h signal.h "
          "spawn.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h strings.h "
          "sys/*.h termios.h time.h uchar.h ucontext.h unistd.h wchar.h wctype.h sanitizer/*.h").split()


def matches(name: str, patterns) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def fault_of(file: str, kind: str, header: str, is_project_header) -> str | None:
    for pattern, allowed in THIRD_PARTY:
        if matches(header, (pattern,)):
            return None if matches(file, allowed) else f"{header} belongs in {', '.join(allowed)}"
    if kind == "<":
        return None if matches(header, SYSTEM) else f"<{header}> is neither the system's nor a library that Tally uses"
    if not is_project_header(header):
        return f'"{header}" is not a path from the root of the project'
    if matches(file, PROGRAMS):
        return None
    for pattern, allowed in PROJECT:
        if matches(file, (pattern,)):
            return None if matches(header, allowed) else f"{header} is above it: {pattern} may include {', '.join(allowed)}"
    return "no rule for this folder"


def check_text(file: str, text: str, is_project_header) -> list[str]:
    faults = ((match, fault_of(file, *match.groups(), is_project_header)) for match in INCLUDE.finditer(text))
    return [f"{file}:{text.count(chr(10), 0, match.start(1)) + 1}: {fault}" for match, fault in faults if fault]


SAMPLES = (  # file, line, is it allowed?
    ("engine/base/log.c", '#include "engine/base/log.h"', True),
    ("engine/base/log.c", '#include "engine/engine.h"', False),
    ("quant/int4.c", '#include "kernels/backend.h"', False),
    ("kernels/cpu/norm_avx2.c", '#include "kernels/cpu/simd.h"', True),
    ("kernels/cpu/norm_avx2.c", "#include <immintrin.h>", False),
    ("kernels/cpu/norm_avx2.c", '#include "quant/import_gguf.h"', False),
    ("kernels/cpu/norm_avx2.c", '#include "engine/model.h"', False),
    ("engine/model.c", '#include "kernels/backend.h"', True),
    ("engine/model.c", '#include "server/http.h"', False),
    ("engine/model.c", "#include <microhttpd.h>", False),
    ("engine/bpe.c", "#  include  <pcre2.h>", False),
    ("engine/pretokenizer.c", "#include <pcre2.h>", True),
    ("server/stream.c", '#include "engine/engine.h"', True),
    ("server/stream.c", '#include "engine/block_pool.h"', False),
    ("server/stream.c", '#include "client/stats.h"', False),
    ("server/stream.c", "#include <jansson.h>", False),
    ("server/cmd_bench.c", '#include "client/bench.h"', True),
    ("client/bench.c", '#include "engine/engine.h"', False),
    ("client/bench.c", "#include <curl/curl.h>", True),
    ("client/bench.c", "#include <openssl/ssl.h>", False),
    ("client/bench.c", '#include "stats.h"', False),
    ("tests/unit/engine/test_model.c", '#include "server/http.h"', True),
    ("elsewhere/x.c", '#include "engine/engine.h"', False),
)


def self_test() -> list[str]:
    return [f"self-test: {file}: {line}: {'refused' if allowed else 'let through'}" for file, line, allowed in SAMPLES
            if bool(check_text(file, line, lambda header: "/" in header)) == allowed]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    faults, n_files = self_test(), 0
    for folder in ("engine", "kernels", "quant", "server", "client", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh"):
                n_files += 1
                faults += check_text(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"),
                                     lambda header: (root / header).is_file() or
                                     (folder == "tests" and (path.parent / header).is_file()))
    print("\n".join(faults + [f"{n_files} files, {len(faults)} faults"]))
    return 1 if faults or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
