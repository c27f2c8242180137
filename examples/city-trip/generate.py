#!/usr/bin/env python3
"""Writes data/sights.json and data/metro.json: an invented town on a map in kilometres, the same at every run.

    generate.py [FOLDER]

A sight has a rating of 3 to 5 stars, the hours that a visit takes, and a place. One is closed. The metro has two lines
that cross; a line's stations are in the order in which trains stop.
"""

import json
import random
import sys
from pathlib import Path

SEED = 20250701
NAMES = ["Clock Tower", "Salt House", "Botanic Hall", "Mirror Pond", "Weavers' Yard", "Old Harbour", "Kite Hill",
         "Map Museum", "Glass Works", "Owl Wood", "Town Baths"]  # fmt: skip
STARS = [5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 5]
HOURS = {5: [3.0, 3.5], 4: [1.5, 2.0, 2.5], 3: [1.0, 1.5]}
CLOSED = "Town Baths"
SIZE_KM = 16.0
LINES = {"Red": [(2.0 * stop, 8.0) for stop in range(9)], "Blue": [(8.0, 2.0 * stop) for stop in range(9)]}


def main(folder):
    rng = random.Random(SEED)
    sights = [
        {"name": name, "stars": stars, "hours": rng.choice(HOURS[stars]), "open": name != CLOSED,
         "place": [round(rng.uniform(0, SIZE_KM), 1), round(rng.uniform(0, SIZE_KM), 1)]}
        for name, stars in zip(NAMES, STARS, strict=True)
    ]  # fmt: skip
    metro = [{"line": line, "stations": [list(place) for place in places]} for line, places in LINES.items()]
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("sights.json", sights), ("metro.json", metro)):
        lines = ",\n ".join(json.dumps(entry, ensure_ascii=False) for entry in data)
        (folder / name).write_text(f"[{lines}]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
