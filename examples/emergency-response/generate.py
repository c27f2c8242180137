#!/usr/bin/env python3
"""Writes data/: schema.json and five emergencies, in UTF-8 Chinese, the same at every run. City and places are invented;
the coordinates are those of a real region.

    generate.py [FOLDER]
"""

import datetime
import json
import math
import random
import sys
from pathlib import Path

SEED = 20250601
# West, east, south, north.
BOUNDS = (103.95, 104.25, 30.55, 30.80)
SCENARIOS = [("城北洪涝", "洪涝"), ("西郊地震", "地震"), ("化工园火灾", "火灾"), ("暴雪封路", "雪灾"), ("台风过境", "台风")]
LOCATION_TYPES = ["仓库", "仓库", "仓库", "医院", "医院"] + ["受灾点"] * 11
TASK_TYPES = ["人员转移", "物资投送", "医疗救护", "道路抢通", "灾情侦察"]
# Type: capacity, kilometres an hour.
CARRIERS = {"卡车": (20, 40), "无人机": (4, 60), "直升机": (10, 150)}
RESOURCES = [("帐篷", "顶"), ("饮用水", "箱"), ("药品", "箱"), ("发电机", "台"), ("食品", "份"), ("救生衣", "件")]
RISKS = ["积水", "塌方", "余震", "浓烟", "结冰"]
TASKS, CARRIERS_EACH, NEIGHBOURS, RISK_POINTS = 24, 6, 3, 5


def kilometres(a, b):
    """Great-circle distance."""
    (lat_a, lng_a), (lat_b, lng_b) = ((math.radians(place["lat"]), math.radians(place["lng"])) for place in (a, b))
    half = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin((lng_b - lng_a) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(half))


def locations(rng):
    west, east, south, north = BOUNDS
    return [
        {
            "location_id": f"L{number:02}",
            "name": f"{kind}{number:02}",
            "type": kind,
            "address": f"云泽市{rng.choice('东西南北')}区{rng.choice(['青杨', '长堤', '石桥', '柳林'])}路{rng.randint(1, 199)}号",
            "lat": round(rng.uniform(south, north), 5),
            "lng": round(rng.uniform(west, east), 5),
        }
        for number, kind in enumerate(LOCATION_TYPES, start=1)
    ]


def paths(rng, places):
    """Each place is joined to its nearest ones, and to the one before it, so that all can be reached."""
    pairs = {(index - 1, index) for index in range(1, len(places))}
    for index, place in enumerate(places):
        near = sorted(range(len(places)), key=lambda other: kilometres(place, places[other]))
        pairs |= {tuple(sorted((index, other))) for other in near[1 : NEIGHBOURS + 1]}
    found = []
    for number, (a, b) in enumerate(sorted(pairs), start=1):
        start, end = places[a], places[b]
        # Roads wind.
        distance = kilometres(start, end) * rng.uniform(1.1, 1.5)
        middle = [round((start[key] + end[key]) / 2 + rng.uniform(-0.005, 0.005), 5) for key in ("lng", "lat")]
        found.append(
            {
                "path_id": f"P{number:02}",
                "from_id": start["location_id"],
                "to_id": end["location_id"],
                "waypoints": [[start["lng"], start["lat"]], middle, [end["lng"], end["lat"]]],
                "distance_km": round(distance, 2),
                "estimated_time_min": round(distance / rng.uniform(30, 50) * 60, 1),
            }
        )
    return found


