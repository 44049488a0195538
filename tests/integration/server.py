"""The program under test: where it is, and a running server that tests talk to and stop.

TALLY_BIN names the program, TALLY_MODEL its model. TALLY_FAKE_SERVER names instead the server over a stand-in engine, which also takes
commands on its standard input: tests that must say when a step happens need that one.
"""
from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 180  # how long anything may take before a test calls it stuck: sanitized builds on a busy machine are slow
LISTENING = re.compile(r" info (?:ready .*url=http://\S+?:|listening port=)(\d+)")


def is_fake() -> bool:
    return "TALLY_FAKE_SERVER" in os.environ


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
    """A server on a free port: `with Server("--max-seqs", 4) as server: server.complete(prompt="hello")`"""

    def __init__(self, *flags):
        program = [os.environ["TALLY_FAKE_SERVER"]] if is_fake() else [binary(), "serve", "--model", demo_model()]
        # Its own configuration: nothing of ours that begins with TALLY_ but the instruction set.
        env = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_") or name == "TALLY_ISA"}
        self.process = subprocess.Popen(program + [str(flag) for flag in flags] + ["--port", "0"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", bufsize=1, env=env)
        self.log = []
        self.has_log_ended = False
        self.logged = threading.Condition()
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        try:
            self.port = int(LISTENING.search(self.wait_log(LISTENING))[1])
        except AssertionError:
            self.process.kill()
            raise
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        assert kind is not None or code == 0, (code, self.log[-40:])

    def _read_log(self):
        for line in self.process.stderr:
            with self.logged:
                self.log.append(line.rstrip("\n"))
                self.logged.notify_all()
        with self.logged:
            self.has_log_ended = True  # and so has the process
            self.logged.notify_all()

    def wait_log(self, pattern, timeout=SECONDS):
        """The first log line that matches; waits for it."""
        deadline = time.monotonic() + timeout
        with self.logged:
            while True:
                for line in self.log:
                    if re.search(pattern, line):
                        return line
                if self.has_log_ended or time.monotonic() >= deadline:
                    raise AssertionError(f"no log line matches {pattern!r}; the log:\n" + "\n".join(self.log[-40:]))
                self.logged.wait(max(0, deadline - time.monotonic()))

    def command(self, text):
        """A command to the stand-in engine; returns its state afterwards."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def wait_state(self, **wanted):
        """Polls the engine's state until it is as wanted."""
        deadline = time.monotonic() + SECONDS
        while True:
            state = self.command("stats")
            if all(state[k] == v for k, v in wanted.items()):
                return state
            if time.monotonic() > deadline:
                raise AssertionError(f"wanted {wanted}, the engine is at {state}")
            time.sleep(0.001)

    def connect(self, timeout=SECONDS):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def exchange(self, raw, timeout=SECONDS):
        """Sends raw bytes on a connection of its own and reads to its end or to the end of one answer: (status, headers, body)."""
        with self.connect(timeout) as s:
            s.sendall(raw)
            return read_answer(s.makefile("rb"))

    def get(self, path, method="GET", headers=""):
        return self.exchange(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode())

    def post(self, body, path="/v1/completions", headers=""):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return self.exchange(head.encode() + body)

    def complete(self, **fields):
        status, _, body = self.post(fields)
        assert status == 200, (status, body)
        return json.loads(body)

    def stream(self, **fields):
        """(events, text): decoded events of one stream, [DONE] checked and left out."""
        status, headers, body = self.post({**fields, "stream": True})
        assert status == 200, (status, body)
        assert headers["content-type"].startswith("text/event-stream"), headers
        return parse_events(body)

    def metric(self, name):
        text = self.get("/metrics")[2].decode()
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name} in\n{text}")

    def stop(self, number=signal.SIGTERM, timeout=SECONDS):
        """Signals, waits; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
        reports = [line for line in self.log if "Sanitizer" in line or "runtime error:" in line or line.startswith("BUG at")]
        assert not reports, "\n".join(self.log[-80:])
        return code


def read_headers(f):
    line = f.readline()
    if not line:
        return None, {}
    status, headers = int(line.split()[1]), {}
    while True:
        line = f.readline().strip()
        if not line:
            return status, headers
        name, value = line.decode().split(":", 1)
        headers[name.lower()] = value.strip()


def read_chunks(f):
    """Chunks of a chunked body as they come; raises EOFError where it is cut."""
    while True:
        line = f.readline()
        if not line.endswith(b"\n"):
            raise EOFError("body cut")
        n = int(line, 16)
        data = f.read(n)
        if len(data) < n or f.read(2) != b"\r\n":
            raise EOFError("body cut")
        if n == 0:
            return
        yield data


def read_answer(f, head=False):
    status, headers = read_headers(f)
    while status == 100:
        status, headers = read_headers(f)
    if status is None or head or status == 204:
        return status, headers, b""
    if headers.get("transfer-encoding") == "chunked":
        return status, headers, b"".join(read_chunks(f))
    return status, headers, f.read(int(headers.get("content-length", 0)))


def parse_events(body):
    parts = body.decode().split("\n\n")
    assert parts[-1] == "" and parts[-2] == "data: [DONE]", body[-200:]
    return [json.loads(part[len("data: "):]) for part in parts[:-2]]


class Stream:
    """A streamed completion on a connection that the test holds."""

    def __init__(self, server, **fields):
        body = json.dumps({**fields, "stream": True}).encode()
        self.socket = server.connect()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.file = self.socket.makefile("rb")
        self.chunks = None

    def begin(self):
        self.status, self.headers = read_headers(self.file)
        self.chunks = read_chunks(self.file)
        return self.status

    def chunk(self):
        return next(self.chunks).decode()

    def rest(self):
        return b"".join(self.chunks).decode()

    def close(self):
        self.file.close()
        self.socket.close()
