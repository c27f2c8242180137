#!/usr/bin/env python3
"""Writes data/streets.tsv and data/addresses.tsv: streets of an invented town and the boxes of their addresses.

    generate.py [FOLDER]

Most streets are near each other; three groups lie apart, some belong to another state, and two rows have no numbers or
no street that is known. Column names have stray blanks, as such files often do.
"""

import csv
import random
import sys
from pathlib import Path

SEED = 20250603
STATE, OTHER = "Northland", "Southland"
# Middle, number of streets, state.
GROUPS = [
    ((10.00, 50.00), 60, STATE),
    ((10.09, 50.01), 9, STATE),
    ((9.90, 50.06), 5, STATE),
    ((10.03, 49.91), 3, STATE),
    ((10.00, 50.00), 12, OTHER),
]
KINDS = ["Street", "Lane", "Road", "Way", "Avenue"]
SYLLABLES = ["al", "ber", "cor", "den", "el", "far", "gil", "han", "ir", "jor", "kel", "lor", "mar", "nor"]


def street_names(rng, number):
    found = []
    while len(found) < number:
        name = "".join(rng.sample(SYLLABLES, 2)).capitalize() + " " + rng.choice(KINDS)
        if name not in found:
            found.append(name)
    return found


def main(folder):
    rng = random.Random(SEED)
    names = street_names(rng, sum(number for _, number, _ in GROUPS))
    streets, addresses = [], []
    for (x, y), number, state in GROUPS:
        here = (x, y)
        for _ in range(number):
            name = names.pop()
            streets.append(["Bellham", state, name, f"{rng.randint(10000, 10020)}"])
            width, height = (0.006, 0.001) if rng.random() < 0.5 else (0.001, 0.006)
            box = [here[0], here[1], here[0] + width, here[1] + height]
            addresses.append([streets[-1][3], "Bellham", name, *(f"{value:.5f}" for value in box)])
            # The next street begins somewhere along this one, so that a group hangs together.
            along = rng.random()
            here = (here[0] + width * along, here[1] + height * along)
            if abs(here[0] - x) > 0.02 or abs(here[1] - y) > 0.02:
                here = (x, y)
    addresses.insert(7, ["10001", "Bellham", addresses[3][2], "", "", "", ""])
    addresses.insert(40, ["10002", "Bellham", "Nowhere Street", "10.00100", "50.00100", "10.00200", "50.00200"])
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "streets.tsv": ([" city", "state", "street_name ", "postal_code"], streets),
        "addresses.tsv": (["postal_code_", "city_", " street_", "x_min", "y_min", "x_max", "y_max "], addresses),
    }
    for name, (columns, rows) in tables.items():
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerows([columns, *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
