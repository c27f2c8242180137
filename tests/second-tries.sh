#!/usr/bin/env bash
# Runs tests and names at the end those that passed only when they were tried again: tests that nextest ran, and files of
# tests of the kernel. Each of them is a defect, of the test or of what it tests, although the run as a whole may have
# passed. Tests that found out while they ran that they do not apply here count as passed for nextest; they are named
# too, as skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
report=$target/nextest/default/junit.xml
kernel=$target/kernel-second-tries
rm -f "$report" "$kernel"
"$@"
code=$?
python3 - "$report" "$kernel" <<'END'
import pathlib
import sys
import xml.etree.ElementTree as xml

report, kernel = map(pathlib.Path, sys.argv[1:])
cases = list(xml.parse(report).getroot().iter("testcase")) if report.exists() else []
skipped = sorted(case.get("name") for case in cases if "NOT RUN:" in (case.findtext("system-err") or ""))
if skipped:
    print(f"{len(skipped)} tests were skipped, not passed:")
for name in skipped:
    print(f"  {name}")
again = sorted(case.get("name") for case in cases if case.find("flakyFailure") is not None)
again += kernel.read_text().splitlines() if kernel.exists() else []
print(f"{len(again)} tests needed a second try" + ("; each is a defect:" if again else ""))
for name in again:
    print(f"  {name}")
END
exit "$code"
