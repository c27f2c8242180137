#!/usr/bin/env python3
"""Writes data/: measurements of four stations, and two files that cannot be read, each for another reason.

    generate.py [FOLDER]
"""

import json
import random
import sys
from pathlib import Path

SEED = 7
STATIONS = ["north", "east", "south", "west"]
HOURS = 24


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(SEED)
    for number, station in enumerate(STATIONS, start=1):
        celsius = [round(numbers.gauss(10 + 2 * number, 1.5), 1) for _ in range(HOURS)]
        document = json.dumps({"station": station, "celsius": celsius})
        (folder / f"station_{number:02}.json").write_text(document + "\n", encoding="utf-8")
    # As if the program that wrote it had been stopped half-way.
    (folder / "station_05.json").write_text(document[: len(document) // 2], encoding="utf-8")
    # As an old Windows program would write it.
    (folder / "station_06.json").write_bytes(json.dumps({"station": "Höhe"}, ensure_ascii=False).encode("cp1252"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
