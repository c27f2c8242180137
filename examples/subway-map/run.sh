#!/usr/bin/env bash
# Terse data of a subway becomes a simple model and a map.
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

say_which_model
new_session subway-map
ask subway-map script "$here"
say "The answer: $answer"
expect_answer 45 9
"$belljar" cp subway-map:subway_map.json "$work/map.json"
"$belljar" cp subway-map:subway_map_schema.json "$work/schema.json"
python3 -m json.tool "$work/schema.json" >/dev/null || fail 'subway_map_schema.json is no JSON'
if [ -z "${MODEL:-}" ]; then
    transfers=$(python3 -c '
import json, sys

stations = json.load(open(sys.argv[1], encoding="utf-8"))["stations"]
print(len(stations), sum(station["is_transfer"] for station in stations))' "$work/map.json")
    [ "$transfers" = '45 9' ] || fail "subway_map.json has $transfers stations and transfers"
    "$belljar" cp subway-map:01_subway_map.png "$work/map.png"
    [ "$(head -c 4 "$work/map.png" | tail -c 3)" = PNG ] || fail '01_subway_map.png is no PNG file'
fi
