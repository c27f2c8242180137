#!/usr/bin/env python3
"""Writes data/user_login.csv: logins of three users. u001 logs in twice on one day, u002 misses a day.

    generate.py [FOLDER]
"""

import csv
import sys
from pathlib import Path

DAYS_OF_JANUARY = {"u001": [1, 1, 2, 3, 4], "u002": [1, 3, 4], "u003": [1, 2, 3]}


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "user_login.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["user_id", "login_time"])
        for user, days in DAYS_OF_JANUARY.items():
            for nth, day in enumerate(days):
                writer.writerow([user, f"2025-01-{day:02} {8 + nth:02}:30:00"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
