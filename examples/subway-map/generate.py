#!/usr/bin/env python3
"""Writes data/subway.json: five lines of an invented city, in the terse form that drawing data of subways often has.

    generate.py [FOLDER]

`l` are the lines: `ln` is a name, `cl` a colour, `lo` says whether the line is a ring, `st` are the stations in order.
Of a station `n` is the name, `sid` the id, `sl` "longitude,latitude", `r` the lines that stop there, separated by `|`,
and `t` is "1" where one can change. Two stations are planned and have no place yet, and one that two lines share is not
marked as a place to change.
"""

import json
import random
import sys
from pathlib import Path

SEED = 20250602
# West and south, and the size of a cell of the grid that the city was built on.
WEST, SOUTH, CELL = 116.20, 39.80, 0.02
LINES = {
    "L1": ("East-West", "c23a30", False, [(column, 6) for column in range(13)]),
    "L2": ("Ring", "004b87", True, [*((c, 4) for c in range(4, 9)), *((8, r) for r in range(5, 9)),
                                    *((c, 8) for c in range(7, 3, -1)), *((4, r) for r in range(7, 4, -1))]),
    "L3": ("North-South", "d90627", False, [(6, row) for row in range(13)]),
    "L4": ("Diagonal", "008e9c", False, [(step, step) for step in range(1, 12)]),
    "L5": ("Airport", "a29bbb", False, [(8, 8), (9, 9), (10, 10), (12, 11), (14, 12)]),
}  # fmt: skip
PLANNED = {(0, 6), (6, 12)}
UNMARKED = (6, 4)
FIRST = "Amber Birch Cedar Dove Elm Fern Grove Heron Iris Juniper Kite Larch Maple".split()
SECOND = "Bridge Gate Hill Market Mill Park Square Well".split()


def main(folder):
    rng = random.Random(SEED)
    names = [f"{first} {second}" for first in FIRST for second in SECOND]
    rng.shuffle(names)
    lines_at = {}
    for line, (_, _, _, stops) in LINES.items():
        for place in stops:
            lines_at.setdefault(place, []).append(line)
    stations = {}
    for number, (place, lines) in enumerate(lines_at.items(), start=1):
        column, row = place
        longitude = WEST + CELL * column + rng.uniform(-0.002, 0.002)
        latitude = SOUTH + CELL * row + rng.uniform(-0.002, 0.002)
        stations[place] = {
            "n": names[number - 1],
            "sid": f"S{number:03}",
            "sl": None if place in PLANNED else f"{longitude:.6f},{latitude:.6f}",
            "r": "|".join(lines),
            "t": "1" if len(lines) > 1 and place != UNMARKED else "0",
        }
    ring = {True: "1", False: "0"}
    lines = [
        {"ln": name, "li": line, "cl": colour, "lo": ring[is_ring], "st": [stations[place] for place in stops]}
        for line, (name, colour, is_ring, stops) in LINES.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"s": "subway", "i": "0001", "l": lines}, ensure_ascii=False, indent=1)
    (folder / "subway.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
