"""What `second-tries.sh` says behind all that was run."""

import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "second-tries.sh"
REPORT = """<testsuites><testsuite>
<testcase name="a::lucky"><flakyFailure/></testcase>
<testcase name="a::plain"/>
<testcase name="a::left_out"><system-err>NOT RUN: it needs an engine</system-err></testcase>
</testsuite></testsuites>"""


class SecondTries(unittest.TestCase):
    def said(self, command):
        with tempfile.TemporaryDirectory() as target:
            words = ["env", f"CARGO_TARGET_DIR={target}", SCRIPT, "bash", "-c", command]
            ran = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(ran.stderr, "")
        return ran.returncode, ran.stdout.splitlines()

    def test_those_of_all_suites_are_named_last_also_where_something_failed(self):
        report = f"mkdir -p $CARGO_TARGET_DIR/nextest/default; echo '{REPORT}' >$CARGO_TARGET_DIR/nextest/default/junit.xml"
        kernel = "echo test_cells.py >$CARGO_TARGET_DIR/kernel-second-tries"
        code, lines = self.said(f"{kernel}; {report}; echo later suites; exit 3")
        self.assertEqual(code, 3)
        self.assertEqual(lines, [
            "later suites",
            "1 tests were skipped, not passed:", "  a::left_out",
            "2 tests needed a second try; each is a defect:", "  a::lucky", "  test_cells.py",
        ])  # fmt: skip

    def test_where_there_were_none_it_says_so(self):
        self.assertEqual(self.said("true"), (0, ["0 tests needed a second try"]))


if __name__ == "__main__":
    unittest.main()
