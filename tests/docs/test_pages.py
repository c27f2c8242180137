"""What can be said of the documentation without running it: links, navigation, references, and the page on the state of
things.

    python3 -m unittest discover -s tests/docs
"""

import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import generate  # noqa: E402
import run  # noqa: E402
from blocks import RUN, BadPage, Command, blocks_of, matches  # noqa: E402

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
GUIDE_LINES = 150
STATES = ("done", "partly", "missing")


def without_code(text):
    """A page without its blocks and its code in lines, whose brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page):
    """The names that links can have behind `#`, as GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def functions(pattern, folders, suffix):
    """Names of all functions in the sources of some folders."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}")]
    return {name for path in paths for name in re.findall(pattern, path.read_text(encoding="utf-8"))}


class Links(unittest.TestCase):
    def test_links_between_pages_resolve(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
                if re.match(r"\w+:", target):
                    continue
                path, _, anchor = target.partition("#")
                with self.subTest(page=str(page.relative_to(ROOT)), link=target):
                    found = (page.parent / path) if path else page
                    self.assertTrue(found.exists(), "it leads nowhere")
                    if anchor and found.suffix == ".md":
                        self.assertIn(anchor, anchors(found))

    def test_every_page_is_in_the_navigation(self):
        text = (DOCS / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
        listed = re.findall(r": (\S+\.md)$", text, re.MULTILINE)
        self.assertEqual(len(listed), len(set(listed)), "a page is listed twice")
        self.assertEqual({str(page.relative_to(ROOT)) for page in PAGES}, set(listed))

    def test_pages_of_the_guide_are_short(self):
        for page in (DOCS / "guide").glob("*.md"):
            lines = len(page.read_text(encoding="utf-8").splitlines())
            self.assertLessEqual(lines, GUIDE_LINES, page.name)


class Blocks(unittest.TestCase):
    def test_every_block_can_be_read(self):
        for page in PAGES:
            for block in blocks_of(page):
                if block.is_run:
                    with self.subTest(page=page.name, line=block.line):
                        self.assertTrue(block.commands())

    def test_a_block_that_is_not_run_says_why(self):
        for page in PAGES:
            for block in blocks_of(page):
                if block.language in RUN and block.not_run is not None:
                    self.assertGreater(len(block.not_run), 3, f"{page.name}:{block.line}")

    def test_blocks_are_told_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(
                "```sh\n# a comment\na \\\n  b\ncat <<'E'\nx\nE\n```\n<!-- not run: no time -->\n```sh\nc\n```\n"
                "<!-- file: x.py -->\n\n```python\n1\n```\n```console\n$ d\n> e\nf …\n$ echo $?\n0\n```\n"
            )
            script, left_out, file, dialogue = blocks_of(page)
            lines = [(one.line, one.text) for one in script.commands()]
            self.assertEqual(lines, [(3, "a \\\n  b\n"), (5, "cat <<'E'\nx\nE\n")])
            self.assertEqual((left_out.not_run, left_out.is_run), ("no time", False))
            self.assertEqual((file.file, file.text, file.is_run), ("x.py", "1\n", False))
            said = [(one.text, one.expected) for one in dialogue.commands()]
            self.assertEqual(said, [("d\ne\n", "f …\n"), ("echo $?\n", "0\n")])
            page.write_text("<!-- not run: why -->\nwords\n")
            with self.assertRaises(BadPage):
                blocks_of(page)

    def test_answers_are_compared_loosely(self):
        self.assertTrue(matches("a …\n", "a b\nc\n"))
        self.assertTrue(matches("", "\n"))
        self.assertTrue(matches("6  \n", "6\n"))
        self.assertFalse(matches("6\n", "66\n"))
        self.assertFalse(matches("", "6\n"))


class Answers(unittest.TestCase):
    def test_a_wrong_exit_code_and_a_wrong_answer_are_noticed(self):
        said, silent = Command(1, "x", "6\n"), Command(1, "x")
        run.check(said, 0, "6\n", "a note\n", asks_for_code=False)
        run.check(said, 0, "", "6\n", asks_for_code=False)
        run.check(said, 3, "6\n", "", asks_for_code=True)
        run.check(silent, 0, "anything", "", asks_for_code=False)
        for command, code, out in ((said, 0, "7\n"), (said, 3, "6\n"), (silent, 1, "")):
            with self.assertRaises(run.Wrong):
                run.check(command, code, out, "", asks_for_code=False)


class Troubleshooting(unittest.TestCase):
    def test_its_words_are_those_of_the_code(self):
        paths = [path for folder in ("src", "sandbox-bootstrap") for path in (ROOT / folder).rglob("*.[rp][sy]")]
        # A long text goes on in the next line, behind a backslash.
        said = "\n".join(re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")) for path in paths)
        page = (DOCS / "guide/troubleshooting.md").read_text(encoding="utf-8")
        quotes = re.findall(r"«([^»]*)»", page)
        self.assertGreater(len(quotes), 30)
        for quote in quotes:
            # What differs from case to case is left out, numbered or named by a letter.
            for part in re.split(r"…|\b[NM]\b|\d+|\(SIGSEGV\)|: Permission denied", quote):
                self.assertIn(part.strip(" :"), said, quote)


class References(unittest.TestCase):
    def test_references_are_as_the_code_says(self):
        self.assertEqual(generate.stale(generate.pages()), [], "run `make docs-reference`")

    def test_a_code_without_a_row_and_a_row_without_a_code_are_noticed(self):
        told = {"code": {"busy": {"remedy": "Wait."}, "idle": {}}}
        self.assertEqual(generate.cause_and_remedy(told, "code", "busy"), ("", "Wait."))
        for word in ("gone", "idle"):
            with self.assertRaises(generate.Stale):
                generate.cause_and_remedy(told, "code", word)


class Status(unittest.TestCase):
    """docs/status.md is true as far as a program can see."""

    def setUp(self):
        text = (DOCS / "status.md").read_text(encoding="utf-8")
        self.lead = text.partition("\n| #")[0]
        rows = re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE)
        self.rows = {int(number): [cell.strip() for cell in rest.split(" | ")] for number, rest in rows}

    def test_rows_are_numbered_and_have_a_state(self):
        self.assertEqual(list(self.rows), list(range(1, len(self.rows) + 1)))
        for number, cells in self.rows.items():
            self.assertEqual(len(cells), 4, f"row {number}")
            self.assertTrue(cells[1].startswith(STATES), f"row {number}: {cells[1]}")

    def test_the_counts_of_the_lead_are_those_of_the_rows(self):
        counted = [sum(cells[1].startswith(state) for cells in self.rows.values()) for state in STATES]
        words = r"the (\d+) things.*?(\d+) are done, (\d+) partly, and (\d+) are missing"
        said = re.search(words, self.lead, re.DOTALL)
        self.assertEqual([int(number) for number in said.groups()], [len(self.rows), *counted])

    def test_files_that_rows_name_are_there(self):
        for number, cells in self.rows.items():
            for path in re.findall(r"`([^`]+)`", cells[2]):
                if "/" in path or path.endswith((".md", "Makefile")):
                    self.assertTrue((ROOT / path).exists(), f"row {number}: {path}")

    def test_tests_that_rows_name_are_there(self):
        rust = functions(r"\bfn (\w+)", ("src", "tests", "sandbox-bootstrap/guardian/src"), ".rs")
        python = functions(r"\bdef (test_\w+)", ("tests/kernel", "tests/docs"), ".py")
        for number, cells in self.rows.items():
            names = re.findall(r"`([^`]+)`", cells[3])
            if cells[1].startswith("done"):
                self.assertTrue(names, f"row {number} is done, and no test looks at it")
            for name in names:
                self.assertIn(name, python if name.startswith("test_") else rust, f"row {number}")


if __name__ == "__main__":
    unittest.main()
