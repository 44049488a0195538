"""The server over HTTP. Cases(Real or Fake): see server.py for which binary is under test."""
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from server import Server, Stream, binary, demo_model, is_fake, parse_events, read_answer

fake_only = unittest.skipUnless(is_fake(), "needs the stand-in engine, whose steps the test commands")


class Case(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log[-30:])

    def refused(self, body, status=400, param=None, says=None, **kw):
        got, headers, text = self.server.post(body, **kw)
        self.assertEqual(got, status, text)
        error = json.loads(text)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertLess(len(text), 2100)
        if param:
            self.assertEqual(error["param"], param)
        if says:
            self.assertIn(says, error["message"])
        return headers, error


class Endpoints(Case):
    def test_health_ready_version_and_models_answer(self):
        for path in ("/health", "/ready", "/version", "/v1/models"):
            status, headers, body = self.server.get(path)
            self.assertEqual((status, headers["content-type"]), (200, "application/json"))
            json.loads(body)
        data = json.loads(self.server.get("/v1/models")[2])["data"]
        self.assertEqual(len(data), 1)
        self.assertEqual(data[0]["object"], "model")
        self.assertGreater(data[0]["max_model_len"], 0)

    def test_memory_shows_the_ledger_with_no_allocation_after_ready(self):
        self.server.complete(prompt="hello", max_tokens=4)
        memory = json.loads(self.server.get("/v1/memory")[2])
        self.assertEqual(memory["allocs_after_ready"], 0)
        self.assertGreaterEqual(memory["planned"], sum(line["used"] for line in memory["lines"] if line["id"] == "requests"))

    def test_an_unknown_route_is_404_and_a_wrong_method_405_with_allow(self):
        status, _, body = self.server.get("/nope")
        self.assertEqual(status, 404)
        self.assertIn("/nope", json.loads(body)["error"]["message"])
        status, headers, body = self.server.get("/v1/completions")
        self.assertEqual((status, headers["allow"]), (405, "POST, OPTIONS"))
        self.assertEqual(json.loads(body)["error"]["code"], "method_not_allowed")
        status, headers, _ = self.server.post({}, path="/health")
        self.assertEqual((status, headers["allow"]), (405, "GET, HEAD, OPTIONS"))
        self.assertEqual(self.server.get("/v1/completions", method="DELETE")[0], 405)

    def test_head_has_headers_only_and_options_the_methods(self):
        with self.server.connect() as s:
            s.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            raw = s.makefile("rb").read()
        self.assertIn(b" 200 ", raw.split(b"\r\n")[0])
        self.assertTrue(raw.endswith(b"\r\n\r\n"))
        status, headers, _ = self.server.get("/v1/completions", method="OPTIONS")
        self.assertEqual((status, headers["allow"]), (204, "POST, OPTIONS"))

    def test_a_request_id_is_echoed_if_sane_and_made_otherwise_and_is_in_the_log(self):
        body = {"prompt": "hi", "max_tokens": 1}
        headers = self.server.post(body, headers="X-Request-Id: my-id_1.2:3\r\n")[1]
        self.assertEqual(headers["x-request-id"], "my-id_1.2:3")
        self.server.wait_log("request_done id=my-id_1.2:3 ")
        for bad in ("a b", "x" * 65, "<script>", 'a"b'):
            given = self.server.post(body, headers=f"X-Request-Id: {bad}\r\n")[1]["x-request-id"]
            self.assertTrue(given.startswith("req-"), given)

    def test_metrics_are_what_promtool_accepts(self):
        self.server.complete(prompt="hello", max_tokens=4)
        status, headers, body = self.server.get("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"))
        text = body.decode()
        self.assertNotIn("nan", text.lower())
        self.assertNotIn("-inf", text.lower())
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
                     "vllm:time_to_first_token_seconds_bucket", "tally_kv_blocks_used", "tally_ledger_allocs_after_ready_total"):
            self.assertIn("\n" + name, text)
        if not shutil.which("promtool"):
            self.skipTest("promtool is not installed")
        done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True)
        complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line]
        own = [line for line in complaints if not line.startswith("vllm:")]
        self.assertEqual(own, [])  # the vllm: names have the colon that promtool reserves, and stay as gateways know them

    def test_metrics_count_what_was_served_and_a_scrape_resets_nothing(self):
        before = {n: self.server.metric(n) for n in ("tally_time_to_first_token_seconds_count", "tally_generated_tokens_total")}
        for _ in range(3):
            self.server.complete(prompt="hello", max_tokens=5, ignore_eos=True)
        self.assertEqual(self.server.metric("tally_time_to_first_token_seconds_count"), before["tally_time_to_first_token_seconds_count"] + 3)
        self.assertEqual(self.server.metric("tally_generated_tokens_total"), before["tally_generated_tokens_total"] + 15)
        self.assertGreater(self.server.metric("tally_time_to_first_token_seconds_sum"), 0)


