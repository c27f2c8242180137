#!/usr/bin/env python3
"""Writes data/times.json: first and last trains of an invented subway, in terse fields, the same at every run.

    generate.py [FOLDER]

`l` are the lines: `ln` is a name, `st` are the stations in order. Of a station `n` is the name and `d` has both
directions: `to` is where trains go, `ft` the first train, `lt` the last. Times are written as a clock shows them, so
that a last train after midnight has a small one. Where trains end, nothing leaves: the fields are empty. One last train is
written an hour too early, and one direction was never filled in.
"""

import json
import random
import sys
from pathlib import Path

SEED = 20250702
LINES = {
    "Circle West": ["Alder Gate", "Brook Street", "Crane Hall", "Dyers' Row", "Elm Square", "Ferry Stairs", "Granary"],
    "Hill": ["Hop Market", "Ivy Steps", "Crane Hall", "Jay Wood", "Kiln Lane", "Lark Rise"],
    "River": ["Mill Weir", "Nut Walk", "Elm Square", "Oast House", "Jay Wood", "Quarry"],
}
FIRST, LAST = 4 * 60 + 50, 23 * 60 + 20
DAY = 24 * 60
TOO_EARLY = ("Hill", "Kiln Lane", "Hop Market")
UNFILLED = ("River", "Oast House", "Quarry")


def clock(minutes):
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


def main(folder):
    rng = random.Random(SEED)
    lines = []
    for line, names in LINES.items():
        directions = {}
        for stops in (names, names[::-1]):
            first, last = FIRST + rng.randrange(0, 40), LAST + rng.randrange(0, 35)
            for name in stops[:-1]:
                place = (line, name, stops[-1])
                times = (clock(first), clock(last - 60 * (place == TOO_EARLY)))
                directions.setdefault(name, []).append((stops[-1], *(("", "") if place == UNFILLED else times)))
                step = rng.randrange(3, 8)
                first, last = first + step, last + step
            directions.setdefault(stops[-1], []).append((stops[-1], "", ""))
        stations = [
            {"n": name, "d": [{"to": to, "ft": first, "lt": last} for to, first, last in directions[name]]}
            for name in names
        ]
        lines.append({"ln": line, "st": stations})
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"i": "0002", "l": lines}, ensure_ascii=False, indent=1)
    (folder / "times.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
