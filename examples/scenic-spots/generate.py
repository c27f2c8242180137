#!/usr/bin/env python3
"""Writes data/scenic_spots.csv: fifteen good rows and four bad ones. The spots are invented.

    generate.py [FOLDER]
"""

import csv
import sys
from pathlib import Path

COLUMNS = ["名称", "星级", "开放状态", "坐标", "建议游玩时长"]
SPOTS = [
    ("云台古苑", "5A", "open", "116.3913,39.9075", "4.0"),
    ("望溪湖公园", "4A", "open", "116.2755,39.9988", "2.5"),
    ("松影山", "4A", "open", "116.1872,39.9921", "2.5"),
    ("长风塔", "4A", "open", "116.4107,39.8822", "2.0"),
    ("百川植物园", "4A", "close", "116.2091,40.0036", "2.0"),
    ("青石巷", "4A", "open", "116.4026,39.9375", "1.5"),
    ("听雨轩", "3A", "open", "116.3468,39.9442", "1.0"),
    ("六里渔村", "3A", "open", "116.5213,39.8417", "1.5"),
    ("西岭窑址", "3A", "open", "116.1024,39.8786", "1.0"),
    ("明月桥", "3A", "open", "116.2203,39.8491", "1.0"),
    ("稻香农庄", "3A", "close", "116.6512,40.1283", "1.5"),
    ("观星台", "3A", "open", "116.4338,39.9069", "1.0"),
    ("老城戏楼", "3A", "open", "116.3921,39.8957", "2.0"),
    ("槐树湾湿地", "3A", "open", "116.7044,39.9126", "2.0"),
    ("石刻馆", "3A", "open", "116.3287,39.9418", "1.0"),
]
# Each is wrong in its own way, and stands after the good row of this number.
BAD = {
    2: ("无名馆", "6A", "open", "116.3001,39.9001", "1.0"),
    6: ("半坡园", "3A", "open", "116.3002", "1.0"),
    9: ("空亭", "3A", "open", "116.3003,39.9003", "0"),
    13: ("旧码头", "4A", "maybe", "116.3004,39.9004", "1.0"),
}


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "scenic_spots.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number, spot in enumerate(SPOTS, start=1):
            writer.writerow(spot)
            if number in BAD:
                writer.writerow(BAD[number])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
