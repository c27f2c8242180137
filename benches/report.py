"""The report: what was measured as JSON, and the same as Markdown with plots; the README's table is a part of it."""

import json
import math

import goals
import svg
from contestants import OURS, PEERS
from work import LABELS, WORKS

ENTRIES = {entry.name: entry for entry in OURS + PEERS}
GROUPS = [
    ("Cells", ("hot", "idle", "assign", "change", "science_hot", "science_use", "call")),
    ("Sessions", ("start", "start_science", "remove", "memory")),
    ("Output and mishaps", ("bulk", "lines", "deadline", "death")),
]
RATIOS = ("hot", "idle", "change", "start", "remove", "lines", "death")
PLOTS = {"hot": "A cell, back to back", "change": "A cell that changes state", "start": "New session to first result",
         "remove": "Removal of a session", "death": "After a cell that ends its process"}  # fmt: skip
HEADS = {
    "hot": "`1+1`", "idle": "`1+1` after 100 ms", "assign": "`n = 1`", "change": "`items.append(1)`",
    "science_hot": "`1+1`, science imported", "science_use": "`frame.a.sum()`", "call": "host function",
    "start": "new, to first result", "start_science": "new, science imported", "remove": "remove", "memory": "memory",
    "bulk": "64 KiB blocks", "lines": "short prints", "deadline": "after a deadline", "death": "after a death",
}  # fmt: skip
README_WORKS = ("hot", "idle", "change", "science_use", "call", "start", "start_science", "remove", "bulk", "lines",
                "deadline", "death")  # fmt: skip
# Rows of the README's second table: what it is called, the table and its row, Belljar's column and the one beside it.
JOBS, POOL, HEAP = "Jobs per second", "Sessions out of the pool", "Checkpoint and recovery by size of the heap"
SAVED = "Snapshots by size of the variables"
README_ALONE = (
    ("new session with science imported, out of the pool, to the first result", POOL, "science imported", "one", ""),
    ("as many of them at once as wait", POOL, "science imported", "as many at once as wait", "waiting"),
    ("burst of 20 jobs from a filled pool", JOBS, "burst of 20", "Belljar, pool filled", "`docker run --rm`"),
    ("40 jobs after that, while it is refilled", JOBS, "40 one after the other", "Belljar, pool filled",
     "`docker run --rm`"),
    ("isolated expression", "Requests to one session", "isolated expression", "Belljar", ""),
    ("state back after a killed cell, 500 MB in arrays", HEAP, "500 MB in arrays", "recovery", "pickle"),
    ("state back after a killed cell, 500 MB in small objects", HEAP, "500 MB in small objects", "recovery", "pickle"),
    ("variables on the disk, 1 GB in arrays", SAVED, "1000 MB in arrays", "snapshot", "dill"),
    ("woken from there, with a new sandbox", SAVED, "1000 MB in arrays", "wake", "dill, new process"),
    ("variables on the disk, 1 GB in small objects", SAVED, "1000 MB in small objects", "snapshot", "dill"),
    ("woken from there, with a new sandbox", SAVED, "1000 MB in small objects", "wake", "dill, new process"),
    ("eight branches of a session with 500 MB, to the first result in each", "Branches", "8, saved", "all of them", ""),
)  # fmt: skip
README_COLUMNS = ("Belljar", "Belljar in a jail", "`docker exec`", "ipykernel", "smolagents, local",
                  "smolagents, Docker", "llm-sandbox", "pydantic-monty")  # fmt: skip
README_BEGIN, README_END = "<!-- bench: begin -->", "<!-- bench: end -->"
# Beyond these the machine did something else during the run.
QUIET_LOAD, QUIET_SPREAD = 1.0, 1.25


def figures_of(report, name):
    return report["contestants"].get(name, {}).get("figures", {})


def number(report, name, work):
    """The median of a work, or nothing."""
    return figures_of(report, name).get(work, {}).get("p50")


class Footnotes:
    """Reasons are written once, below a table, and numbered in it."""

    def __init__(self):
        self.reasons = []

    def mark(self, reason):
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"– [{self.reasons.index(reason) + 1}]"

    def lines(self):
        return [f"[{place}] {reason}  " for place, reason in enumerate(self.reasons, 1)] + [""] if self.reasons else []


