"""The sum is what the prices come to."""

import argparse
import csv
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=float, required=True)
limit = parser.parse_args().limit


def total(rows):
    return sum(float(row["price"]) * int(row["count"]) for row in rows)


class Totals(unittest.TestCase):
    def test_nothing_costs_nothing(self):
        self.assertEqual(total([]), 0)

    def test_the_order_stays_within_ten_times_the_limit(self):
        with open("data/prices.csv", newline="", encoding="utf-8") as file:
            self.assertLessEqual(total(csv.DictReader(file)), 10 * limit)


unittest.main(argv=["check_totals.py"])
