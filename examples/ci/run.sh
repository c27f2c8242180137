#!/usr/bin/env bash
# Runs the jobs of job.toml, as the workflow does, and checks what came out.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say 'Two scripts, each with two limits'
"$belljar" job run --spec "$here/job.toml" --junit "$work/report.xml" --artifacts-to "$work/kept"
grep -q 'tests="4" failures="0" errors="0"' "$work/report.xml" || fail 'the report does not tell of four jobs that passed'
[ -f "$work/kept/check_prices.py__limit=100_/report/prices.json" ] || fail "$(ls -R "$work/kept")"

say 'A script that fails is told, and so is the run'
if "$belljar" job run "$here/scripts" --arg=--limit --arg=1; then
    fail 'a limit of 1 is too low, and nobody said so'
fi
say 'as expected'