class Completions(Case):
    def test_a_completion_has_the_openai_shape(self):
        answer = self.server.complete(prompt="hello", max_tokens=5, ignore_eos=True)
        self.assertTrue(answer["id"].startswith("cmpl-"))
        self.assertEqual(answer["object"], "text_completion")
        self.assertLess(abs(answer["created"] - time.time()), 60)
        choice = answer["choices"][0]
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "length", None))
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 5)

    def test_streamed_chunks_joined_are_the_unstreamed_text(self):
        ask = dict(prompt="The capital of France is", max_tokens=24, temperature=0)
        whole = self.server.complete(**ask)
        events = self.server.stream(**ask, stream_options={"include_usage": True})
        self.assertEqual("".join(e["choices"][0]["text"] for e in events if e["choices"]), whole["choices"][0]["text"])
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"], whole["usage"])
        self.assertTrue(all(e["usage"] is None for e in events[:-1]))
        reasons = [e["choices"][0]["finish_reason"] for e in events[:-1]]
        self.assertEqual((reasons[-1], set(reasons[:-1])), (whole["choices"][0]["finish_reason"], {None}))

    def test_continuous_usage_counts_up(self):
        events = self.server.stream(prompt="hello", max_tokens=6, ignore_eos=True, stream_options={"continuous_usage_stats": True})
        counts = [e["usage"]["completion_tokens"] for e in events]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 6)

    def test_max_tokens_bounds_and_defaults_to_16(self):
        for n in (1, 2, 3):
            self.assertEqual(self.server.complete(prompt="hi", max_tokens=n, ignore_eos=True)["usage"]["completion_tokens"], n)
        self.assertEqual(self.server.complete(prompt="hi", ignore_eos=True)["usage"]["completion_tokens"], 16)
        self.assertEqual(self.server.complete(prompt="hi", max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"], 16)

    def test_several_prompts_and_choices_are_indexed_prompt_major_each_once(self):
        answer = self.server.complete(prompt=["one", "two", "three"], n=2, max_tokens=3, ignore_eos=True)
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(6)))
        self.assertEqual(answer["usage"]["completion_tokens"], 18)
        events = self.server.stream(prompt=["one", "two"], n=3, max_tokens=3, ignore_eos=True)
        ended = [e["choices"][0]["index"] for e in events if e["choices"][0]["finish_reason"]]
        self.assertEqual(sorted(ended), list(range(6)))

    def test_n_of_one_greedy_prompt_gives_n_choices(self):
        answer = self.server.complete(prompt="hello", n=4, temperature=0, max_tokens=3)
        self.assertEqual(len(answer["choices"]), 4)

    def test_token_prompts_give_what_their_text_gives(self):
        ids = list(b"hello") if is_fake() else None
        if ids is None:
            self.skipTest("token ids of the real vocabulary are the tokenizer's tests")
        text = self.server.complete(prompt="he" + "l" + "lo", max_tokens=4)
        token = self.server.complete(prompt=[ids[0], ids[1], 258], max_tokens=4)
        self.assertEqual(text["choices"], token["choices"])
        two = self.server.complete(prompt=[[ids[0]], [ids[1], 258]], max_tokens=4)
        self.assertEqual(len(two["choices"]), 2)

    def test_echo_with_max_tokens_0_gives_the_prompt_and_its_logprobs(self):
        answer = self.server.complete(prompt="hello world", echo=True, max_tokens=0, logprobs=2)
        choice = answer["choices"][0]
        self.assertEqual(choice["text"], "hello world")
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), "hello world")
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        self.assertTrue(all(x < 0 for x in logprobs["token_logprobs"][1:]))
        self.assertEqual(logprobs["text_offset"][0], 0)
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        self.assertEqual(self.server.complete(prompt="hello", echo=True, max_tokens=0)["choices"][0]["text"], "hello")

    def test_logprobs_join_to_the_text_with_offsets_in_characters(self):
        for prompt, echo in (("hello", False), ("hello", True), ("one\n\n  two\n three", True)):
            for stream in (False, True):
                ask = dict(prompt=prompt, max_tokens=12, logprobs=3, echo=echo, temperature=0, ignore_eos=True)
                if stream:
                    choices = [e["choices"][0] for e in self.server.stream(**ask)]
                else:
                    choices = [self.server.complete(**ask)["choices"][0]]
                text = "".join(c["text"] for c in choices)
                tokens = sum((c["logprobs"]["tokens"] for c in choices), [])
                offsets = sum((c["logprobs"]["text_offset"] for c in choices), [])
                values = sum((c["logprobs"]["token_logprobs"] for c in choices), [])
                tops = sum((c["logprobs"]["top_logprobs"] for c in choices), [])
                self.assertEqual("".join(tokens), text)
                self.assertEqual(text.startswith(prompt), echo)
                self.assertEqual(len({len(tokens), len(offsets), len(values), len(tops)}), 1)
                for token, offset, value, top in zip(tokens, offsets, values, tops):
                    self.assertTrue(text[offset:].startswith(token))
                    if top is not None:
                        self.assertIn(len(top), (3, 4))
                        self.assertAlmostEqual(top[token], value, places=5)

    def test_the_same_seed_gives_the_same_answer(self):
        ask = dict(prompt="Once upon a time", max_tokens=12, temperature=1.5, seed=-7)
        self.assertEqual(self.server.complete(**ask)["choices"], self.server.complete(**ask)["choices"])

    def test_neutral_values_of_what_is_not_supported_are_taken_and_unknown_fields_ignored(self):
        self.server.complete(prompt="hi", max_tokens=1, presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1, logit_bias={}, suffix=None,
                             best_of=1, user="me", stop=None, stream_options=None, something_new={"a": [1]}, seed=None)

    def test_keep_alive_serves_again_after_a_stream_and_after_an_error(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=180)
        for body, status in (({"prompt": "hi", "max_tokens": 3, "stream": True}, 200), ({"prompt": []}, 400), ({"prompt": "hi", "max_tokens": 1}, 200)):
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            self.assertEqual(answer.status, status)
            answer.read()
        connection.close()

    def test_openai_client_completes_streams_and_reads_errors(self):
        try:
            import openai
        except ImportError:
            self.skipTest("openai is not installed")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt="hello", max_tokens=4, logprobs=1)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), answer.usage.completion_tokens)
        parts = list(client.completions.create(model=model, prompt="hello", max_tokens=4, stream=True))
        self.assertEqual("".join(p.choices[0].text for p in parts), answer.choices[0].text if is_fake() else "".join(p.choices[0].text for p in parts))
        with self.assertRaises(openai.BadRequestError) as caught:
            client.completions.create(model=model, prompt="hello", max_tokens=4, temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="other", prompt="hello")


