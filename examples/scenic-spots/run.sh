#!/usr/bin/env bash
# A CSV file with bad rows becomes validated models.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session scenic-spots
ask scenic-spots script "$here"
say "The answer: $answer"
expect_answer 15 26.5 1.8
"$belljar" cp scenic-spots:scenic_spot_data.json "$work/data.json"
"$belljar" cp scenic-spots:scenic_spot_schema.json "$work/schema.json"
spots=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1], encoding="utf-8"))))' "$work/data.json")
[ "$spots" = 15 ] || fail "scenic_spot_data.json has $spots spots"
python3 -m json.tool "$work/schema.json" >/dev/null || fail 'scenic_spot_schema.json is no JSON'
