"""tally bench against a small server whose delays and failures are known."""
from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import unittest

from server import binary

REASONS = {200: "OK", 400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error", 301: "Moved"}


class FakeServer:
    """Answers the n-th completion as behaviours[n % len] says; keeps every request's head and body."""

    def __init__(self, behaviours=("ok",), *, first_s=0.0, gap_s=0.0, vocab=1000, serial=False, model="fake"):
        self.behaviours, self.first_s, self.gap_s, self.vocab, self.serial, self.model = behaviours, first_s, gap_s, vocab, serial, model
        self.requests: list[dict] = []
        self.heads: list[str] = []
        self.active = self.most_active = self.connections = 0
        self.hung = threading.Event()

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        started = threading.Event()

        async def run():
            self.lock, self.stopping = asyncio.Lock(), asyncio.Event()
            server = await asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=1024)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()
            await self.stopping.wait()
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(run(),), daemon=True)
        self.thread.start()
        started.wait()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(10)
        self.loop.close()

    async def connection(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")), 0)
                body = await reader.readexactly(length)
                if head.startswith("GET /v1/models"):
                    model = {"id": self.model, "object": "model"} | ({"vocab_size": self.vocab} if self.vocab else {})
                    await self.answer(writer, 200, json.dumps({"object": "list", "data": [model]}))
                elif not await self.completion(writer, head, json.loads(body)):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def answer(self, writer, status, text):
        writer.write(f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(text.encode())}\r\n\r\n"
                     f"{text}".encode())
        await writer.drain()

    async def chunk(self, writer, data):
        data = data if isinstance(data, bytes) else data.encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()

    async def event(self, writer, text, finish=None, **more):
        choice = {"index": 0, "text": text, "finish_reason": finish}
        await self.chunk(writer, "data: " + json.dumps({"choices": [choice], **more}) + "\n\n")

    async def completion(self, writer, head, body):
        behaviour = self.behaviours[len(self.requests) % len(self.behaviours)]
        self.requests.append(body)
        self.heads.append(head)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if self.serial:
                async with self.lock:
                    return await self.behave(writer, behaviour, body)
            return await self.behave(writer, behaviour, body)
        finally:
            self.active -= 1

    async def behave(self, writer, behaviour, body):
        if behaviour in ("429", "400", "500"):
            await self.answer(writer, int(behaviour), json.dumps({"error": {"message": f"no {behaviour} \x1b[2J", "code": int(behaviour)}}))
            return True
        if behaviour == "html":
            await self.answer(writer, 200, "<html>hello</html>")
            return True
        if behaviour == "empty_500":
            await self.answer(writer, 500, "")
            return True
        if behaviour == "reset":
            return False
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if behaviour == "hang":
            await self.event(writer, "x")
            self.hung.set()
            await asyncio.Event().wait()
        n = body["max_tokens"] - (1 if behaviour == "short" else 0)
        await self.event(writer, "")  # an empty chunk is no first token
        await asyncio.sleep(self.first_s)
        for i in range(n):
            if i:
                await asyncio.sleep(self.gap_s)
            if i == 2 and behaviour == "disconnect":
                return False
            if i == 2 and behaviour == "bad_json":
                await self.chunk(writer, "data: {not json\n\n")
            if i == 2 and behaviour == "bad_shape":
                await self.chunk(writer, 'data: {"surprise": 1}\n\n')
            if i == 2 and behaviour == "error_event":
                await self.chunk(writer, 'data: {"error": {"message": "engine died"}}\n\n')
            await self.event(writer, "" if behaviour == "no_text" else f" t{i}", "length" if i == n - 1 else None)
        if behaviour == "huge":
            for _ in range(80):
                await self.chunk(writer, b"data: " + b"x" * 65536)
        if body.get("stream_options", {}).get("include_usage") and behaviour != "no_usage":
            usage = {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": n + 7}
            await self.chunk(writer, "data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n")
        if behaviour == "no_done":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        await self.chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def bench(url, *options, env=None):
    command = [binary(), "bench", "--url", url, *options]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TALLY_BENCH_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean | (env or {}))


def bench_json(url, *options, code=0):
    done = bench(url, "--json", "-", *options)
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}, not {code}: {done.stderr}\n{done.stdout}")
    return json.loads(done.stdout)


