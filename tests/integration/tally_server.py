"""Starts a server binary, waits until it is ready, talks to it, and stops it.

TALLY_BIN names the real binary (`tally serve --model FILE --port N`), TALLY_FAKE_SERVER the one over the stand-in engine, which also takes
commands on its standard input: tests that must say when a step happens need that one.
"""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

SKIP = 77
SECONDS = 180  # how long anything may take before a test calls it stuck: sanitized builds on a busy machine are slow


def model_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("TALLY_MODEL") or os.path.join(cache, "tally/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def is_fake():
    return "TALLY_FAKE_SERVER" in os.environ


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, *flags):
        self.port = free_port()
        flags = [str(f) for f in flags] + ["--port", str(self.port)]
        if is_fake():
            command = [os.environ["TALLY_FAKE_SERVER"]] + flags
        else:
            command = [os.environ["TALLY_BIN"], "serve", "--model", model_path()] + flags
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        bufsize=1)
        self.log = []
        self.logged = threading.Condition()
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        self.wait_ready()

    def _read_log(self):
        for line in self.process.stderr:
            with self.logged:
                self.log.append(line.rstrip("\n"))
                self.logged.notify_all()

    def wait_log(self, pattern, timeout=SECONDS):
        """The first log line that matches; waits for it."""
        deadline = time.monotonic() + timeout
        with self.logged:
            while True:
                for line in self.log:
                    if re.search(pattern, line):
                        return line
                if not self.logged.wait(max(0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise AssertionError(f"no log line matches {pattern!r}; the log:\n" + "\n".join(self.log[-40:]))

    def wait_ready(self, timeout=SECONDS):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.reader.join(5)
                raise AssertionError(f"the server ended with {self.process.returncode}:\n" + "\n".join(self.log[-40:]))
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.01)  # starting has no other signal than an answer
        raise AssertionError("the server did not become ready")

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
