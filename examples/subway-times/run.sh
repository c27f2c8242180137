#!/usr/bin/env bash
# First and last trains: times after midnight, entries that cannot be, and stations that are quiet early.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session subway-times any
ask_template subway-times script "$here" last-trains
say "The answer: $answer"
expect_answer 'Brook Street' '00:12' 'Kiln Lane' 'Oast House'
"$belljar" cp subway-times:last_trains.json "$work/last_trains.json"
python3 -m json.tool "$work/last_trains.json" >/dev/null || fail 'last_trains.json is no JSON'
if [ -z "${MODEL:-}" ]; then
    python3 -c '
import json, sys

found = json.load(open(sys.argv[1], encoding="utf-8"))
if len(found["last"]) != 16 or found["last"]["Brook Street"] != "00:12" or found["wrong"] != [["Hill", "Kiln Lane", "Hop Market"]]:
    sys.exit(f"not the last trains: {found}")' "$work/last_trains.json" || fail 'last_trains.json is wrong'
fi
