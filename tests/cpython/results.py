"""What was seen of CPython's tests so far, in a file, and the tables that are made of it.

The file holds, for each kind of sandboxes and each module, how many tests passed outside and inside, and which passed
outside only. It is written after each module, so that a run that ended goes on where it was. The reasons for what
passes outside only stand in `docs/CPYTHON.md`, and are read from its first table.
"""

import fnmatch
import json
import os
import re
import threading

CONTAINER, JAIL = "docker", "jail"
PLACES = {CONTAINER: "container", JAIL: "jail"}
# Stands for all tests of a module, where none was told inside.
ALL = "*"
# How much is kept, and how much is shown in a table, of what was said instead of results.
END_CHARACTERS = 200
SHOWN_CHARACTERS = 60
COUNTS = "## How many pass"
_NO_REASON = "**no reason in docs/CPYTHON.md**"


def compared(outside, inside, seconds):
    """The entry of a module from the two reports of `one_module.py`."""
    passed_inside = set(inside["passed"])
    only = {_short(name): inside["others"].get(name, "not run") for name in outside["passed"] if name not in passed_inside}
    if only and not passed_inside and not inside["others"]:
        only = {ALL: inside["end"][-END_CHARACTERS:]}
    return {"outside": _sum(outside), "inside": _sum(inside), "only_outside": only, "tries": 1, "seconds": round(seconds, 1)}


def after_second_try(first, second):
    """What two tries of a module say: a test that passed inside in one of them does pass inside."""
    before, now = first["only_outside"], second["only_outside"]
    both = {name: end for name, end in now.items() if name in before}
    only = before if ALL in now else now if ALL in before else both
    return {**min(second, first, key=_missing), "only_outside": only, "tries": 2}


def _missing(entry):
    return float("inf") if ALL in entry["only_outside"] else len(entry["only_outside"])


def _short(name):
    """The name without those of the package and the module."""
    return name.split(".", 2)[-1]


def _sum(report):
    return {"passed": len(report["passed"]), "end": report["end"][-END_CHARACTERS:]}


class Results:
    """The file with what was seen."""

    def __init__(self, path):
        self.path = path
        self._lock = threading.Lock()
        try:
            self.grounds = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.grounds = {}

    def begin(self, kind, python, wanted):
        """Notes that these modules are wanted, too; what another Python said counts no more."""
        with self._lock:
            ground = self.grounds.setdefault(kind, {})
            if ground.get("python") != python:
                ground.update(python=python, modules={}, wanted=[])
            ground["wanted"] = sorted({*ground["wanted"], *wanted})
            self._write()

    def of(self, kind):
        return self.grounds.get(kind, {}).get("modules", {})

    def put(self, kind, module, entry):
        with self._lock:
            self.of(kind)[module] = entry
            self._write()

    def forget(self, kind, modules):
        for module in modules:
            self.of(kind).pop(module, None)

    def left(self, kind):
        """The modules that were not run, and those whose difference was seen once only, beside another module."""
        modules = self.of(kind)
        wanted = self.grounds.get(kind, {}).get("wanted", [])
        new = [module for module in wanted if module not in modules]
        return new, [module for module, entry in modules.items() if entry["only_outside"] and entry["tries"] == 1]

    def _write(self):
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.grounds, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(draft, self.path)


class Reasons:
    """The first table of `docs/CPYTHON.md`: tests, where they pass outside only, and why."""

    def __init__(self, page):
        self._rows = []
        table = page.partition(COUNTS)[0]
        for tests, where, why in re.findall(r"^\| (.+?) \| (both|container|jail) \| (.+?) \|$", table, re.MULTILINE):
            for part in tests.split(";"):
                module, _, names = part.partition(":")
                patterns = re.findall(r"`([^`]+)`", names)
                self._rows += [(name, patterns, where, why) for name in re.findall(r"`([\w.]+)`", module)]

    def of(self, module, test, kind):
        """Why a test does not pass in one kind of sandboxes; None if the page does not say. A pattern stands for a whole
        name without the module, or for a part of it: a class, or a function."""
        for name, patterns, where, why in self._rows:
            if name != module or where not in ("both", PLACES[kind]):
                continue
            if not patterns or any(_matches(test, pattern) for pattern in patterns):
                return why
        return None


def _matches(test, pattern):
    return test != ALL and any(fnmatch.fnmatchcase(each, pattern) for each in (test, *test.split(".")))


def differences(results, reasons):
    """Rows (module, tests with their ends, kind, reason or None), tests of one reason in one row."""
    rows = []
    for kind in PLACES:
        for module, entry in sorted(results.of(kind).items()):
            by_reason = {}
            for test, end in sorted(entry["only_outside"].items()):
                by_reason.setdefault(reasons.of(module, test, kind), []).append((test, end))
            rows += [(module, tests, kind, reason) for reason, tests in by_reason.items()]
    return rows


def differences_table(rows):
    lines = ["| tests | where | why |", "|---|---|---|"]
    for module, tests, kind, reason in sorted(rows, key=lambda row: (row[3] is not None, row[0], row[2])):
        named = ", ".join("all" if test == ALL else f"`{test}`" for test, _ in tests)
        ends = ", ".join(sorted({_cell(end) for _, end in tests}))
        lines.append(f"| `{module}`: {named} ({ends}) | {PLACES[kind]} | {reason or _NO_REASON} |")
    return "\n".join(lines)


def counts_table(results):
    """How many tests passed where, and the modules of which nothing runs anywhere."""
    modules = sorted({module for kind in PLACES for module in results.of(kind)})
    lines, none = ["| module | container: outside | inside | jail: outside | inside |", "|---|---|---|---|---|"], []
    sums = dict.fromkeys([(kind, side) for kind in PLACES for side in ("outside", "inside")], 0)
    for module in modules:
        entries = {kind: results.of(kind).get(module) for kind in PLACES}
        for kind, side in sums:
            sums[kind, side] += entries[kind][side]["passed"] if entries[kind] else 0
        if all(_is_none(entry) for entry in entries.values()):
            none.append(f"`{module}`")
            continue
        shown = [_count(entries[kind], side) for kind, side in sums]
        lines.append(f"| {module} | {' | '.join(shown)} |")
    lines.append(f"| all {len(modules)} | {' | '.join(str(each) for each in sums.values())} |")
    if none:
        lines += ["", "Nothing runs, outside as inside, of " + ", ".join(none) + "."]
    return "\n".join(lines)


def _is_none(entry):
    return entry is None or all(entry[side]["end"] == "none run" for side in ("outside", "inside"))


def _count(entry, side):
    if entry is None:
        return "–"
    told = entry[side]
    return str(told["passed"]) if told["end"] == "done" else _cell(told["end"])[-SHOWN_CHARACTERS:]


def _cell(text):
    return text.replace("|", "/").replace("\n", " ")


def with_counts(page, table):
    """The page with this table of counts instead of what it has under that heading, below the heading's first words."""
    before, heading, after = page.partition(COUNTS + "\n")
    if not heading:
        raise ValueError(f"the page has no heading {COUNTS!r}")
    words = after.partition("\n| ")[0].strip()
    return f"{before}{heading}\n{words}\n\n{table}\n"
