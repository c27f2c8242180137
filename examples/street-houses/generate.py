#!/usr/bin/env python3
"""Writes data/streets.tsv, data/addresses.tsv and data/houses.tsv: streets of an invented town, the boxes that their
addresses lie in, and single houses; the same at every run.

    generate.py [FOLDER]

Streets lie in three groups, and some belong to another state. The box of one street is too small: its houses go on to
the next group. Houses of all kinds of bad rows are there: without a number, without a place, twice, of no known street.
Files begin with a byte order mark, as those of spreadsheets do.
"""

import csv
import math
import random
import sys
from pathlib import Path

SEED = 20250703
TOWN, STATE, OTHER = "Bellham", "Northland", "Southland"
# Where the first street begins, how many there are, their state. Places are metres from the town's south-west corner.
GROUPS = [((1000, 1000), 14, STATE), ((2600, 1200), 6, STATE), ((900, 3400), 4, STATE), ((1100, 1100), 5, OTHER)]
# The street of the second group whose houses go on to the first, and how far apart they stand.
LONG, GAP = 14, 80
KINDS = ["Street", "Lane", "Road", "Row"]
SYLLABLES = ["ash", "bir", "cle", "dun", "ell", "fen", "gar", "hol", "kir", "lin", "mor", "nes"]


def street_names(rng, number):
    found = []
    while len(found) < number:
        name = "".join(rng.sample(SYLLABLES, 2)).capitalize() + " " + rng.choice(KINDS)
        if name not in found:
            found.append(name)
    return found


def boxes(rng):
    """A box for each street, in the order of the groups; each begins along the one before it."""
    for (x, y), number, state in GROUPS:
        for _ in range(number):
            width, height = (300, 40) if rng.random() < 0.5 else (40, 300)
            yield state, (x, y, x + width, y + height)
            along = rng.random()
            x, y = round(x + width * along), round(y + height * along)


def main(folder):
    rng = random.Random(SEED)
    names = street_names(rng, sum(number for _, number, _ in GROUPS))
    streets, addresses, houses = [], [], []
    for name, (state, (left, low, right, high)) in zip(names, boxes(rng), strict=True):
        code = f"{rng.randint(20000, 20009)}"
        streets.append([TOWN, state, name, code])
        addresses.append([code, TOWN, name, left, low, right, high])
        for number in range(1, rng.randint(3, 5)):
            houses.append([code, TOWN, name, 2 * number, rng.randint(left, right), rng.randint(low, high)])
    code, _, name, left, low, _, _ = addresses[LONG]
    # Its further houses stand on the line to the nearest corner of the first group.
    near = min((box[3:5] for box in addresses[: GROUPS[0][1]]), key=lambda corner: math.dist(corner, (left, low)))
    steps = math.ceil(math.dist(near, (left, low)) / GAP)
    for step in range(1, steps):
        x, y = (round(here + (there - here) * step / steps) for here, there in zip((left, low), near, strict=True))
        houses.append([code, TOWN, name, 100 + step, x, y])
    houses.insert(5, [code, TOWN, name, "", left, low])
    houses.insert(11, [code, TOWN, name, 7, "", ""])
    houses.insert(17, ["20001", TOWN, "Nowhere Row", 1, 1200, 1200])
    houses.insert(23, houses[22])
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "streets.tsv": (["city", "state", "street_name", "postal_code"], streets),
        "addresses.tsv": (["postal_code", "city", "street", "x_min", "y_min", "x_max", "y_max"], addresses),
        "houses.tsv": (["postal_code", "city", "street", "house_number", "x", "y"], houses),
    }
    for name, (columns, rows) in tables.items():
        with open(folder / name, "w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows([columns, *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
