"""The whole program on every instruction set, and on an old CPU that has none of them: the same bits.

An old CPU is qemu's emulation of one (Debian: qemu-user), where any AVX instruction outside dispatch ends the program.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from server import binary, demo_model

TEXT = "The quick brown fox jumps over the lazy dog, and"
N_TOKENS = 10


def is_sanitized(path: str) -> bool:
    data = pathlib.Path(path).read_bytes()
    return b"__asan_init" in data or b"__tsan_init" in data


class InstructionSets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.text = pathlib.Path(cls.folder.name, "text")
        cls.text.write_text(TEXT, encoding="utf-8")
        cls.program, cls.model = binary(), demo_model()
        cls.native = cls.log_probabilities()

    @classmethod
    def log_probabilities(cls, isa: str = "", prefix: tuple[str, ...] = (), threads: int = 2) -> bytes:
        """Every log probability after each of the text's tokens, as the program writes them."""
        out = pathlib.Path(cls.folder.name, "logprobs")
        out.unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        if isa:
            env["TALLY_ISA"] = isa
        command = [*prefix, cls.program, "eval", cls.model, "--text", str(cls.text), "--tokens", str(N_TOKENS), "--threads", str(threads),
                   "--context", "64", "--logprobs", str(out)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=600, check=False)
        if done.returncode == 2 and "TALLY_ISA" in done.stderr:
            raise unittest.SkipTest(done.stderr.strip())
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        data = out.read_bytes()
        if len(data) < 4 * (N_TOKENS - 1):
            raise AssertionError(f"only {len(data)} bytes of log probabilities")
        return data

    def test_plain_c_gives_the_same_bits(self):
        self.assertTrue(self.log_probabilities("plain") == self.native)

    def test_avx2_gives_the_same_bits(self):
        self.assertTrue(self.log_probabilities("avx2") == self.native)

    def test_avx512_gives_the_same_bits(self):
        self.assertTrue(self.log_probabilities("avx512") == self.native)

    def test_one_thread_gives_the_same_bits(self):
        self.assertTrue(self.log_probabilities(threads=1) == self.native)

    def test_a_cpu_of_2008_gives_the_same_bits(self):
        qemu = shutil.which("qemu-x86_64")
        if not qemu:
            self.skipTest("qemu-x86_64 is not installed (Debian: qemu-user)")
        if os.uname().machine != "x86_64":
            self.skipTest("this is not an x86-64 machine")
        if is_sanitized(self.program):
            self.skipTest("sanitizers do not run under qemu; the release build's run of this test counts")
        self.assertTrue(self.log_probabilities(prefix=(qemu, "-cpu", "Nehalem"), threads=1) == self.native)

    def test_an_unknown_instruction_set_is_an_error_that_names_those_there_are(self):
        done = subprocess.run([self.program, "eval", self.model, "--text", str(self.text)], env={**os.environ, "TALLY_ISA": "sse9"},
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        for name in ("TALLY_ISA", "plain", "avx2", "avx512"):
            self.assertIn(name, done.stderr)


if __name__ == "__main__":
    unittest.main()