def shown(figure, notes, spread=True):
    if figure is None:
        return ""
    if "absent" in figure:
        return notes.mark(figure["absent"])
    unit = figure["unit"]
    text = f"{svg.short(figure['p50'])} {unit}"
    if spread and unit == "ms" and figure.get("n", 1) > 2:
        text += f" ({svg.short(figure['p95'])}; {figure['n']})"
    elif spread and figure.get("n", 1) > 1:
        text += f" ({figure['n']})"
    if "variables" in figure:
        text += {"kept": "", "lost": ", variables lost", "none": ""}[figure["variables"]]
    if "part" in figure:
        text += f" (for {100 * figure['part']:g} % of it)"
    if figure.get("wrong"):
        text += f", {figure['wrong']} of {figure['n']} results lost"
    return text


def markdown_table(heads, rows):
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def same_work(report):
    """Two tables for each group: what was measured, and how many times Belljar's own that is."""
    lines = []
    for title, works in GROUPS:
        notes = Footnotes()
        rows = []
        for name in report["contestants"]:
            figures = figures_of(report, name)
            if any(work in figures for work in works):
                rows.append([name, *(shown(figures.get(work), notes) for work in works)])
        lines += [f"### {title}", "", *markdown_table(["", *(HEADS[work] for work in works)], rows), *notes.lines()]
    return lines


def ratios(report):
    rows = []
    for name in report["contestants"]:
        row = [name]
        for work in RATIOS:
            own, other = number(report, "Belljar", work), number(report, name, work)
            if own and other:
                times = own / other if work in ("bulk", "lines") else other / own
                row.append(f"{svg.short(times)} ×")
            else:
                row.append("")
        if name != "Belljar" and any(row[1:]):
            rows.append(row)
    heads = ["", *(HEADS[work] for work in RATIOS)]
    return ["How many times as long as Belljar (for prints: how many times slower). Below 1 it is faster.", "",
            *markdown_table(heads, rows)]  # fmt: skip


def section_lines(table):
    notes = Footnotes()
    rows = [[label, *(shown(figure, notes) for figure in figures)] for label, figures in table["rows"]]
    lines = [f"### {table['title']}", "", table["note"], ""] if table["note"] else [f"### {table['title']}", ""]
    return lines + markdown_table(["", *table["columns"]], rows) + notes.lines()


def quietness(report):
    """Whether the machine was the same from the first part to the last."""
    sticks = report["yardsticks"]

    def spread(key):
        values = [stick[key] for stick in sticks]
        return min(values), max(values)

    compute, switch, load = spread("compute_ms"), spread("switch_us"), spread("load")
    text = (
        f"Before each part the same work was timed: a loop took {compute[0]:.1f} to {compute[1]:.1f} ms, a byte there "
        f"and back between two processes {switch[0]:.0f} to {switch[1]:.0f} µs; the load was {load[0]:.1f} to "
        f"{load[1]:.1f}."
    )
    noisy = compute[1] / compute[0] > QUIET_SPREAD or sticks[0]["load"] > QUIET_LOAD
    if noisy:
        text += " **The machine was not quiet: these figures show that the benchmarks run, and little else.**"
    return text


def machine_line(facts):
    return (
        f"{facts['date']}, {facts['processors']} × {facts['processor']}, {facts['memory_gib']:g} GiB, "
        f"{facts['system']}, kernel {facts['kernel']}, Docker {facts['docker']} on {facts['storage']}, "
        f"control groups {facts['control_groups']}"
    )


def fairness(report):
    lines = [
        "## Who was measured, and what not to compare",
        "",
        "All did the work of `benches/work.py`, one after the other, in the same loops with the same bounds. "
        "Sandboxes in containers have the image `belljar/base` (`belljar/science` where packages are imported); those "
        "that need Jupyter or IPython inside have them added on top, compiled. What runs on the host has the Python "
        "named below. Settings are as they are delivered. Every figure is taken by the caller: from the request to the "
        "whole answer in Python. A result that does not come, or output that arrives in part, is no figure.",
        "",
    ]
    rows = []
    for name, found in report["contestants"].items():
        entry = ENTRIES[name]
        ran = found.get("absent") or f"{found.get('version', '')}, caller's Python {found.get('python', '')}"
        rows.append([name, ran if "absent" not in found else f"**did not run: {ran}**", entry.does, entry.lacks])
    return lines + markdown_table(["", "version", "does", "does not"], rows)


