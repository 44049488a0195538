"""Memory comes through one door, the ledger: check_allocations.py ROOT

Fails on any call of the malloc family, mmap or a function that allocates by itself in engine/, kernels/, quant/ and server/, but
for the files below, each with the reason why its memory does not grow with model, batch or request while serving. An entry that
is no longer needed fails too. First the check is tried on samples.
"""
from __future__ import annotations

import pathlib
import re
import sys

ALLOWED = {  # file: (functions, why)
    "engine/ledger.c": ("calloc mmap", "the door itself: its own table, and the one mapping that every arena is carved from"),
    "engine/formats_gguf.c": ("calloc mmap", "tables of a file's header and its read-only mapping, before the ledger exists"),
    "engine/formats_gguf_vocab.c": ("malloc", "a vocabulary's arrays of pointers, freed once the tokenizer is built"),
    "engine/engine.c": ("calloc", "the engine's own struct, of fixed size, before the ledger exists"),
    "engine/evaluator.c": ("calloc", "tally eval: buffers of a measurement that serves nobody"),
    "engine/pretokenizer.c": ("calloc", "the holders of PCRE2's compiled patterns and match data, made at start and of fixed size"),
    "server/cmd_eval.c": ("malloc calloc", "tally eval: the texts and results of a measurement that serves nobody"),
    "server/cmd_eval_golden.c": ("calloc", "tally eval: the same"),
    "server/config.c": ("malloc calloc", "the options' own text, read once before anything else"),
}

CALL = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|p?valloc|strn?dup|v?asprintf|"
                  r"mmap|mmap64|mremap|s?brk|alloca|getline|getdelim|open_memstream|scandir|realpath|cuda(?:Host)?Malloc\w*|"
                  r"cuMem\w*Alloc\w*|cudaHostRegister)\s*\(")
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def calls_in(text: str) -> list[tuple[int, str]]:
    """Line and name of every allocating call; comments and literals are blanked first, keeping their lines."""
    code = NOISE.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
    return [(code.count("\n", 0, match.start()) + 1, match[1]) for match in CALL.finditer(code)]


def check_text(file: str, text: str) -> list[str]:
    allowed = ALLOWED.get(file, ("", ""))[0].split()
    calls = calls_in(text)
    faults = [f"{file}:{line}: {name}: memory comes from the ledger, an arena or the caller" for line, name in calls
              if name not in allowed]
    if allowed and not any(name in allowed for _, name in calls):
        faults.append(f"{file}: allowed to call {', '.join(allowed)}, but calls none: take it off the list")
    return faults


SAMPLES = (  # text, how many calls it has
    ("char *p = malloc(3);", 1), ("p = (char *) calloc (1, 2);", 1), ("p=realloc(p, 3), q = strdup(s);", 2), ("mmap(0, n, 3, 2, -1, 0)", 1),
    ("posix_memalign(&p, 64, n);", 1), ("x = aligned_alloc(64, n); cudaMallocAsync(&p, n, s);", 2), ("getline(&line, &n, f);", 1),
    ("/* malloc(3) */ // calloc(1, 2)", 0), ('puts("malloc(3)");', 0), ("arena_alloc(a, 3); my_malloc(3); memory.alloc(c, 3)", 0),
    ("source->malloc(3)", 0), ("/* \" */ malloc(1); /* \" */", 1), ("'\"'; malloc(1); '\"'", 1), ("int mallocs; free(p); munmap(p, n);", 0),
)


def self_test() -> list[str]:
    faults = [f"self-test: {text}: {len(calls_in(text))} calls seen, not {n}" for text, n in SAMPLES if len(calls_in(text)) != n]
    if calls_in("/* one\ntwo */\nmalloc(1);") != [(3, "malloc")]:
        faults.append("self-test: wrong line")
    return faults


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    faults, n_files = self_test(), 0
    for folder in ("engine", "kernels", "quant", "server"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh"):
                n_files += 1
                faults += check_text(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    print("\n".join(faults + [f"{n_files} files, {len(faults)} faults"]))
    return 1 if faults or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
