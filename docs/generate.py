#!/usr/bin/env python3
"""Writes docs/reference from what the code itself says.

    generate.py BINARY            write the pages anew
    generate.py BINARY --check    say which are not up to date; exits with 1 if one is not

Settings come from config/default.toml, error codes from config/openapi.json and src/protocol/problem.rs with the causes
and remedies of docs/errors.toml, the routes from config/openapi.json, and the commands from the `--help` of BINARY.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
#: Width of the help texts, wherever this runs.
COLUMNS = "100"
#: The longest that a help text may take.
HELP_SECONDS = 30
#: Options that every command has.
EVERYWHERE = ("json", "color", "config", "help")

#: How the code reads a key of `[model.NAME]` and its like.
READS = "text|optional|required|path|positive_or|or|schema|json"
KEY = re.compile(r"^(\w+) = (.+)$")
SECTION = re.compile(r"^\[(\w+)(?:\.(\w+))?\]$")


class Stale(Exception):
    """The sources contradict each other, so that no page can be written."""


def made_from(source):
    return f"<!-- Written by docs/generate.py from {source}: change that, and run `make docs-reference`. -->\n"


def settings_page():
    lines = (ROOT / "config/default.toml").read_text(encoding="utf-8").splitlines()
    parts = [
        "# Settings\n",
        made_from("config/default.toml"),
        "Each setting has its default here. A file of your own names only what differs: the file that\n"
        "`belljar config path` prints. `belljar config show` has every value with where it came from. The daemon\n"
        "reads the file when it starts, and again with `belljar daemon reload` (or SIGHUP) for what can change while it\n"
        "runs: quotas, users, groups, administrators, models, templates and most of `[agent]`. It says which of the\n"
        "changes need a restart: `belljar daemon stop` lets the next command start one, and sessions live on. Sizes are bytes, or text such as `512MiB`; times are seconds, or text\n"
        "such as `30s`.\n",
    ]
    section, before = None, []
    for block in paragraphs(lines)[1:]:
        head = next((found for line in block if (found := SECTION.match(line))), None)
        if head:
            place = next(number for number, line in enumerate(block) if SECTION.match(line))
            about, block, section = before + block[:place], block[place + 1 :], head[1]
            parts += [f"## `[{section}]`\n", *prose(about), *table(section, block)]
            before = []
        elif commented := [line for line in block if SECTION.match(line.removeprefix("# "))]:
            parts += templates(before + block, commented)
            before = []
        elif any(KEY.match(line) for line in block):
            # The section goes on: the rows follow those before, without the empty line and another head.
            parts[-1:] = table(section, block)[2:]
        else:
            before += [*block, ""]
    text = "\n".join(parts)
    complete(text)
    return text


def paragraphs(lines):
    """Runs of lines without an empty one between them."""
    found = [[]]
    for line in lines:
        if line:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def prose(lines):
    """Comment lines as text; those that are indented stay as they are."""
    text = []
    for line in lines:
        line = line.removeprefix("#").removeprefix(" ")
        is_code = line.startswith("  ")
        if is_code and (not text or not text[-1].startswith("  ")):
            text.append("```text")
        if text and text[-1].startswith("  ") and not is_code:
            text.append("```")
        text.append(line)
    return ["\n".join(text).strip() + "\n"] if text else []


def table(section, lines):
    """The keys of a section; keys that follow each other share the comment above the first."""
    rows = []
    about, keys = [], []
    for line in [*lines, "# end"]:
        unset = KEY.match(line.removeprefix("# ")) if line.startswith("# ") else None
        key = KEY.match(line)
        if key:
            keys.append(f"`{section}.{key[1]}` = `{key[2]}`")
        elif unset:
            keys.append(f"`{section}.{unset[1]}`, not set; such as `{unset[2]}`")
        else:
            if keys:
                rows.append(("<br>".join(keys), " ".join(about)))
                about, keys = [], []
            about.append(line.removeprefix("#").strip())
    return markdown_table(("setting", "what it is"), rows)


def templates(block, heads):
    """Tables that a configuration may have any number of, which the defaults show as comments."""
    lines = [line.removeprefix("#").removeprefix(" ") for line in block]
    first = next(number for number, line in enumerate(lines) if SECTION.match(line))
    names = " and ".join(f"`[{SECTION.match(head.removeprefix('# '))[1]}.NAME]`" for head in heads)
    about = prose([f"# {line}".rstrip() for line in lines[:first]])
    return [f"## {names}\n", *about, "```toml", "\n".join(lines[first:]).strip(), "```", ""]


def complete(text):
    """Every key that the code reads is on the page."""
    for path in sorted((ROOT / "src/config").glob("load*.rs")):
        code = path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
        keys = re.findall(r"self\s*\.\w+(?:::<[^(]*>)?\(\s*\"(\w+\.\w+)\"", code)
        keys += re.findall(rf"entry\s*\.(?:{READS})(?:::<[^(]*>)?\(\"(\w+)\"", code)
        for key in keys:
            if not re.search(rf"\b{re.escape(key)}\b", text):
                raise Stale(f"config/default.toml does not tell of `{key}`, which {path.name} reads")


def errors_page():
    schemas = json.loads((ROOT / "config/openapi.json").read_text(encoding="utf-8"))["components"]["schemas"]
    with open(ROOT / "docs/errors.toml", "rb") as file:
        told = tomllib.load(file)
    statuses = http_statuses()
    parts = [
        "# Errors\n",
        made_from("config/openapi.json, src/protocol/problem.rs and docs/errors.toml"),
        "An answer of the API that is no success is `application/problem+json` with a `code` that stays the same, a\n"
        "`message` for people and often a `hint`. With `--json` a command prints the same object on stderr.\n"
        "[Troubleshooting](../guide/troubleshooting.md) begins with the words that you see instead.\n",
        "## Codes\n",
    ]
    rows = [(word, statuses[word.strip("`")], *rest) for word, *rest in sorted(words(schemas["Code"], told, "code"))]
    parts += markdown_table(("code", "HTTP", "cause", "remedy"), rows)
    parts += ["A command has two codes of its own.\n"]
    own = [(f"`{code}`", row["cause"], row["remedy"]) for code, row in told["command"].items()]
    parts += markdown_table(("code", "cause", "remedy"), own)
    heads = ("word", "cause", "remedy")
    parts += ["## Why a cell ended\n", "The `reason` of a result; its `status` is the coarser word.\n"]
    parts += markdown_table(heads, words(schemas["Reason"], told, "reason"))
    parts += ["## How an ask ended\n", "The `outcome` of an ask.\n"]
    parts += markdown_table(heads, words(schemas["AskOutcome"], told, "outcome"))
    parts += ["## Exit codes\n", *markdown_table(("code", "meaning"), exit_codes(told["exit"]))]
    return "\n".join(parts)


def words(schema, told, kind):
    """Rows for the words of an enum of the API, with what the API and docs/errors.toml say of each."""
    known = dict(zip(schema["enum"], schema["x-enum-descriptions"], strict=True))
    if unknown := set(told[kind]) - set(known):
        raise Stale(f"docs/errors.toml tells of {sorted(unknown)}, which the code does not know")
    found = []
    for word, meaning in known.items():
        cause, remedy = cause_and_remedy(told, kind, word)
        found.append((f"`{word}`", f"{meaning} {cause}".strip(), remedy))
    return found


def cause_and_remedy(told, table, word):
    row = told[table].get(word)
    if row is None or not row.get("remedy"):
        raise Stale(f"docs/errors.toml has no row [{table}.{word}] with a remedy")
    return row.get("cause", ""), row["remedy"]


def http_statuses():
    code = (ROOT / "src/protocol/problem.rs").read_text(encoding="utf-8")
    body = code.partition("fn http_status")[2].partition("\n    }\n")[0]
    found = {}
    for arm in re.finditer(r"((?:Self::\w+\s*\|?\s*)+)=> (\d+)", body):
        for name in re.findall(r"Self::(\w+)", arm[1]):
            found[re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()] = arm[2]
    return found


def exit_codes(told):
    code = (ROOT / "src/protocol/exit_codes.rs").read_text(encoding="utf-8")
    rows = re.findall(r"^pub const \w+: u8 = (\d+);", code, re.MULTILINE)
    if set(told) != set(rows):
        raise Stale("[exit] in docs/errors.toml and src/protocol/exit_codes.rs have different codes")
    return [(number, told[number]) for number in rows]


def api_page():
    document = json.loads((ROOT / "config/openapi.json").read_text(encoding="utf-8"))
    operations = [
        (operation, f"`{method.upper()} {path}`")
        for path, methods in sorted(document["paths"].items())
        for method, operation in methods.items()
    ]
    parts = ["# Routes of the API\n", made_from("config/openapi.json")]
    parts += ["HTTP/1.1 over the daemon's unix socket. Bodies, parameters and answers are in"]
    parts += ["[openapi.json](../../config/openapi.json), which the daemon serves as `/openapi.json`, for each operation with"]
    parts += ["the [codes](errors.md) of the problems that it can have. [A client can be generated from"]
    parts += ["it](../guide/generated-clients.md).\n"]
    for tag in document["tags"]:
        rows = [
            (route, f"`{operation['operationId']}`", operation["summary"], statuses_of(operation))
            for operation, route in operations
            if tag["name"] in operation["tags"]
        ]
        parts += [f"## {tag['name'].capitalize()}\n", f"{tag['description']}.\n"]
        parts += markdown_table(("route", "operation", "does", "statuses"), rows)
    return "\n".join([*parts, *streams(document["components"]["x-event-streams"])])


def statuses_of(operation):
    return " ".join(status for status in operation["responses"] if status != "default")


def streams(told):
    parts = ["## Streams\n", "Server-sent events; their data is JSON, with the schema of that name.\n"]
    for name, stream in told.items():
        parts += [f"### The stream `{name}`\n", f"{stream['description']}\n"]
        rows = [
            (f"`{event}`", f"`{row['data']['$ref'].rpartition('/')[2]}`" if "$ref" in row["data"] else "`{}`",
             row["description"])
            for event, row in stream["events"].items()
        ]  # fmt: skip
        if rows:
            parts += markdown_table(("event", "data", "when"), rows)
    return parts


def commands_page(binary):
    parts = [
        "# Commands\n",
        made_from("`belljar --help`"),
        "`belljar help COMMAND` prints the same, and `make install` makes manual pages of it. The options of\n"
        "`belljar` itself (`--json`, `--color`, `--config`, `--help`) can stand in every command; they are not\n"
        "repeated.\n",
    ]
    for words, text in helps(binary, []):
        parts += [f"## `{' '.join(['belljar', *words])}`\n", "```text", text.rstrip(), "```", ""]
    return "\n".join(parts)


def helps(binary, words):
    environment = {"PATH": os.environ["PATH"], "COLUMNS": COLUMNS, "HOME": "/nonexistent"}
    # The name in the text is that of the first word, whatever the binary's file is called.
    run = subprocess.run(["belljar", *words, "--help"], executable=binary, env=environment, capture_output=True,
                         text=True, timeout=HELP_SECONDS, check=True)  # fmt: skip
    lines = [line.rstrip() for line in run.stdout.splitlines()]
    yield words, "\n".join(own_options(lines) if words else lines)
    listed = run.stdout.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  (\w[\w-]*)", listed, re.MULTILINE):
        if name != "help":
            yield from helps(binary, [*words, name])


def own_options(lines):
    """The help of a command without the options that all commands have."""
    kept, is_own = [], True
    for line in lines:
        option = re.match(r" +(?:-\w, )?--([\w-]+)", line)
        is_own = option[1] not in EVERYWHERE if option else is_own
        if is_own:
            kept.append(line)
    text = "\n".join(kept).rstrip()
    return text.removesuffix("\n\nOptions:").splitlines()


def markdown_table(heads, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(heads), "|" + "---|" * len(heads), *map(line, rows), ""]


def pages(binary=None):
    """The text of each page; that of the commands only if there is a binary to ask."""
    found = {"settings.md": settings_page(), "errors.md": errors_page(), "api.md": api_page()}
    if binary:
        found["commands.md"] = commands_page(binary)
    return {name: text.rstrip() + "\n" for name, text in found.items()}


def stale(found):
    """Names of pages that are not as they would be written."""
    there = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
    return [name for name, text in found.items() if there.get(name) != text]


def main(arguments):
    binary = next((word for word in arguments if word != "--check"), None)
    if binary is None:
        sys.exit(__doc__)
    found = pages(str(Path(binary).resolve()))
    old = stale(found)
    if "--check" in arguments:
        for name in old:
            print(f"docs/reference/{name} is not up to date: run `make docs-reference`", file=sys.stderr)
        return 1 if old else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in old:
        (REFERENCE / name).write_text(found[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