class Load(unittest.TestCase):
    def test_a_closed_loop_counts_what_it_did(self):
        with FakeServer() as server:
            result = bench_json(server.url, "--requests", "20", "--concurrency", "4", "--output-tokens", "5", "--input-tokens", "9")
        self.assertEqual((result["completed"], result["failed"]), (20, 0))
        self.assertEqual(result["total_output_tokens"], 100)
        self.assertEqual(result["total_input_tokens"], 140)
        self.assertEqual(result["max_concurrent_requests"], 4)
        self.assertLessEqual(server.most_active, 4)
        self.assertLessEqual(server.connections, 5)  # kept open: one for /v1/models, four for the load
        self.assertEqual(result["model_id"], "fake")
        self.assertGreater(result["max_output_tokens_per_s"], 0)
        for body in server.requests:
            self.assertEqual(len(body["prompt"]), 9)
            self.assertTrue(all(isinstance(i, int) and 0 <= i < 1000 for i in body["prompt"]))
            self.assertEqual((body["model"], body["max_tokens"], body["temperature"], body["stream"]), ("fake", 5, 0, True))
            self.assertIs(body["ignore_eos"], True)
            self.assertIs(body["stream_options"]["include_usage"], True)
        self.assertEqual(len({json.dumps(body["prompt"]) for body in server.requests}), 20)

    def test_the_same_seed_asks_the_same(self):
        asked = []
        for seed in "1", "1", "2":
            with FakeServer() as server:
                bench_json(server.url, "--requests", "6", "--concurrency", "1", "--output-tokens", "1", "--seed", seed)
            asked.append([body["prompt"] for body in server.requests])
        self.assertEqual(asked[0], asked[1])
        self.assertNotEqual(asked[0], asked[2])

    def test_known_delays_are_measured(self):
        with FakeServer(first_s=0.2, gap_s=0.04) as server:
            result = bench_json(server.url, "--requests", "4", "--concurrency", "2", "--output-tokens", "6")
        # Never less than the server waited; a loaded machine may add to it.
        self.assertGreaterEqual(result["p50_ttft_ms"], 199)
        self.assertLess(result["p50_ttft_ms"], 320)
        self.assertGreaterEqual(result["p50_tpot_ms"], 38)
        self.assertLess(result["p50_tpot_ms"], 80)
        self.assertGreaterEqual(result["p50_itl_ms"], 38)
        self.assertGreaterEqual(result["p50_e2el_ms"], 199 + 5 * 39)
        self.assertAlmostEqual(result["mean_tpot_ms"], (result["mean_e2el_ms"] - result["mean_ttft_ms"]) / 5, places=3)

    def test_the_open_loop_counts_from_the_schedule(self):
        with FakeServer(first_s=0.03, serial=True) as server:
            result = bench_json(server.url, "--requests", "20", "--rate", "200", "--output-tokens", "1")
        # 20 requests fall due in about 0.1 s and are served one at a time, 0.03 s each: the last waits for all others.
        self.assertEqual(result["completed"], 20)
        self.assertGreater(result["max_concurrent_requests"], 5)
        self.assertGreater(result["max_ttft_ms"], 350)
        self.assertEqual(result["request_rate"], 200)

    def test_a_concurrency_limit_does_not_hide_the_wait(self):
        with FakeServer(first_s=0.03) as server:
            result = bench_json(server.url, "--requests", "20", "--rate", "200", "--concurrency", "1", "--output-tokens", "1")
        self.assertEqual(server.most_active, 1)
        self.assertGreater(result["max_e2el_ms"], 350)

    def test_warm_up_is_not_counted_and_has_its_own_prompts(self):
        with FakeServer(("429",) * 3 + ("ok",) * 50) as server:
            result = bench_json(server.url, "--requests", "5", "--warmup", "3", "--concurrency", "1", "--output-tokens", "2")
        self.assertEqual((result["completed"], result["failed"]), (5, 0))
        self.assertEqual(len({json.dumps(body["prompt"]) for body in server.requests}), 8)

    def test_words_and_files_are_sent_as_text(self):
        with FakeServer(vocab=0) as server:
            bench_json(server.url, "--requests", "3", "--words", "12", "--output-tokens", "1")
            bench_json(server.url, "--requests", "1", "--no-token-ids", "--input-tokens", "6", "--output-tokens", "1")
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
                file.write('{"prompt": "caf\\u00e9"}\nplain\n')
                file.flush()
                bench_json(server.url, "--requests", "3", "--concurrency", "1", "--prompts", file.name, "--output-tokens", "1", "--ignore-eos")
        self.assertEqual([len(body["prompt"].split()) for body in server.requests[:4]], [12, 12, 12, 6])
        self.assertEqual([body["prompt"] for body in server.requests[4:]], ["café", "plain", "café"])
        self.assertNotIn("ignore_eos", server.requests[0])
        self.assertIs(server.requests[4]["ignore_eos"], True)

    def test_key_and_headers_are_sent(self):
        with FakeServer() as server:
            bench_json(server.url + "/v1/", "--requests", "1", "--api-key", "secret", "--header", "X-One: 1", "--header", "X-Two=2",
                       "--no-ignore-eos", "--model", "other", "--vocab", "50")
        self.assertIn("Authorization: Bearer secret", server.heads[0])
        self.assertIn("X-One: 1", server.heads[0])
        self.assertIn("X-Two: 2", server.heads[0])
        self.assertTrue(server.heads[0].startswith("POST /v1/completions "))
        self.assertNotIn("ignore_eos", server.requests[0])
        self.assertEqual(server.requests[0]["model"], "other")

    def test_the_key_may_come_from_the_environment(self):
        with FakeServer() as server:
            done = bench(server.url, "--requests", "1", env={"TALLY_BENCH_API_KEY": "from-env"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Authorization: Bearer from-env", server.heads[0])


class Failures(unittest.TestCase):
    def test_each_failure_is_counted_in_its_class(self):
        expected = {"429": "429", "400": "4xx", "500": "5xx", "empty_500": "5xx", "disconnect": "disconnect", "no_done": "disconnect",
                    "bad_json": "bad_stream", "bad_shape": "bad_stream", "html": "bad_stream", "huge": "bad_stream",
                    "short": "short", "error_event": "stream_error", "hang": "timeout"}
        for behaviour, key in expected.items():
            with self.subTest(behaviour), FakeServer(("ok", behaviour)) as server:
                options = ("--timeout", "2") if behaviour == "hang" else ()
                result = bench_json(server.url, "--requests", "4", "--concurrency", "1", "--output-tokens", "5", *options, code=1)
                self.assertEqual(result["completed"], 2, result["failures"])
                self.assertEqual({k: v for k, v in result["failures"].items() if v}, {key: 2}, result["first_errors"])
                self.assertTrue(result["first_errors"][key])
                self.assertNotIn("\x1b", result["first_errors"][key])
                self.assertEqual(result["total_output_tokens"], 10)

    def test_a_connection_closed_without_an_answer_is_a_disconnect(self):
        with FakeServer(("reset",)) as server:  # every one: libcurl tries again when a connection that was kept open is closed
            result = bench_json(server.url, "--requests", "3", "--concurrency", "1", code=1)
        self.assertEqual(result["failures"]["disconnect"], 3)

    def test_a_mix_is_told_apart_in_one_run(self):
        with FakeServer(("ok", "429", "disconnect", "bad_json", "500")) as server:
            result = bench_json(server.url, "--requests", "50", "--concurrency", "5", "--output-tokens", "4", code=1)
        self.assertEqual({k: v for k, v in result["failures"].items() if v}, {"429": 10, "disconnect": 10, "bad_stream": 10, "5xx": 10})
        self.assertEqual((result["completed"], result["failed"]), (10, 40))

    def test_tokens_without_text_are_an_answer(self):
        with FakeServer(("no_text",)) as server:
            result = bench_json(server.url, "--requests", "3", "--output-tokens", "4")
        self.assertEqual((result["completed"], result["total_output_tokens"], result["mean_ttft_ms"]), (3, 12, 0))

    def test_without_usage_chunks_are_counted_and_it_is_said(self):
        with FakeServer(("no_usage",)) as server:
            done = bench(server.url, "--requests", "3", "--output-tokens", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"Total generated tokens: +12\n")
        self.assertIn("without usage", done.stdout)

    def test_a_server_that_goes_away_is_no_connection(self):
        with FakeServer() as server:
            url = server.url
        result = bench_json(url, "--requests", "3", "--model", "m", "--vocab", "10", code=1)
        self.assertEqual(result["failures"]["connect"], 3)
        done = bench(url, "--requests", "3")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^tally: bench: .*/v1/models: ")

    def test_an_unknown_vocabulary_says_what_to_do(self):
        with FakeServer(vocab=0) as server:
            done = bench(server.url)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--vocab", done.stderr)
        self.assertIn("--words", done.stderr)

    def test_bad_options_are_refused(self):
        for options in (("--requests", "0"), ("--rate", "-1"), ("--rate", "nan"), ("--concurrency", "0"), ("--request", "3"), ("--url", "ftp://x"),
                        ("--header", "nocolon"), ("--header", "A: b\r\nC: d"), ("--words", "3", "--prompts", "x"), ("extra",), ("--timeout", "0"),
                        ("--prompts", "/nonexistent"), ("--output-tokens",)):
            with self.subTest(options):
                done = bench("http://127.0.0.1:9", *options)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertRegex(done.stderr, r"^tally: bench: .*" + options[0].lstrip("-")[:4])
                self.assertEqual(done.stderr.count("\n"), 1)

    def test_an_interrupt_reports_what_was_done(self):
        with FakeServer(("ok", "ok", "hang")) as server:
            process = subprocess.Popen([binary(), "bench", "--url", server.url, "--requests", "9", "--concurrency", "1", "--json", "-"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertTrue(server.hung.wait(60))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        result = json.loads(out)
        self.assertEqual(process.returncode, 1, err)
        self.assertEqual(result["completed"], 2)
        self.assertIs(result["interrupted"], True)


class Output(unittest.TestCase):
    def test_the_table_and_a_file_of_json(self):
        with FakeServer() as server, tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "result.json")
            done = bench(server.url, "--requests", "5", "--json", str(path))
            result = json.loads(path.read_text())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"Successful requests: +5\n")
        for title in "Time to first token", "Time per output token", "Inter-token latency", "End-to-end latency", "Client lateness":
            self.assertRegex(done.stdout, title + r".*( +\d+\.\d\d){5} +\d+\n")
        self.assertEqual(result["completed"], 5)

    def test_a_file_that_cannot_be_written_is_an_error(self):
        with FakeServer() as server:
            done = bench(server.url, "--requests", "1", "--json", "/nonexistent/x.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nonexistent/x.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
