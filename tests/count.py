"""Adds the outcomes of one `ctest --output-junit` run to a results file: count.py JUNIT.xml SUITE RESULTS

A results file has a line a test: outcome, suite, test, reason, separated by tabs. A cmocka program counts as the tests inside it,
any other as one.
"""
from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

LINE = re.compile(r"\[\s+(RUN|OK|FAILED|SKIPPED|ERROR)\s+\] (?:--- )?(.+)")
OUTCOMES = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}
Row = tuple[str, str, str]  # outcome, test, reason


def reason_of(output: str, said: list[str]) -> str:
    """Why a test skips: the last line it said, or else (streams do not keep their order) any line that speaks of skipping."""
    said = [line for line in said if line.strip()] or re.findall(r"(?im)^(?!\[|\s*\d+ SKIPPED).*\bskip.*$", output)
    return said[-1].strip() if said else "no reason given"


def inner(output: str) -> list[Row]:
    """The tests that a cmocka program reports. Its summary repeats some of them outside any RUN; those lines do not count."""
    rows, running, said = [], None, []
    for line in output.splitlines():
        match = LINE.fullmatch(line)
        if not match:
            said.append(line)
        elif match[1] == "RUN":
            running, said = match[2], []
        elif match[2] == running and match[1] in OUTCOMES:
            rows.append((OUTCOMES[match[1]], running, reason_of(output, said) if match[1] == "SKIPPED" else ""))
            running = None
    return rows


def rows_of(case: ElementTree.Element) -> Iterator[Row]:
    name, status, skipped = case.get("name", "?"), case.get("status", "?"), case.find("skipped")
    output = case.findtext("system-out") or ""
    if skipped is not None:
        if "SKIP_RETURN_CODE" in skipped.get("message", ""):
            yield "skipped", name, reason_of(output, output.splitlines())
        else:
            yield "failed", name, skipped.get("message", "not run")
        return
    rows = inner(output)
    for outcome, test, reason in rows:
        yield outcome, f"{name}: {test}", reason
    if status == "run" and not rows:
        yield "passed", name, ""
    elif status != "run" and not any(outcome == "failed" for outcome, _, _ in rows):
        yield "failed", name, "crashed, timed out, or exited with an error outside any test"


def main() -> None:
    junit, suite, results = sys.argv[1:]
    with open(results, "a", encoding="utf-8") as out:
        for case in ElementTree.parse(junit).getroot().iter("testcase"):
            for row in rows_of(case):
                out.write("\t".join((row[0], suite, row[1], row[2])) + "\n")


if __name__ == "__main__":
    main()
