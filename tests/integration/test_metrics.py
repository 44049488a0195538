"""/metrics as Prometheus reads it, by promtool where there is one."""
from __future__ import annotations

import re
import shutil
import subprocess
import unittest

from server import ROOT, Server

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})? (\S+)")


def samples(text: str) -> dict[str, float]:
    """name{labels} → value"""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            if not match:
                raise AssertionError(f"not a sample: {line!r}")
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    if not shutil.which("promtool"):
        raise unittest.SkipTest("promtool is not installed (Debian: prometheus)")
    return subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "1", "--max-seqs", "2")
        cls.addClassCleanup(cls.server.stop)
        for _ in range(2):
            cls.server.complete(prompt="Once upon a time", max_tokens=8)
        cls.server.post({"prompt": 7.5})
        status, _, text = cls.server.get("/metrics")
        assert status == 200, text
        cls.text = text.decode()

    def test_promtool_accepts_the_metrics(self):
        checked = promtool("check", "metrics", text=self.text)
        # Names with a colon are vLLM's, which gateways scrape; promtool reserves colons for recording rules.
        complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if line and not line.startswith("vllm:")]
        self.assertEqual(complaints, [])
        self.assertNotIn("error while linting", checked.stderr)

    def test_every_name_has_a_type_and_help(self):
        names = {re.sub(r"_(bucket|sum|count)$", "", re.split("[{ ]", line)[0]) for line in self.text.splitlines() if not line.startswith("#")}
        for kind in ("HELP", "TYPE"):
            declared = {line.split()[2] for line in self.text.splitlines() if line.startswith(f"# {kind} ")}
            self.assertEqual({n for n in names if n and n not in declared and n + "_count" not in declared}, set(), kind)

    def test_histograms_rise_to_their_count(self):
        found = samples(self.text)
        counts = {name: value for name, value in found.items() if re.search(r"_count(\{|$)", name)}
        self.assertTrue(counts)
        for name, count in counts.items():
            base, labels = re.fullmatch(r"(.*)_count(?:\{(.*)\})?", name).groups()
            prefix = base + "_bucket{" + (labels + "," if labels else "")
            buckets = [value for bucket, value in found.items() if bucket.startswith(prefix)]
            self.assertEqual(buckets, sorted(buckets), name)
            self.assertEqual(buckets[-1], count, name)

    def test_nothing_is_used_once_all_is_done(self):
        found = samples(self.text)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            values = [value for sample, value in found.items() if re.split("[{]", sample)[0] == name]
            self.assertEqual(values and sum(values), 0, name)


class ScrapeConfiguration(unittest.TestCase):
    def test_promtool_accepts_the_scrape_configuration(self):
        checked = promtool("check", "config", str(ROOT / "configs/prometheus.yml"))
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
