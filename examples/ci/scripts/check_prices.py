"""Every price is a number between 0 and the limit."""

import argparse
import csv
import json
import os
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=float, required=True)
limit = parser.parse_args().limit

with open("data/prices.csv", newline="", encoding="utf-8") as file:
    prices = {row["item"]: float(row["price"]) for row in csv.DictReader(file)}

pathlib.Path("report").mkdir()
with open("report/prices.json", "w", encoding="utf-8") as file:
    json.dump({"currency": os.environ.get("CURRENCY", "?"), "highest": max(prices.values())}, file)

wrong = {item: price for item, price in prices.items() if not 0 < price <= limit}
print(f"{len(prices)} prices up to {max(prices.values())}")
if wrong:
    raise SystemExit(f"beyond the limit of {limit}: {wrong}")
