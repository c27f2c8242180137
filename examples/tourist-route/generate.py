#!/usr/bin/env python3
"""Writes data/spots.json and data/metro.json: sights and a metro of an invented city, the same at every run.

    generate.py [FOLDER]
"""

import json
import random
import sys
from pathlib import Path

SEED = 20250604
WEST, SOUTH = 116.30, 39.86
RATINGS = ["5A", "5A", "5A", "4A", "4A", "4A", "4A", "3A", "3A", "3A", "3A", "3A", "3A"]
HOURS = {"5A": [3.0, 3.5, 4.0], "4A": [1.5, 2.0, 2.5], "3A": [1.0, 1.5]}
NAMES = ["Old Palace", "Glass Temple", "Great Garden", "Tower of Winds", "Lake Park", "Silk Museum", "Stone Gate",
         "Poets' House", "Bell Court", "Herb Field", "Lantern Lane", "River Mill", "Star Hill"]  # fmt: skip
LINES = {"M1": [(0.02 * step, 0.10) for step in range(11)], "M2": [(0.10, 0.02 * step) for step in range(11)],
         "M3": [(0.018 * step, 0.02 + 0.014 * step) for step in range(11)]}  # fmt: skip


def main(folder):
    rng = random.Random(SEED)
    spots = [
        {
            "name": name,
            "rating": rating,
            "open": name != "Stone Gate",
            "longitude": round(WEST + rng.uniform(0.0, 0.2), 5),
            "latitude": round(SOUTH + rng.uniform(0.0, 0.2), 5),
            "hours": rng.choice(HOURS[rating]),
        }
        for name, rating in zip(NAMES, RATINGS, strict=True)
    ]
    lines = [
        {"line": line, "stations": [
            {"id": f"{line}-{number:02}", "longitude": round(WEST + x, 5), "latitude": round(SOUTH + y, 5)}
            for number, (x, y) in enumerate(places)
        ]}
        for line, places in LINES.items()
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("spots.json", spots), ("metro.json", lines)):
        (folder / name).write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
