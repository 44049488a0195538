"""CPUs and memory that the system allows the program, which may be far fewer than the machine has: affinity masks, control groups."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import unittest

from server import binary, demo_model

MIB = 1 << 20


def hierarchy(controller: str) -> tuple[pathlib.Path, bool]:
    """Where groups for this controller can be made, and whether they are version 2's."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        mount = pathlib.Path(fields.split()[4])
        if kind == "cgroup" and controller in options.split(","):
            return mount, False
        if kind == "cgroup2" and controller in (mount / "cgroup.subtree_control").read_text().split():
            return mount, True
    raise unittest.SkipTest(f"no control groups for {controller} here")


@contextlib.contextmanager
def group(controller: str, *limits: tuple[str, str, int | str]):
    """A group within a limited one: what bounds the program is above its own group. limits: (version 1's file, version 2's, value)"""
    root, is_v2 = hierarchy(controller)
    outer = root / f"tally-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
        for v1, v2, value in limits:
            (outer / (v2 if is_v2 else v1)).write_text(str(value))
    except OSError as error:
        for made in (inner, outer):
            with contextlib.suppress(OSError):
                made.rmdir()
        raise unittest.SkipTest(f"no control group can be made: {error}") from None
    try:
        yield inner / "cgroup.procs"
    finally:
        inner.rmdir()
        outer.rmdir()


def tally(*arguments: str, before=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={k: v for k, v in os.environ.items() if not k.startswith("TALLY_")}, preexec_fn=before)


def plan(before=None) -> dict:
    done = tally("plan", demo_model(), "--json", before=before)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class Limits(unittest.TestCase):
    def test_threads_are_those_that_affinity_allows(self):
        allowed = os.sched_getaffinity(0)
        self.assertEqual(plan()["options"]["threads"], len(allowed))
        self.assertEqual(plan(before=lambda: os.sched_setaffinity(0, {min(allowed)}))["options"]["threads"], 1)

    def test_threads_are_those_that_a_cpu_quota_allows(self):
        with group("cpu", ("cpu.cfs_quota_us", "cpu.max", 100000)) as procs:
            self.assertEqual(plan(before=lambda: procs.write_text(str(os.getpid())))["options"]["threads"], 1)
        with group("cpu", ("cpu.cfs_quota_us", "cpu.max", 100000 * 100)) as procs:  # more than there are
            self.assertEqual(plan(before=lambda: procs.write_text(str(os.getpid())))["options"]["threads"], len(os.sched_getaffinity(0)))

    def test_without_a_budget_the_plan_stays_under_a_memory_limit(self):
        limit = 400 * MIB
        self.assertGreater(plan()["total_bytes"], limit)
        with group("memory", ("memory.limit_in_bytes", "memory.max", limit)) as procs:
            planned = plan(before=lambda: procs.write_text(str(os.getpid())))["total_bytes"]
        self.assertLess(planned, limit)
        self.assertGreater(planned, limit // 2)

    def test_a_budget_over_a_memory_limit_is_refused_before_loading(self):
        with group("memory", ("memory.limit_in_bytes", "memory.max", 300 * MIB)) as procs:
            done = tally("serve", demo_model(), "--memory-budget", "600MiB", "--port", "0", before=lambda: procs.write_text(str(os.getpid())))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"memory budget: \d+ MiB are planned, but .* has only \d+ MiB left")


if __name__ == "__main__":
    unittest.main()
