#!/usr/bin/env bash
# The best trips of one, two and three days, on foot and by metro.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session tourist-route
ask tourist-route script "$here"
say "The answer: $answer"
expect_answer 'Great Garden' 'Old Palace' 'Glass Temple'
"$belljar" cp tourist-route:plans.json "$work/plans.json"
python3 -m json.tool "$work/plans.json" >/dev/null || fail 'plans.json is no JSON'
if [ -z "${MODEL:-}" ]; then
    python3 -c '
import json, sys

for number, trip in json.load(open(sys.argv[1], encoding="utf-8")).items():
    if len(trip) != int(number) or any(day["visits_h"] + day["on_the_way_h"] > 8.01 for day in trip):
        sys.exit(f"the plan of {number} days is none: {trip}")' "$work/plans.json" || fail 'a plan breaks the rules'
    "$belljar" cp tourist-route:01_three_days.png "$work/trip.png"
    [ "$(head -c 4 "$work/trip.png" | tail -c 3)" = PNG ] || fail '01_three_days.png is no PNG file'
fi
say 'The plan tree of the work:'
"$belljar" plan -s tourist-route
