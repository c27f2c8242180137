"""What the results say, as tables in Markdown."""

import statistics

HEADS = ("who", "tasks", "solved", "valid replies", "tokens in", "tokens out", "time", "median")
# The rest of an end's name is told by the list of what was not solved.
LATE = "time_limit"


def markdown(heads, rows):
    lines = [heads, ["---" if place == 0 else "---:" for place in range(len(heads))], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def summary(results):
    """One line for each who worked, over all tasks that they were given. `results` is who: {task: outcome}."""
    return markdown(HEADS, [line(who, list(outcomes.values())) for who, outcomes in results.items()])


def line(who, outcomes):
    def total(key):
        return sum(outcome[key] for outcome in outcomes)

    replies, valid, seconds = total("replies"), total("valid"), [outcome["seconds"] for outcome in outcomes]
    share = f"{valid} of {replies} ({100 * valid / replies:.0f} %)" if replies else "none"
    return [
        who, len(outcomes), total("solved"), share, f"{total('tokens_in'):,}", f"{total('tokens_out'):,}",
        f"{sum(seconds):.0f} s", f"{statistics.median(seconds):.1f} s" if seconds else "",
    ]  # fmt: skip


def by_task(tasks, results):
    """One line for each task: ✓ solved, ✗ not, «late» if its time was over; with the seconds."""

    def cell(outcome):
        if outcome is None:
            return ""
        mark = "✓" if outcome["solved"] else "late" if outcome["ended"] == LATE else "✗"
        return f"{mark} {outcome['seconds']:.0f} s"

    rows = [[task.name, task.kind, *(cell(outcomes.get(task.name)) for outcomes in results.values())] for task in tasks]
    return markdown(("task", "kind", *results), rows)


def best(results):
    """Who solved most; of equals, who needed fewer tokens, then less time."""

    def rank(who):
        outcomes = results[who].values()
        tokens = sum(outcome["tokens_in"] + outcome["tokens_out"] for outcome in outcomes)
        seconds = sum(outcome["seconds"] for outcome in outcomes)
        return (-sum(outcome["solved"] for outcome in outcomes), tokens, seconds)

    return min(results, key=rank)