def scenario(number, name, disaster):
    rng = random.Random(SEED + number)
    places = locations(rng)
    bases = [place["location_id"] for place in places if place["type"] != "受灾点"]
    sites = [place["location_id"] for place in places if place["type"] == "受灾点"]
    start = datetime.datetime(2025, 6, number, 8, 0)
    # The first four are past; the rest comes in over three hours.
    states = ["completed", "failed", "cancelled", "processing"] + ["pending"] * (TASKS - 4)
    minutes = [0, 0, 0, 0] + sorted(rng.randint(0, 180) for _ in range(TASKS - 4))
    tasks = [
        {
            "task_id": f"T{number:02}-{index:02}",
            "task_type": rng.choice(TASK_TYPES),
            "priority": rng.randint(1, 5),
            "status": state,
            "created_at": (start + datetime.timedelta(minutes=minute)).isoformat(),
            "disaster_type": disaster,
            "location_id": rng.choice(sites),
            "demand": rng.randint(1, 10),
            "service_min": rng.randint(15, 45),
        }
        for index, (state, minute) in enumerate(zip(states, minutes, strict=True), start=1)
    ]
    kinds = ["卡车", "卡车", "卡车", "无人机", "直升机", rng.choice(list(CARRIERS))]
    carriers = [
        {
            "carrier_id": f"C{number:02}-{index}",
            "name": f"{kind}{index}号",
            "type": kind,
            "capacity": CARRIERS[kind][0],
            "speed_kmh": CARRIERS[kind][1],
            # One of each scenario is not to be had.
            "status": "maintenance" if index == 3 else rng.choice(["idle", "idle", "busy"]),
            "location_id": rng.choice(bases),
        }
        for index, kind in enumerate(kinds[:CARRIERS_EACH], start=1)
    ]
    risky = rng.sample([place["location_id"] for place in places], RISK_POINTS)
    return {
        "scenario_id": f"S{number:02}",
        "scenario_name": name,
        "disaster_type": disaster,
        "started_at": start.isoformat(),
        "locations": places,
        "tasks": tasks,
        "carriers": carriers,
        "resources": [
            {
                "resource_id": f"R{number:02}-{index}",
                "type": kind,
                "quantity": rng.randint(10, 500),
                "unit": unit,
                "location_id": rng.choice(bases),
            }
            for index, (kind, unit) in enumerate(RESOURCES, start=1)
        ],
        "paths": paths(rng, places),
        "risk_points": [
            {"risk_id": f"K{number:02}-{index}", "location_id": place, "type": rng.choice(RISKS), "level": level}
            for index, (place, level) in enumerate(zip(risky, [5, 4, 3, 2, 1], strict=True), start=1)
        ],
        "task_feedbacks": [
            {
                "feedback_id": f"F{number:02}-{index}",
                "task_id": task["task_id"],
                "timestamp": (start + datetime.timedelta(minutes=10 * index)).isoformat(),
                "status_update": text,
                "progress_percent": percent,
            }
            for index, (task, text, percent) in enumerate(
                zip(tasks, ["任务完成，人员安全", "道路中断，任务失败", "上级取消任务", "队伍正在途中"], [100, 30, 0, 45]),
                start=1,
            )
        ],
    }


def entity(title, **fields):
    """An object of a schema; a field is its JSON type and what it means."""
    properties = {name: {"type": kind, "description": text} for name, (kind, text) in fields.items()}
    return {"title": title, "type": "object", "properties": properties, "required": list(fields)}


def schema():
    parts = {
        "locations": entity("地点", location_id=("string", "地点编号"), name=("string", "名称"), type=("string", "仓库、医院或受灾点"),
                            address=("string", "地址"), lat=("number", "纬度"), lng=("number", "经度")),
        "tasks": entity("任务", task_id=("string", "任务编号"), task_type=("string", "任务类型"), priority=("integer", "优先级，1 到 5，5 最高"),
                        status=("string", "任务状态"), created_at=("string", "创建时间"), disaster_type=("string", "灾害类型"),
                        location_id=("string", "任务所在地点"), demand=("integer", "所需运力"), service_min=("integer", "现场作业分钟数")),
        "carriers": entity("载具", carrier_id=("string", "载具编号"), name=("string", "名称"), type=("string", "卡车、无人机或直升机"),
                           capacity=("integer", "运力"), speed_kmh=("integer", "时速（公里）"), status=("string", "空闲、忙碌或检修"),
                           location_id=("string", "当前所在地点")),
        "resources": entity("物资", resource_id=("string", "物资编号"), type=("string", "物资类型"), quantity=("integer", "数量"),
                            unit=("string", "单位"), location_id=("string", "存放地点")),
        "paths": entity("路径", path_id=("string", "路径编号"), from_id=("string", "起点"), to_id=("string", "终点"),
                        waypoints=("array", "途经点，每个为 [经度, 纬度]"), distance_km=("number", "里程（公里）"),
                        estimated_time_min=("number", "预计用时（分钟）")),
        "risk_points": entity("风险点", risk_id=("string", "风险点编号"), location_id=("string", "所在地点"), type=("string", "风险类型"),
                              level=("integer", "等级，1 到 5，5 表示无法通行")),
        "task_feedbacks": entity("任务反馈", feedback_id=("string", "反馈编号"), task_id=("string", "所属任务"), timestamp=("string", "时间"),
                                 status_update=("string", "情况说明"), progress_percent=("integer", "完成百分比")),
    }  # fmt: skip
    whole = entity("应急响应场景", scenario_id=("string", "场景编号"), scenario_name=("string", "场景名称"),
                   disaster_type=("string", "灾害类型"), started_at=("string", "开始时间"))  # fmt: skip
    whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    whole["properties"] |= {name: {"type": "array", "items": part} for name, part in parts.items()}
    whole["required"] += list(parts)
    return whole


def write(path, document):
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "schema.json", schema())
    for number, (name, disaster) in enumerate(SCENARIOS, start=1):
        write(folder / f"emergency_response_data_{number:02}.json", scenario(number, name, disaster))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("data"))
