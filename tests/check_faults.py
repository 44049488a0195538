"""Every test that docs/faults.md names exists: check_faults.py ROOT"""
from __future__ import annotations

import pathlib
import re
import sys

NAMED = re.compile(r"`((?:test|fuzz)_\w+)(?:: (\w+))?`")


def missing(root: pathlib.Path) -> list[str]:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*") if path.suffix in (".c", ".py")}
    named = NAMED.findall((root / "docs/faults.md").read_text(encoding="utf-8"))
    if not named:
        return ["docs/faults.md names no test"]
    return [f"docs/faults.md: {file}: {test or 'no such file'}" for file, test in named
            if file not in sources or not re.search(rf"\b{test}\b", sources[file])]


faults = missing(pathlib.Path(sys.argv[1]))
print("\n".join(faults))
sys.exit(bool(faults))
