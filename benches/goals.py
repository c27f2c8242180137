"""What Belljar is meant to reach; the report says which goals it does."""


def table_figure(report, title, label, column=0):
    for table in report["tables"]:
        if table["title"] == title:
            for name, figures in table["rows"]:
                if name == label:
                    return figures[column].get("p50")
    return None


def ratio(one, other):
    return one / other if one and other else None


def judged(report, number):
    """Rows of: work, goal as text, what was measured, whether that is enough (nothing if it was not measured)."""

    def own(work):
        return number(report, "Belljar", work)

    def times(name, work="hot"):
        return ratio(number(report, name, work), own(work))

    def burst(column):
        return table_figure(report, "Jobs per second", "burst of 20", column)

    start = ratio(
        table_figure(report, "Cold starts", "a new session, ready for its first cell"),
        table_figure(report, "Cold starts", "bare create + start, no network"),
    )
    most, least = "at most", "at least"
    goals = [
        ("`1+1`, back to back, ms", most, 0.2, own("hot")),
        ("`1+1`, times faster than ipykernel", least, 25, times("ipykernel")),
        ("`1+1`, times faster than smolagents in Docker", least, 300, times("smolagents, Docker")),
        ("`1+1`, times faster than llm-sandbox", least, 300, times("llm-sandbox")),
        ("a cell that changes state, ms", most, 2.3, own("change")),
        ("after 100 ms of idling, ms", most, 1.1, own("idle")),
        ("cold session, times a bare create + start", most, 1.0, start),
        ("tool call, ms", most, 0.2, own("call")),
        ("isolated expression, ms", most, 1, table_figure(report, "Requests to one session", "isolated expression")),
        ("output in blocks, MB/s", least, 400, own("bulk")),
        ("short prints, MB/s", least, 30, own("lines")),
        ("removal, ms", most, 3, own("remove")),
        ("burst of 20 jobs, times `docker run --rm`", least, 10, ratio(burst(0), burst(2))),
        ("recovery of a killed cell with 500 MB, ms", most, 20,
         table_figure(report, "Checkpoint and recovery by size of the heap", "500 MB in arrays", 1)),
    ]  # fmt: skip
    rows = []
    for text, side, bound, found in goals:
        met = None if found is None else (found <= bound if side == most else found >= bound)
        rows.append((text, f"{side} {bound:g}", found, met))
    return rows
