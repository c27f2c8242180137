#!/usr/bin/env bash
# A trip of some days that begins at a hotel, asked for by a template.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session city-trip any
ask_template city-trip script "$here" trip
say "The answer: $answer"
expect_answer 'Clock Tower' 'Salt House'
"$belljar" cp city-trip:trip.json "$work/trip.json"
python3 -c '
import json, sys

days = json.load(open(sys.argv[1], encoding="utf-8"))
seen = [sight for day in days for sight in day["sights"]]
late = [day for day in days if day["visits_h"] + day["way_h"] > 8.01]
if len(days) != 3 or len(set(seen)) < len(seen) or "Town Baths" in seen or late:
    sys.exit(f"the trip breaks the rules: {days}")' "$work/trip.json" || fail 'trip.json is no trip of three days'