class Refusals(Case):
    def test_bodies_that_are_not_json_are_400(self):
        for body in (b"", b"{", b"[]", b"null", b'{"prompt": "a",}', b'{"prompt": NaN}', b'{"prompt":"a","temperature":1e999}', b'{"prompt":"\xff"}',
                     b'{"prompt":"\\ud800"}', b'{"prompt":"\\u0000"}', b'{"prompt":"a"} x', b'{"prompt":"a","prompt":"b"}', b"\xef\xbb\xbf{}",
                     b'{"prompt":99999999999999999999999}', b"[" * 5000, b'{"a":' * 5000):
            self.refused(body)

    def test_each_wrong_field_is_named(self):
        ok = {"prompt": "a"}
        for field, values in {
            "temperature": [-1, 2.1, 1e38, "1", True, []], "top_p": [0, -0.1, 1.1, "x"], "top_k": [-2, 1.5, 2**31, "1"], "min_p": [-0.1, 1.1],
            "n": [0, 17, 512, 1.0, "1"], "max_tokens": [-1, 0, 1.5, "3", 2**40], "logprobs": [-1, 21, "5", True, 1.5], "seed": ["a", 1.5],
            "stop": ["", 5, {}, ["a"] * 17, "x" * 1025], "stop[1]": [], "stream": [1, "true"], "echo": ["yes"], "ignore_eos": [0],
            "stream_options": [{"include_usage": True}, 5], "model": [5, ["a"]], "suffix": ["x"], "logit_bias": [{"5": 1}, []],
            "presence_penalty": [0.5, "x"], "frequency_penalty": [1], "best_of": [2, 0],
        }.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    self.refused({**ok, field: value}, param=field)
        self.refused({**ok, "stop": ["a", ""]}, param="stop[1]")
        self.refused({**ok, "stop": ["a", 5]}, param="stop[1]")
        self.refused({**ok, "stream": True, "stream_options": {"include_usage": 1}}, param="stream_options.include_usage")

    def test_prompts_that_cannot_be_are_400(self):
        vocab = 263 if is_fake() else 49152
        self.refused({}, param="prompt")
        self.refused({"prompt": None}, param="prompt")
        self.refused({"prompt": []}, param="prompt")
        self.refused({"prompt": [[]]}, param="prompt[0]")
        self.refused({"prompt": 5}, param="prompt")
        self.refused({"prompt": {"a": 1}}, param="prompt")
        self.refused({"prompt": ["a", 5]}, param="prompt[1]")
        self.refused({"prompt": [1, "a"]}, param="prompt[1]")
        self.refused({"prompt": [1.5]}, param="prompt[0]")
        self.refused({"prompt": ["a"] * 65}, param="prompt")
        for bad in (-1, 2**31, 2**32, vocab, 5279552648203111001):
            self.refused({"prompt": [1, bad]}, param="prompt[1]", says=str(bad))
            self.refused({"prompt": [[1], [bad]]}, param="prompt[1][0]", says=str(bad))

    @fake_only
    def test_an_empty_text_without_bos_is_400(self):
        self.refused({"prompt": ""}, param="prompt", says="BOS")
        self.refused({"prompt": ["a", ""]}, param="prompt[1]", says="BOS")

    def test_another_model_is_404_and_names_what_is_served(self):
        served = json.loads(self.server.get("/v1/models")[2])["data"][0]["id"]
        _, error = self.refused({"prompt": "a", "model": "gpt-4"}, status=404, param="model", says=served)
        self.assertIn("gpt-4", error["message"])
        self.server.complete(prompt="a", model=served, max_tokens=1)

    def test_context_overflow_says_prompt_asked_and_limit(self):
        limit = json.loads(self.server.get("/v1/models")[2])["data"][0]["max_model_len"]
        for prompt in ([1] * 10, [[1] * 10]):
            _, error = self.refused({"prompt": prompt, "max_tokens": limit}, param="max_tokens")
            for number in ("10", str(limit), str(limit + 10)):
                self.assertIn(number, error["message"])
        self.refused({"prompt": [1] * (limit + 1), "max_tokens": 1}, param="prompt", says=str(limit + 1))
        self.refused({"prompt": "a b " * limit, "max_tokens": 1}, param="prompt", says=str(limit))

    def test_a_bad_body_of_any_size_has_a_short_error(self):
        self.refused({"prompt": "a", "model": "\x01\"<" * 1500}, status=404)
        self.refused({"prompt": [["x" * 4000] * 10]})
        self.refused({"prompt": "a", "stop": ["\u0001" * 2000]})

    def test_smuggling_shapes_are_400_and_close(self):
        body = b'{"prompt":"hi"}'
        for headers in (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 15\r\nContent-Length: 15\r\n",
                        b"Content-Length: 15\r\nHost: y\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
                        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"):
            with self.server.connect() as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body)
                f = s.makefile("rb")
                status, got, _ = read_answer(f)
                self.assertEqual((status, got["connection"].lower()), (400, "close"), headers)
                self.assertEqual(f.read(), b"")

    def test_odd_bytes_in_the_request_do_no_harm(self):
        for raw in (b"GET /health\x00 HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"GET /health HTTP/1.1\nHost: x\n\n", b"GET  HTTP/1.1\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: z\r\n\r\n",
                    b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
            with self.server.connect(timeout=2) as s:
                s.sendall(raw)
                s.shutdown(socket.SHUT_WR)
                try:
                    s.makefile("rb").read()
                except OSError:
                    pass
            self.assertEqual(self.server.get("/health")[0], 200)

    def test_headers_too_large_are_431(self):
        self.assertEqual(self.server.get("/health", headers="X-Big: " + "a" * 40000 + "\r\n")[0], 431)


class UnderLoad(Case):
    """With an engine that runs by itself: what is seen from outside only."""

    def wait_idle(self):
        deadline = time.monotonic() + 20
        while self.server.metric("tally_requests_running") or self.server.metric("tally_request_memory_used_bytes"):
            self.assertLess(time.monotonic(), deadline, "something is still held")
        return time.monotonic()

    def test_a_client_that_leaves_mid_stream_frees_its_sequence_and_memory(self):
        start = time.monotonic()
        kept = Stream(self.server, prompt="Once upon a time", max_tokens=40, ignore_eos=True)
        leavers = [Stream(self.server, prompt="Once upon a time", max_tokens=3000, ignore_eos=True) for _ in range(3)]
        for stream in leavers:
            self.assertEqual(stream.begin(), 200)
            stream.close()
        self.assertEqual(kept.begin(), 200)
        self.assertTrue(kept.rest().endswith("data: [DONE]\n\n"))
        kept.close()
        self.wait_idle()
        generated = self.server.metric("tally_generated_tokens_total")
        self.server.get("/health")
        self.assertEqual(self.server.metric("tally_generated_tokens_total"), generated)
        self.assertLess(time.monotonic() - start, 20)

    def test_health_answers_during_prefill_and_decode(self):
        streams = [Stream(self.server, prompt="word " * 900, max_tokens=30, ignore_eos=True) for _ in range(4)]
        times = []
        for _ in range(100):
            start = time.monotonic()
            self.assertEqual(self.server.get("/health")[0], 200)
            times.append(time.monotonic() - start)
        times.sort()
        print(f"/health under load: p50 {times[50] * 1000:.2f} ms, p99 {times[98] * 1000:.2f} ms", file=sys.stderr)
        self.assertLess(times[50], 0.05)
        for stream in streams:
            stream.begin()
            self.assertTrue(stream.rest().endswith("data: [DONE]\n\n"))
            stream.close()


@fake_only
class FakeText(Case):
    flags = ("--bos", 1)

    def say(self, text, **fields):
        return self.server.complete(**{"prompt": "say:" + text, "max_tokens": 200, **fields})["choices"][0]

    def both(self, text, **fields):
        """The choice unstreamed, and the chunks streamed; the two must agree."""
        whole = self.say(text, **fields)
        chunks = [e["choices"][0] for e in self.server.stream(**{"prompt": "say:" + text, "max_tokens": 200, **fields})]
        self.assertEqual("".join(c["text"] for c in chunks), whole["text"])
        self.assertEqual(chunks[-1]["finish_reason"], whole["finish_reason"])
        self.assertEqual(chunks[-1]["stop_reason"], whole["stop_reason"])
        return whole, chunks

    def test_stop_strings_over_token_borders(self):
        whole, chunks = self.both("hello world", stop=["o wo"])
        self.assertEqual((whole["text"], whole["finish_reason"], whole["stop_reason"]), ("hell", "stop", "o wo"))
        self.assertEqual([c["text"] for c in chunks[:2]], ["h", "e"])  # nothing is held back that begins no stop string

    def test_an_unfinished_partial_stop_is_given_at_the_end(self):
        whole, _ = self.both("hello wor", stop="world")
        self.assertEqual((whole["text"], whole["finish_reason"]), ("hello wor", "stop"))
        self.assertIsNone(whole["stop_reason"])

    def test_the_earliest_stop_wins_and_overlaps_are_found(self):
        self.assertEqual(self.both("aaab", stop=["aab"])[0]["text"], "a")
        self.assertEqual(self.both("abcabd!", stop=["abd"])[0]["text"], "abc")
        self.assertEqual(self.both("xaby", stop=["b", "ab"])[0]["text"], "x")
        self.assertEqual(self.both("stop", stop=["stop"])[0]["text"], "")

    def test_multibyte_characters_come_whole(self):
        text = "a€b😀é漢字"
        whole, chunks = self.both(text)
        self.assertEqual(whole["text"], text)
        self.assertTrue(all("\ufffd" not in c["text"] for c in chunks))
        self.assertTrue(all(c["text"] for c in chunks[:-1]))

    def test_a_stop_of_multibyte_characters(self):
        self.assertEqual(self.both("x漢字y", stop=["字"])[0]["text"], "x漢")

    def test_a_text_that_ends_in_half_a_character_ends_with_a_replacement(self):
        for stream in (False, True):
            ask = dict(prompt="say:a€b", max_tokens=2)
            if stream:
                text = "".join(e["choices"][0]["text"] for e in self.server.stream(**ask))
            else:
                text = self.server.complete(**ask)["choices"][0]["text"]
            self.assertEqual(text, "a\ufffd")

    def test_logprobs_of_partial_characters_are_bytes(self):
        logprobs = self.say("a€b", logprobs=0)["logprobs"]
        self.assertEqual(logprobs["tokens"], ["a", "bytes:\\xe2\\x82", "bytes:\\xac", "b"])
        self.assertEqual(logprobs["text_offset"], [0, 1, 1, 2])

    def test_minus_infinity_is_minus_9999(self):
        top = self.say("a", logprobs=20)["logprobs"]["top_logprobs"][0]
        self.assertEqual(min(top.values()), -9999.0)

    def test_logprobs_end_where_a_stop_string_cuts(self):
        whole, chunks = self.both("hello world", stop=[" wo"], logprobs=0)
        self.assertEqual("".join(whole["logprobs"]["tokens"]), "hello")
        self.assertEqual(sum((c["logprobs"]["tokens"] for c in chunks), []), whole["logprobs"]["tokens"])

    def test_an_automatic_bos_is_not_echoed_and_one_written_is_not_doubled(self):
        self.assertEqual(self.server.complete(prompt="abc", echo=True, max_tokens=0)["choices"][0]["text"], "abc")
        answer = self.server.complete(prompt="<s>abc", echo=True, max_tokens=0, logprobs=0)
        self.assertEqual(answer["choices"][0]["text"], "<s>abc")
        self.assertEqual(answer["usage"]["prompt_tokens"], 4)
        self.assertEqual(self.server.complete(prompt="", max_tokens=1)["usage"]["prompt_tokens"], 1)

    def test_echo_of_token_ids_is_their_text(self):
        choice = self.server.complete(prompt=[104, 101, 258, 262], echo=True, max_tokens=2, logprobs=0)["choices"][0]
        self.assertEqual(choice["text"], "hello<|sep|>ab")
        self.assertEqual(choice["logprobs"]["tokens"], ["h", "e", "llo", "<|sep|>", "a", "b"])
        self.assertEqual(choice["logprobs"]["text_offset"], [0, 1, 2, 5, 12, 13])

    def test_echo_in_a_stream_is_the_prompt_and_the_first_token_in_the_first_chunk(self):
        chunks = self.server.stream(prompt="hello\n\"", echo=True, max_tokens=3)
        self.assertEqual([c["choices"][0]["text"] for c in chunks], ["hello\n\"a", "b", "c"])

    def test_an_event_longer_than_the_connection_memory_arrives_whole(self):
        prompt = "x" * 3900
        events = self.server.stream(prompt=prompt, echo=True, max_tokens=3, logprobs=20)
        first = events[0]["choices"][0]
        self.assertEqual(first["text"], prompt + "a")
        self.assertEqual(len(first["logprobs"]["top_logprobs"]), 3901)
        self.assertGreater(len(json.dumps(events[0])), 500000)

    def test_control_characters_are_escaped(self):
        self.assertEqual(self.both("\x01\x1f\"\\/\n\r\t\x7f\u2028")[0]["text"], "\x01\x1f\"\\/\n\r\t\x7f\u2028")

    def test_an_engine_failure_is_500_or_an_error_event_then_done(self):
        status, _, body = self.server.post({"prompt": "fail:", "max_tokens": 9})
        self.assertEqual((status, json.loads(body)["error"]["type"]), (500, "server_error"))
        events = self.server.stream(prompt="fail:", max_tokens=9)
        self.assertEqual(events[-1]["error"]["type"], "server_error")

    def test_prompts_are_never_in_the_log(self):
        self.server.complete(prompt="say:secret-xyzzy", max_tokens=30)
        self.server.post({"prompt": "secret-xyzzy", "temperature": 9})
        self.server.post(b'{"prompt": "secret-xyzzy" oops')
        self.server.complete(prompt="a", max_tokens=1)
        self.assertFalse([line for line in self.server.log if "xyzzy" in line])


@fake_only
class Gated(Case):
    """The engine stands still but for the steps that a test commands."""
    flags = ("--gate", 1, "--max-seqs", 2, "--max-queue", 3)

    def tearDown(self):
        self.server.command("gate off")
        self.server.wait_state(running=0, waiting=0)
        self.server.command("gate on")

    def open(self, **fields):
        before = self.server.command("stats")
        stream = Stream(self.server, **{"prompt": "hello", "max_tokens": 50, **fields})
        self.server.wait_state(waiting=before["waiting"] + 1)
        return stream

    def test_a_client_that_leaves_is_noticed_queued_in_prefill_and_in_decode_and_only_it_is_cancelled(self):
        survivor = self.open(max_tokens=8)
        self.server.command("step 2")
        self.assertEqual(survivor.begin(), 200)
        for steps, how in ((0, "close"), (1, "close"), (2, "close"), (3, "shutdown")):
            with self.subTest(steps=steps, how=how):
                before = self.server.command("stats")
                stream = self.open()
                if steps:
                    self.server.command(f"step {steps - 1}") if steps > 1 else None
                    self.server.command("step 1")
                if how == "shutdown":
                    stream.socket.shutdown(socket.SHUT_WR)
                else:
                    stream.close()
                self.server.wait_state(running=1, waiting=0, cancelled=before["cancelled"] + 1)
                stream.close()
        self.server.command("step 8")
        text = survivor.rest()
        self.assertEqual(text.count('"finish_reason":"length"'), 1)
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        survivor.close()

    def test_a_client_that_leaves_an_unstreamed_answer_is_noticed_too(self):
        before = self.server.command("stats")
        with self.server.connect() as s:
            body = b'{"prompt":"hello","max_tokens":50}'
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.server.wait_state(waiting=1)
            self.server.command("step 2")
        self.server.wait_state(running=0, cancelled=before["cancelled"] + 1)

    def test_one_step_is_one_chunk(self):
        stream = self.open(max_tokens=3)
        self.server.command("step 2")
        stream.begin()
        self.assertEqual(stream.chunk().count("data: "), 1)
        self.server.command("step 1")
        self.assertIn('"text":"b"', stream.chunk())
        self.server.command("step 1")
        self.assertIn("[DONE]", stream.chunk())
        stream.close()

    def test_only_a_real_partial_stop_is_held_back(self):
        stream = self.open(prompt="say:abxy", stop=["bz"], max_tokens=9)
        self.server.command("step 2")
        stream.begin()
        self.assertIn('"text":"a"', stream.chunk())
        self.server.command("step 2")
        self.assertIn('"text":"bx"', stream.chunk())
        stream.close()

    def test_a_stop_string_ends_the_sequence_in_the_engine(self):
        before = self.server.command("stats")
        stream = self.open(prompt="say:abcdef", stop=["c"], max_tokens=50)
        self.server.command("step 4")
        stream.begin()
        self.assertIn('"stop_reason":"c"', stream.rest())
        self.server.wait_state(running=0, cancelled=before["cancelled"] + 1)
        stream.close()

    def test_a_full_queue_is_429_with_retry_after(self):
        held = [self.open() for _ in range(5)]
        status, headers, body = self.server.post({"prompt": "hello"})
        self.assertEqual((status, headers["retry-after"]), (429, "1"))
        self.assertEqual(json.loads(body)["error"]["code"], "server_busy")
        status, headers, body = self.server.post({"prompt": ["a", "b"], "stream": True})
        self.assertEqual(status, 429)
        for stream in held:
            stream.close()
        self.server.wait_state(running=0, waiting=0)

    def test_several_prompts_are_taken_whole_or_not_at_all(self):
        held = [self.open() for _ in range(4)]
        self.assertEqual(self.server.post({"prompt": ["a", "b", "c"]})[0], 429)
        self.server.wait_state(waiting=4)
        for stream in held:
            stream.close()

    def test_health_answers_while_the_engine_stands_still_and_is_503_when_stuck(self):
        stream = self.open()
        times = []
        for _ in range(50):
            start = time.monotonic()
            self.assertEqual(self.server.get("/health")[0], 200)
            times.append(time.monotonic() - start)
        self.assertLess(sorted(times)[25], 0.05)
        self.server.command("stuck on")
        status, _, body = self.server.get("/health")
        self.assertEqual((status, json.loads(body)["status"]), (503, "stuck"))
        self.assertEqual(self.server.get("/ready")[0], 503)
        self.server.wait_log(r"engine_stuck running=\d+ waiting_blocks=\d+ .*blocks_used=\d+ blocks_total=\d+ steps=\d+")
        self.server.command("stuck off")
        self.assertEqual(self.server.get("/health")[0], 200)
        stream.close()

    def test_no_state_that_is_served_shows_a_prompt(self):
        running = self.open(prompt="secret-xyzzy")
        self.server.command("step 2")
        waiting = [self.open(prompt="secret-xyzzy") for _ in range(2)]
        for path in ("/health", "/ready", "/version", "/v1/models", "/v1/memory", "/metrics"):
            self.assertNotIn(b"xyzzy", self.server.get(path)[2], path)
        for stream in (running, *waiting):
            stream.close()

    def test_a_slow_reader_keeps_nobody_waiting_and_gets_all(self):
        slow = self.open(prompt="x" * 3000, max_tokens=1000, echo=True, logprobs=20)
        self.server.command("step 1001")
        other = self.open(max_tokens=2)
        self.server.command("step 4")
        other.begin()
        self.assertIn("[DONE]", other.rest())
        slow.begin()
        events = parse_events(slow.rest().encode())
        self.assertEqual(len("".join(e["choices"][0]["text"] for e in events)), 4000)
        slow.close()
        other.close()


@fake_only
class Crowds(Case):
    flags = ("--gate", 1, "--max-seqs", 300, "--max-queue", 300)

    def test_128_and_256_requests_at_once_are_all_answered(self):
        for n in (127, 128, 129, 256):
            streams = [Stream(self.server, prompt="hello", max_tokens=3) for _ in range(n)]
            self.server.wait_state(waiting=n)
            self.server.command("step 4")
            for stream in streams:
                self.assertEqual(stream.begin(), 200)
                self.assertIn("[DONE]", stream.rest())
                stream.close()
            self.server.wait_state(running=0, waiting=0)

    def test_requests_of_many_threads_with_leavers_end_with_nothing_held(self):
        self.server.command("gate off")

        def worker(seed):
            for i in range(20):
                if (seed + i) % 3 == 0:
                    stream = Stream(self.server, prompt="hello", max_tokens=2000)
                    stream.begin()
                    stream.close()
                elif (seed + i) % 3 == 1:
                    self.server.complete(prompt="hello", max_tokens=20, n=2)
                else:
                    self.server.post({"prompt": "hello", "temperature": 5})

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.server.wait_state(running=0, waiting=0, blocks_used=0)
        deadline = time.monotonic() + 10
        while self.server.metric("tally_request_memory_used_bytes") > 0:
            self.assertLess(time.monotonic(), deadline)
        self.server.command("gate on")


@fake_only
class Limits(Case):
    flags = ("--max-body", 16384, "--header-timeout", 1, "--body-timeout", 1, "--idle-timeout", 1, "--max-requests", 2, "--gate", 1,
             "--request-memory", 262144, "--max-connections", 8)

    def test_a_body_over_the_limit_is_413_with_and_without_expect_and_chunked(self):
        big = b"x" * 20000
        self.refused(big, status=413)
        with self.server.connect() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20000\r\n\r\n")
            self.assertEqual(read_answer(s.makefile("rb"))[0], 413)
        with self.server.connect() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4e20\r\n" + big + b"\r\n0\r\n\r\n")
            self.assertEqual(read_answer(s.makefile("rb"))[0], 413)

    def test_a_body_sent_in_small_chunks_is_read(self):
        body = b'{"prompt":"' + b"a" * 300 + b'","max_tokens":1}'
        with self.server.connect() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(len(body)):
                s.sendall(b"1\r\n" + body[i:i + 1] + b"\r\n")
            s.sendall(b"0\r\n\r\n")
            self.server.wait_state(waiting=1)
            self.server.command("step 2")
            self.assertEqual(read_answer(s.makefile("rb"))[0], 200)

    def drip(self, first, more):
        with self.server.connect() as s:
            s.sendall(first)
            start = time.monotonic()
            try:
                while time.monotonic() - start < 15:
                    s.sendall(more)
                    time.sleep(0.1)  # what a slow client is
                    s.setblocking(False)
                    try:
                        if s.recv(1000) == b"":
                            return time.monotonic() - start
                    except BlockingIOError:
                        pass
                    s.settimeout(5)
            except (BrokenPipeError, ConnectionResetError):
                return time.monotonic() - start
        raise AssertionError("a client that drips was never closed")

    def test_clients_that_drip_headers_or_bodies_are_closed_by_their_deadline(self):
        self.assertLess(self.drip(b"GET /health HTTP/1.1\r\n", b"X: y\r\n"), 6)
        self.assertLess(self.drip(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n", b" "), 6)

    def test_a_vanished_upload_leaves_nothing_held(self):
        with self.server.connect() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{")
        deadline = time.monotonic() + 10
        while self.server.metric("tally_request_memory_used_bytes") > 0:
            self.assertLess(time.monotonic(), deadline)

    def test_without_a_slot_the_answer_is_429(self):
        held = [Stream(self.server, prompt="hello", max_tokens=5) for _ in range(2)]
        self.server.wait_state(waiting=2)
        status, headers, _ = self.server.post({"prompt": "hello"})
        self.assertEqual((status, headers["retry-after"]), (429, "1"))
        for stream in held:
            stream.close()
        self.server.wait_state(waiting=0)

    def test_an_answer_that_could_never_fit_is_400_and_one_that_does_not_now_429(self):
        _, error = self.refused({"prompt": "a", "max_tokens": 3000, "logprobs": 20, "n": 4}, param="logprobs")
        self.assertIn("bytes of request memory", error["message"])
        held = Stream(self.server, prompt="a", max_tokens=1000, logprobs=18)
        self.server.wait_state(waiting=1)
        self.refused({"prompt": "a", "max_tokens": 1000, "logprobs": 18}, status=429)
        held.close()
        self.server.wait_state(waiting=0)

    def test_connections_past_the_limit_wait_and_are_served_when_one_closes(self):
        idle = [self.server.connect() for _ in range(8)]
        with self.server.connect() as waiting:
            waiting.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            idle[0].close()
            self.assertEqual(read_answer(waiting.makefile("rb"))[0], 200)
        for s in idle:
            s.close()


@fake_only
class Draining(unittest.TestCase):
    def test_sigterm_finishes_what_runs_refuses_what_is_new_and_exits_0(self):
        server = Server("--gate", 1)
        streams = [Stream(server, prompt="hello", max_tokens=4) for _ in range(100)]
        kept = server.connect()
        kept.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n")
        server.wait_state(waiting=100)
        server.command("step 2")
        server.process.send_signal(signal.SIGTERM)
        server.wait_log(" draining ")
        kept.sendall(b'{"prompt":"hello","max_tokens":1}       ')
        status, headers, _ = read_answer(kept.makefile("rb"))
        self.assertEqual((status, headers["retry-after"], headers["connection"].lower()), (503, "1", "close"))
        with self.assertRaises(OSError):
            server.connect(timeout=2)
        server.command("gate off")
        for stream in streams:
            self.assertEqual(stream.begin(), 200)
            self.assertIn('"finish_reason":"length"', stream.rest())
        self.assertEqual(server.stop(), 0)

    def test_after_the_drain_timeout_the_rest_is_cancelled_with_an_error_event(self):
        server = Server("--gate", 1, "--drain-timeout", 0)
        running = Stream(server, prompt="hello", max_tokens=50)
        server.wait_state(waiting=1)
        server.command("step 2")
        running.begin()
        running.chunk()
        server.process.send_signal(signal.SIGTERM)
        rest = running.rest()
        self.assertIn('data: {"error":', rest)
        self.assertTrue(rest.endswith("data: [DONE]\n\n"))
        self.assertEqual(server.stop(), 0)

    def test_a_second_signal_cuts_the_drain_short(self):
        server = Server("--gate", 1, "--drain-timeout", 600)
        stream = Stream(server, prompt="hello", max_tokens=50)
        server.wait_state(waiting=1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log(" draining ")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(stream.begin(), 503)
        self.assertEqual(server.stop(), 0)

    def test_idle_connections_do_not_delay_the_end(self):
        server = Server("--drain-timeout", 600)
        idle = [server.connect() for _ in range(10)]
        start = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - start, 20)
        for s in idle:
            s.close()


class RealDraining(unittest.TestCase):
    def test_sigterm_during_streams_ends_cleanly(self):
        server = Server()
        streams = [Stream(server, prompt="Once upon a time", max_tokens=30, ignore_eos=True) for _ in range(8)]
        for stream in streams:
            self.assertEqual(stream.begin(), 200)
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            self.assertTrue(stream.rest().endswith("data: [DONE]\n\n"))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    try:
        is_fake() or (binary(), demo_model())
    except unittest.SkipTest as missing:
        print(f"skipped: {missing}")
        sys.exit(77)  # what ctest takes for skipped
    unittest.main(verbosity=2)
