#!/usr/bin/env python3
"""The first steps with the package: run it with `python tutorial.py` after `pip install belljar`. It needs nothing but Linux
with Docker or bubblewrap; the daemon starts by itself."""

from __future__ import annotations

from belljar import Sandbox


def main() -> None:
    with Sandbox.create() as box:
        print("1. Variables live on from one piece of code to the next.")
        box.run_code("readings = [12, 19, 23, 31, 8, 27]")
        print("   the mean is", box.run_code("sum(readings) / len(readings)").text)

        print("2. Whatever code does, the session goes on, with the variables of before.")
        crashed = box.run_code("readings = None; import os; os.abort()")
        print("  ", crashed.status, "and then", box.run_code("len(readings)").text, "readings")

        print("3. There is no network and no file of yours; what it may have, you give it.")
        box.files.write("prices.csv", "item,price\npencil,1.20\nlamp,39.90\n")
        print("  ", box.run_code("sum(float(line.split(',')[1]) for line in list(open('prices.csv'))[1:])").text)

        print("4. A function of yours is a tool: code in the sandbox calls it, and it runs here.")

        @box.tool
        def rate(currency: str) -> float:
            """What one unit is worth in euros."""
            return {"USD": 0.5, "GBP": 2.0}[currency]

        print("  ", box.run_code("41.1 * rate('GBP')").text)

        print("5. Programs run beside the code.")
        print("  ", box.commands.run("wc -l < prices.csv").stdout.strip(), "lines")
    print("done")


if __name__ == "__main__":
    main()
