"""The program under test, as a server that tests start and stop. TALLY_BIN names the program, TALLY_MODEL its model."""
from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import threading
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY = re.compile(r" info ready .*url=(http://\S+)")


def binary() -> str:
    path = os.environ.get("TALLY_BIN", str(ROOT / "build/tally"))
    if not os.access(path, os.X_OK):
        raise unittest.SkipTest(f"no program at {path}: set TALLY_BIN")
    return path


def demo_model() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    path = os.environ.get("TALLY_MODEL") or f"{cache}/tally/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not os.path.isfile(path):
        raise unittest.SkipTest(f"no model at {path}: run scripts/fetch-model or set TALLY_MODEL")
    return path


class Server:
    """A running server on a free port. `with Server("--max-seqs", "4") as server: server.post("/v1/completions", {...})`"""

    def __init__(self, *options: str, model: str | None = None, env: dict[str, str] | None = None, ready_within: float = 120):
        # Its own configuration: nothing of ours that begins with TALLY_ but the instruction set.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TALLY_") or k == "TALLY_ISA"}
        command = [binary(), "serve", "--model", model or demo_model(), "--port", "0", *options]
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.url = ""
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        errors="replace", env={**clean, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(ready_within) or not self.url:
            self.process.kill()
            raise AssertionError(f"the server is not ready: {self.log()}")

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)
            match = READY.search(line)
            if match:
                self.url = match[1]
                self._ready.set()
        self._ready.set()  # the end of the log is the end of the process

    def log(self) -> str:
        return "".join(self.lines[-50:])

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str, timeout: float = 60) -> tuple[int, str]:
        return self._ask(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: object, timeout: float = 120) -> tuple[int, dict]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        status, text = self._ask(request, timeout)
        return status, json.loads(text)

    @staticmethod
    def _ask(request: urllib.request.Request, timeout: float) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def stop(self, timeout: float = 60) -> int:
        """Asks the server to drain and gives its exit code; kills it when it does not end."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the server did not end: {self.log()}") from None
        finally:
            self._reader.join(5)
            self.process.stderr.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind, *_) -> None:
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with {code}: {self.log()}")
