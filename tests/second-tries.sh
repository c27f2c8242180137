#!/usr/bin/env bash
# Runs nextest and names at the end the tests that passed only when they were tried again. Each of them is a defect,
# of the test or of what it tests, although the run as a whole may have passed. Tests that found out while they ran
# that they do not apply here count as passed for nextest; they are named too, as skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
report=${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml
rm -f "$report"
"$@"
code=$?
[ -e "$report" ] || exit "$code"
python3 - "$report" <<'END'
import sys
import xml.etree.ElementTree as xml

cases = list(xml.parse(sys.argv[1]).getroot().iter("testcase"))
skipped = sorted(case.get("name") for case in cases if "NOT RUN:" in (case.findtext("system-err") or ""))
if skipped:
    print(f"{len(skipped)} tests were skipped, not passed:")
for name in skipped:
    print(f"  {name}")
again = sorted(case.get("name") for case in cases if case.find("flakyFailure") is not None)
print(f"{len(again)} tests needed a second try" + ("; each is a defect:" if again else ""))
for name in again:
    print(f"  {name}")
END
exit "$code"