def markdown(report):
    lines = [
        "# Benchmarks", "", machine_line(report["machine"]),
        f"Commit {report['machine']['commit']}; one run of {report['seconds'] / 60:.0f} minutes.", "",
        quietness(report), "",
        "Figures are medians; behind them, in brackets, the 95th percentile where there were enough, and how many there "
        "were. A loop ends after a number of repetitions or after some seconds, which are the same for all: who is slow "
        "has done fewer.", "",
        "## The same work", "", *same_work(report), *ratios(report),
        *(f"![{PLOTS[name]}]({name}.svg)" for name in PLOTS if name in report["plots"]), "",
        "## Belljar alone", "",
    ]  # fmt: skip
    for table in report["tables"]:
        lines += section_lines(table)
    lines += [f"![{name}]({name}.svg)" for name in report["plots"] if name not in PLOTS]
    for name, reason in report["failed"].items():
        lines += [f"The part `{name}` failed: {reason}", ""]
    lines += ["", "## Goals", "", *goal_lines(report), *fairness(report)]
    return "\n".join(lines) + "\n"


def goal_lines(report):
    rows = [[text, asked, svg.short(found) if found is not None else "not measured",
             {True: "met", False: "**missed**", None: ""}[met]]
            for text, asked, found, met in goals.judged(report, number)]  # fmt: skip
    return markdown_table(["work", "goal", "measured", ""], rows)


def plots(report):
    """The text of each plot by its name."""
    drawn = {}
    for work, title in PLOTS.items():
        entries = [(name, number(report, name, work)) for name in report["contestants"]]
        entries = sorted([entry for entry in entries if entry[1] and entry[1] > 0], key=lambda entry: entry[1])
        if entries:
            drawn[work] = svg.bars(title, "ms", entries)
    for table in report["tables"]:
        if table["title"].startswith("Memory by"):
            series = columns_as_series(table, lambda label: int(label))
            drawn["memory"] = svg.lines(table["title"], "sessions", "MB", series)
        if table["title"].startswith("Checkpoint and"):
            for kind in ("arrays", "small objects"):
                part = {**table, "rows": [row for row in table["rows"] if row[0].endswith(kind)]}
                series = columns_as_series(part, lambda label: int(label.split()[0]))
                drawn[f"recovery-{kind.split()[0]}"] = svg.lines(f"{table['title']}, {kind}", "MB", "ms", series)
    return drawn


def columns_as_series(table, place):
    series = {}
    for column, name in enumerate(table["columns"]):
        points = [(place(label), figures[column].get("p50")) for label, figures in table["rows"]]
        points = [(x, y) for x, y in points if y and math.isfinite(y) and y > 0]
        if points:
            series[name] = points
    return series


def readme_table(report):
    columns = [name for name in README_COLUMNS if figures_of(report, name)]
    rows = []
    for work in README_WORKS:
        cells = []
        for name in columns:
            figure = figures_of(report, name).get(work)
            measured = figure is not None and "absent" not in figure
            cells.append(shown(figure, None, spread=False) if measured else "–")
        rows.append([LABELS[work], *cells])
    facts = report["machine"]
    head = (
        f"Medians of one run of `make bench-peers` on {facts['date']}: {facts['processors']} processors "
        f"({facts['processor']}), kernel {facts['kernel']}, Docker {facts['docker']} on {facts['storage']}. "
        "`–`: it cannot, or did not; the report says why, and what each of them does and does not do."
    )
    return "\n".join([head, "", *markdown_table(["", *columns], rows), *readme_alone(report)])


def readme_alone(report):
    """What only Belljar does, with what the report has beside it."""
    rows = []
    for label, title, row, column, beside in README_ALONE:
        own, other = (goals.cell(report, title, row, name) for name in (column, beside))
        if own and "absent" not in own:
            said = f"{beside}: {shown(other, None, spread=False)}" if other and "absent" not in other else ""
            rows.append([label, shown(own, None, spread=False), said])
    return markdown_table(["", "Belljar", "beside it"], rows) if rows else []


def write(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots(report)
    report["plots"] = sorted(drawn, key=lambda name: (name not in PLOTS, name))
    for name, text in drawn.items():
        (folder / f"{name}.svg").write_text(text)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.md").write_text(markdown(report))


def into_readme(report, path):
    """Replaces what stands between the two marks."""
    text = path.read_text()
    before, begin, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not (begin and end):
        raise SystemExit(f"{path} has no {README_BEGIN} … {README_END}")
    path.write_text(f"{before}{begin}\n{readme_table(report)}{end}{after}")


assert set(HEADS) == {work.name for work in WORKS}
