"""The real binary under load: memory held against memory planned at three budgets, nothing lost or leaked, answers that do not depend on
load, and what happens when it is killed. Needs TALLY_BIN and the demo model."""
import concurrent.futures
import http.client
import json
import signal
import subprocess
import unittest

from server import Server, binary, demo_model

MIB = 1 << 20
N_REQUESTS = 12
# The smallest holds the model and a thousand tokens, for which the requests fight.
SMALL = ["--max-context", "1024", "--max-queue", "32", "--request-memory", "8MiB", "--max-connections", "64", "--max-batch-tokens", "128"]
BUDGETS = [(175 * MIB, SMALL), (400 * MIB, []), (1024 * MIB, [])]


def memory(server):
    return json.loads(server.get("/v1/memory")[2])


def metric(server, name):
    for line in server.get("/metrics")[2].decode().splitlines():
        if line.startswith(name + " ") or line.startswith(name + "{"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


def request(i):
    """Prompts of 5 to 60 words, greedy and drawn, with log-probabilities."""
    words = " ".join(f"word{(i * 37 + j * 11) % 97}" for j in range(5 + i * 53 % 56))
    return {"prompt": words, "max_tokens": 24 + i * 29 % 60, "temperature": 0 if i % 2 else 0.8, "seed": i, "logprobs": 2, "ignore_eos": True}


def answer(server, i):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(request(i)))
    choice = json.loads(connection.getresponse().read())["choices"][0]
    connection.close()
    return choice["text"], choice["logprobs"]["token_logprobs"]


class Load(unittest.TestCase):
    def check_memory(self, server, budget):
        now = memory(server)
        self.assertLessEqual(now["planned"], budget)
        self.assertLessEqual(abs(now["unaccounted"]), max(now["planned"] // 100, 64 * MIB), now)
        self.assertEqual(now["allocs_after_ready"], 0)
        return now

    def test_memory_is_as_planned_and_answers_do_not_depend_on_load(self):
        alone = None
        for budget, flags in BUDGETS:
            with self.subTest(budget=budget):
                server = Server("--memory-budget", budget, *flags)
                try:
                    self.check_memory(server, budget)
                    if alone is None:
                        alone = [answer(server, i) for i in range(N_REQUESTS)]
                    with concurrent.futures.ThreadPoolExecutor(N_REQUESTS) as pool:
                        together = [pool.submit(answer, server, i) for i in range(N_REQUESTS)]
                        under_load = self.check_memory(server, budget)
                        self.assertEqual([t.result() for t in together], alone)
                    now = self.check_memory(server, budget)
                    self.assertEqual(now["kv"]["blocks_used"], 0)
                    if flags is SMALL:
                        self.assertGreater(metric(server, "tally_preemptions_total"), 0)
                    print(f"budget {budget // MIB} MiB: planned {now['planned'] / MIB:.1f}, measured {under_load['measured'] / MIB:.1f} under "
                          f"load, unaccounted {under_load['unaccounted'] / MIB:+.1f} MiB, {metric(server, 'tally_preemptions_total'):.0f} "
                          f"preemptions")
                finally:
                    server.stop()

    def test_a_budget_that_does_not_hold_the_model_is_refused_before_loading(self):
        done = subprocess.run([binary(), "serve", "--model", demo_model(), "--memory-budget", "100MiB"], capture_output=True,
                              text=True, timeout=20)
        self.assertEqual(done.returncode, 2)
        self.assertIn("memory budget", done.stderr)
        self.assertIn("MiB", done.stderr)

    def test_killed_and_started_again_it_serves(self):
        server = Server()
        first = answer(server, 1)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        server.stop()
        server = Server()
        try:
            self.assertEqual(answer(server, 1), first)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main()
