"""Runs one module of tests beside this file and adds each test's outcome to a results file: run.py MODULE SUITE RESULTS

TALLY_BIN names the program under test and TALLY_MODEL its model. A results file is described in ../count.py.
"""
from __future__ import annotations

import pathlib
import sys
import unittest


class Recorder(unittest.TextTestResult):
    def open_results(self, path: str, suite: str) -> None:
        self._out, self._suite = open(path, "a", encoding="utf-8"), suite

    def record(self, outcome: str, test: unittest.TestCase, reason: str = "") -> None:
        self._out.write("\t".join((outcome, self._suite, test.id(), " ".join(reason.split()))) + "\n")
        self._out.flush()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record("passed", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.record("failed", test, str(err[1])[:200])

    def addError(self, test, err):
        super().addError(test, err)
        self.record("failed", test, str(err[1])[:200])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record("skipped", test, reason)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.record("failed", subtest, str(err[1])[:200])


def main() -> int:
    module, suite, results = sys.argv[1:]
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    tests = unittest.defaultTestLoader.loadTestsFromName(module)

    def recorder(*args, **kwargs) -> Recorder:
        result = Recorder(*args, **kwargs)
        result.open_results(results, suite)
        return result

    return 0 if unittest.TextTestRunner(verbosity=2, resultclass=recorder).run(tests).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
