"""The tasks, and whether an answer is right."""

import dataclasses
import decimal
import pathlib
import re
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
# Every task ends with this, so that no agent is told more than another.
ENDING = "Answer with the result alone."
# A longer text is no answer to any of these tasks.
ANSWER_CHARACTERS = 1_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    kind: str
    request: str
    answer: str
    # Python that sets `answer`.
    solution: str
    files: dict
    every_dialect: bool = False

    @property
    def text(self):
        """What is asked; the files are said to be where the code runs."""
        where = " The files are in the working directory." if self.files else ""
        return f"{self.request}{where} {ENDING}"

    def write_files(self, folder):
        for name, content in self.files.items():
            (pathlib.Path(folder) / name).write_text(content, encoding="utf-8", newline="")


def load(name):
    """The tasks of a file beside this one: `tasks` or `harder`."""
    with open(HERE / f"{name}.toml", "rb") as file:
        return [Task(**{"files": {}, **task}) for task in tomllib.load(file)["task"]]


def is_right(task, said):
    """Whether a text answers the task.

    A number has to be the last one of the text; thousands may be separated by commas. Anything else has to stand in the
    text as it is, between characters that cannot belong to it. A sentence around it does no harm, since no answer
    stands in what was asked.
    """
    said = str(said).strip()
    if not said or len(said) > ANSWER_CHARACTERS:
        return False
    if NUMBER.fullmatch(task.answer):
        numbers = NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3}\b)", "", said))
        return bool(numbers) and decimal.Decimal(numbers[-1]) == decimal.Decimal(task.answer)
    # Models like to set a blank behind a comma.
    tight, wanted = (re.sub(r",\s+", ",", text) for text in (said, task.answer))
    return re.search(rf"(?<![\w.=:/+-]){re.escape(wanted)}(?![\w=:/+-])", tight) is not None
