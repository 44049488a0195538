"""The program's command line: subcommands, help, exit codes, and one clear line for everything that is wrong."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

from server import Server, binary, demo_model

COMMANDS = ("serve", "plan", "bench", "eval")


def tally(*arguments, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TALLY_")}
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, errors="replace", timeout=120, stdin=subprocess.DEVNULL,
                          env=clean | (env or {}))


class Usage(unittest.TestCase):
    def test_help_and_version_are_on_standard_output(self):
        for arguments in (("help",), ("--help",), ("-h",)):
            done = tally(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for command in COMMANDS + ("version", "help"):
                self.assertIn(f"\n  {command}", done.stdout)
        for arguments in (("version",), ("--version",)):
            self.assertRegex(tally(*arguments).stdout, r"^tally \d+\.\d+\.\d+\n$")

    def test_each_command_has_help_of_its_own(self):
        for command in COMMANDS:
            for arguments in ((command, "--help"), ("help", command)):
                done = tally(*arguments)
                self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
                self.assertTrue(done.stdout.startswith(f"usage: tally {command} "), done.stdout[:80])
        for option in ("--max-seqs N", "--memory-budget BYTES", "default 127.0.0.1", "default 8000; 0 to 65535", "1 to 256, or auto"):
            self.assertIn(option, tally("serve", "--help").stdout)
        self.assertIn("--json", tally("plan", "--help").stdout)

    def test_no_command_and_an_unknown_one_are_bad_usage(self):
        self.assertEqual(tally().returncode, 2)
        for arguments in (("sreve",), ("help", "sreve")):
            done = tally(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"^tally: sreve: unknown command; allowed are serve plan bench eval version help\n$")


class Refused(unittest.TestCase):
    """Exit code 2, nothing on standard output, one line that names what is wrong."""

    def refuse(self, *arguments, says, env=None):
        for command in "serve", "plan":
            done = tally(command, *arguments, env=env)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            last = done.stderr.splitlines()[-1]
            self.assertTrue(last.startswith("tally: "), last)
            self.assertIn(says, last)
            errors = [line for line in done.stderr.splitlines() if line.startswith("tally: ")]
            self.assertEqual(len(errors), 1)

    def test_configuration(self):
        self.refuse(says="model: none was given")
        self.refuse("m.gguf", "--max-seq", "3", says="did you mean --max-seqs?")
        self.refuse("m.gguf", "--max-seqs", "0", says="--max-seqs: \"0\" is not allowed: allowed are 1 to 1024")
        self.refuse("m.gguf", "--port", says="--port: needs a value")
        self.refuse("m.gguf", "n.gguf", says="n.gguf")
        self.refuse("m.gguf", says="TALLY_MAX_SEQS: \"many\"", env={"TALLY_MAX_SEQS": "many"})
        self.refuse("m.gguf", "--host", "0.0.0.0", says="--allow-remote")
        self.refuse("m.gguf", "--config", "/nonexistent.yaml", says="/nonexistent.yaml")
        self.refuse("m.gguf", "--host", "a\nb", says="host")

    def test_a_configuration_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("model: m.gguf\nmax_sqs: 3\n")
            file.flush()
            self.refuse("--config", file.name, says=f"{file.name}: Unexpected key: max_sqs")
            self.refuse(says="max_sqs", env={"TALLY_CONFIG": file.name})

    def test_model_files(self):
        self.refuse("/nonexistent/model.gguf", says="model /nonexistent/model.gguf: ")
        self.refuse("/", says="model /: ")
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            for text in (b"", b"GGUF", b"not a model at all" * 100, b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64),
                         b"GGUF" + struct.pack("<IQQ", 9, 0, 0)):
                file.seek(0)
                file.truncate()
                file.write(text)
                file.flush()
                self.refuse(file.name, says=f"model {file.name}: ")

    def test_a_budget_that_does_not_hold_the_model(self):
        self.refuse(demo_model(), "--memory-budget", "20MiB", says="20")


class Plan(unittest.TestCase):
    def test_the_json_adds_up_and_the_table_says_the_same(self):
        done = tally("plan", demo_model(), "--json", "--memory-budget", "600MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(sum(line["granted"] for line in plan["lines"] if line["lifetime"] == "serve"), plan["total_bytes"])
        self.assertLessEqual(plan["total_bytes"], plan["budget_bytes"])
        self.assertEqual(plan["budget_bytes"], 600 << 20)
        self.assertEqual(plan["kv"]["tokens"], plan["kv"]["blocks"] * plan["options"]["block_tokens"])
        for line in plan["lines"]:
            self.assertGreaterEqual(line["granted"], line["bytes"])
            self.assertTrue(line["formula"], line)
        table = tally("plan", demo_model(), "--memory-budget", "600MiB").stdout
        for line in plan["lines"]:
            self.assertRegex(table, rf"(?m)^{line['id']} +{line['owner']} .* {line['bytes']} +{line['granted']} ")
        self.assertIn(f"total while serving {plan['total_bytes']} bytes", table)

    def test_print_config_says_where_each_value_came_from(self):
        done = tally("plan", "m.gguf", "--print-config", "--max-seqs", "4", env={"TALLY_MAX_QUEUE": "9"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^max_seqs: 4 +# flag$")
        self.assertRegex(done.stdout, r"(?m)^max_queue: 9 +# environment$")
        self.assertRegex(done.stdout, r"(?m)^port: 8000 +# default$")


class Serving(unittest.TestCase):
    def test_ready_is_logged_with_the_plan_and_a_signal_ends_it_well(self):
        model = demo_model()
        plan = json.loads(tally("plan", model, "--json", "--memory-budget", "600MiB").stdout)
        with Server("--memory-budget", "600MiB") as server:
            ready = next(line for line in server.log if " info ready " in line)
            self.assertIn(f"planned_bytes={plan['total_bytes']} ", ready)
            self.assertRegex(ready, r"after_ms=\d+ ")
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.stop(), 0)

    def test_a_second_signal_cuts_the_drain_short(self):
        with Server("--memory-budget", "600MiB", "--drain-timeout", "3600") as server:
            model = json.loads(server.get("/v1/models")[2])["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": [5, 6, 7], "max_tokens": 8000, "stream": True, "ignore_eos": True}).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(body) + body)
                received = b""
                while b"data: " not in received:  # it is running
                    piece = client.recv(4096)
                    self.assertTrue(piece, server.log)
                    received += piece
                server.process.send_signal(signal.SIGTERM)
                while not any(" draining " in line for line in server.log):
                    self.assertTrue(client.recv(4096))  # and goes on while the server drains
                self.assertIsNone(server.process.poll())
                server.process.send_signal(signal.SIGINT)
                self.assertEqual(server.process.wait(60), 0)

    def test_a_port_in_use_is_a_failure_at_run_time(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = tally("serve", demo_model(), "--memory-budget", "600MiB", "--port", str(taken.getsockname()[1]))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(re.search(r"(?m)^tally: .*(in use|listen)", done.stderr), done.stderr)

    def test_the_bundled_client_measures_it(self):
        with Server("--memory-budget", "600MiB") as server:
            done = tally("bench", "--url", server.url, "--requests", "6", "--concurrency", "3", "--input-tokens", "40", "--output-tokens", "5",
                         "--json", "-")
            served = dict(line.rsplit(" ", 1) for line in server.get("/metrics")[2].decode().splitlines() if not line.startswith("#"))
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["completed"], result["total_input_tokens"], result["total_output_tokens"]), (6, 240, 30))
        self.assertEqual(result["answers_without_usage"], 0)
        # Both clocks saw the same six requests: the server's times lie within the client's, which begin before and end after.
        for name, key in (("time_to_first_token", "mean_ttft_ms"), ("request_duration", "mean_e2el_ms")):
            self.assertEqual(served[f"tally_{name}_seconds_count"], "6")
            mean = float(served[f"tally_{name}_seconds_sum"]) / 6 * 1000
            self.assertLessEqual(mean, result[key])
            self.assertGreater(mean, result[key] / 4, name)


if __name__ == "__main__":
    unittest.main()
