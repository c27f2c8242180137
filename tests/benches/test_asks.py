"""What the benchmark of models is made of: its tasks, how answers are judged, what is counted, and the server that
plays a model. Nothing here needs Belljar."""

import collections
import contextlib
import io
import json
import tempfile
import unittest
import urllib.request
from pathlib import Path

import bench_path  # noqa: F401

import models
from asks import belljar_asks, code_agent, replies, scripted, table, tasks

TWENTY, HARDER = tasks.load("tasks"), tasks.load("harder")


def task(answer):
    return tasks.Task("t", "k", "What?", answer, "", {})


def outcome(**more):
    usual = {"solved": True, "answer": "1", "ended": "answered", "why": None, "replies": 2, "valid": 2, "tokens_in": 10,
             "tokens_out": 5, "seconds": 1.0}  # fmt: skip
    return usual | more


class Tasks(unittest.TestCase):
    def test_there_are_twenty_of_five_kinds_and_eight_for_every_dialect(self):
        kinds = collections.Counter(task.kind for task in TWENTY)
        self.assertEqual(kinds, {"sum": 4, "date": 4, "string": 4, "table": 4, "file": 4})
        eight = [task for task in TWENTY if task.every_dialect]
        self.assertEqual((len(eight), {task.kind for task in eight}), (8, set(kinds)))
        names = [task.name for task in TWENTY + HARDER]
        self.assertEqual(len(set(names)), len(names))

    def test_solutions_give_the_answers(self):
        for each in TWENTY + HARDER:
            with self.subTest(task=each.name), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                each.write_files(".")
                namespace = {}
                exec(each.solution, namespace)
                self.assertEqual(str(namespace["answer"]), each.answer)
                self.assertTrue(tasks.is_right(each, f"The answer is {each.answer}."))

    def test_no_answer_stands_in_what_is_asked(self):
        for each in TWENTY + HARDER:
            self.assertFalse(tasks.is_right(each, each.text), each.name)
            for content in each.files.values():
                self.assertNotIn(each.answer, content, each.name)


class Answers(unittest.TestCase):
    def test_a_number_has_to_be_the_last_one(self):
        for said in ("1894", " 1,894 ", "The sum is **1894**.", "230 + 8 + … = 1894", "1894.0"):
            self.assertTrue(tasks.is_right(task("1894"), said), said)
        for said in ("", "11894", "18940", "1894 of 6 files", "-1894", "1894.5", "x" * 2000 + " 1894"):
            self.assertFalse(tasks.is_right(task("1894"), said), said)
        self.assertTrue(tasks.is_right(task("3388.45"), "It has 3,388.45 in it."))

    def test_a_text_has_to_stand_there_as_it_is(self):
        for said in ("RJ85", "'RJ85'", "It is `RJ85`.", "RJ85\n"):
            self.assertTrue(tasks.is_right(task("RJ85"), said), said)
        for said in ("rj85", "RJ852", "xRJ85", "RJ-85"):
            self.assertFalse(tasks.is_right(task("RJ85"), said), said)
        self.assertTrue(tasks.is_right(task("a:3,b:2"), "a:3, b:2"))
        self.assertFalse(tasks.is_right(task("a:3,b:2"), "a:3,b:2,c:1") and tasks.is_right(task("7/35"), "7/351"))


def replied():
    return {"type": "model_replied"}


def noted(note):
    return {"type": "ask_noted", "note": note}


def finished(reason):
    return {"type": "cell_finished", "result": {"reason": reason}}


class ValidReplies(unittest.TestCase):
    def check(self, events, count, valid):
        self.assertEqual(replies.of_events(events), replies.Replies(count, valid))

    def test_each_reply_is_judged_by_what_follows_it(self):
        unusable = noted("the reply could not be used: there is no JSON object in it")
        self.check([], 0, 0)
        self.check([replied(), finished("completed"), replied()], 2, 2)
        self.check([replied(), unusable, replied(), finished("exception"), replied()], 3, 2)
        self.check([replied(), finished("syntax"), finished("syntax"), replied()], 2, 1)

    def test_calls_that_are_no_calls_are_not_valid(self):
        failed = "the call of `x` was not made: The tool call failed: "
        for why in (
            "there is no tool `x`. Known tools: y.",
            "the arguments are no valid JSON object",
            "the arguments do",
        ):
            self.check([replied(), noted(failed + why)], 1, 0)
        self.check([replied(), noted("the call of `x` was not made: Python is switched off")], 1, 1)

    def test_the_reply_that_ends_an_ask_as_malformed_counts(self):
        self.check([replied(), {"type": "ask_finished", "end": {"outcome": "malformed"}}], 1, 0)
        self.check([replied(), {"type": "ask_finished", "end": {"outcome": "time_limit"}}], 1, 1)


class Tables(unittest.TestCase):
    RESULTS = {
        "a": {"t": outcome(), "u": outcome(solved=False, ended="time_limit", valid=1, seconds=90.0)},
        "b": {"t": outcome(tokens_in=11), "u": outcome(solved=False)},
        "c": {"t": outcome(solved=False), "u": outcome(solved=False)},
    }

    def test_the_summary_adds_up(self):
        lines = table.summary(self.RESULTS).splitlines()
        self.assertEqual(lines[2], "| a | 2 | 1 | 3 of 4 (75 %) | 20 | 10 | 91 s | 45.5 s |")
        self.assertIn("| none |", table.summary({"d": {"t": outcome(replies=0, valid=0)}}))

    def test_tasks_are_marked(self):
        made = [tasks.Task(name, "sum", "", "1", "", {}) for name in "tu"]
        self.assertEqual(table.by_task(made, self.RESULTS).splitlines()[3], "| u | sum | late 90 s | ✗ 1 s | ✗ 1 s |")

    def test_the_best_solved_most_and_then_needed_the_fewest_tokens(self):
        self.assertEqual(table.best(self.RESULTS), "a")
        self.assertEqual(table.best({"x": {"t": outcome(tokens_in=11)}, "y": {"t": outcome()}}), "y")


class Kept(unittest.TestCase):
    def test_a_run_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            path = Path(folder) / "below/results.json"
            models.Results(path, {"url": "u"}, afresh=False).settle("a", TWENTY[0], outcome)
            again = models.Results(path, {"url": "u"}, afresh=False)
            again.settle("a", TWENTY[0], lambda: self.fail("it was done before"))
            again.settle("a", TWENTY[1], outcome)
            self.assertEqual(again.of(["a", "b"], TWENTY[1:]), {"a": {TWENTY[1].name: outcome()}, "b": {}})
            with self.assertRaisesRegex(SystemExit, "another server"):
                models.Results(path, {"url": "other"}, afresh=False)
            self.assertEqual(models.Results(path, {"url": "other"}, afresh=True).who, {})


SYSTEM = {"next_step": '{"current_state": …}', "json_action": "provide_answer", "xml_tags": "<execution-code>",
          "code_agent": "<code> and </code>"}  # fmt: skip


class ScriptedServer(unittest.TestCase):
    def ask(self, server, form, *turns, stream=False):
        """The message that comes back, or the status and the problem."""
        messages = [{"role": "system", "content": SYSTEM.get(form, "")}]
        messages += [{"role": role, "content": text} for role, text in turns]
        body = {"model": "m", "messages": messages, "stream": stream}
        if form == "tool_calls":
            body["tools"] = [{}]
        request = urllib.request.Request(f"{server.url}/chat/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["error"]["message"]
        if stream:
            return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        return json.loads(text)["choices"][0]["message"]

    def test_every_form_has_code_first_and_then_what_it_printed(self):
        asked = ("user", TWENTY[0].text)
        with scripted.serving(scripted.Script(TWENTY)) as server:
            for form in scripted.FORMS:
                first = json.dumps(self.ask(server, form, asked))
                self.assertIn("ANSWER[", first)
                then = self.ask(server, form, asked, ("assistant", "…"), ("user", "ANSWER[42]"))
                self.assertIn("42", then["content"])
                self.assertNotIn("tool_calls", then)
            self.assertEqual(len(server.requests), 2 * len(scripted.FORMS))

    def test_a_stream_ends_with_what_it_cost(self):
        with scripted.serving(scripted.Script(TWENTY)) as server:
            chunks = self.ask(server, "tool_calls", ("user", TWENTY[0].text), stream=True)
        self.assertEqual(chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"], 0)
        self.assertEqual(chunks[1]["choices"][0]["finish_reason"], "tool_calls")
        self.assertGreater(chunks[-1]["usage"]["prompt_tokens"], 0)

    def test_what_the_script_does_not_know_is_refused(self):
        asked, done = ("user", TWENTY[0].text), ("assistant", "…")
        with scripted.serving(scripted.Script(TWENTY)) as server:
            for form, turns, problem in (
                ("xml_tags", [("user", "Hello")], "none of the tasks"),
                ("none", [asked], "no dialect"),
                ("xml_tags", [asked, done, ("user", "an error")], "nothing was printed"),
                ("xml_tags", [asked, done, done], "ends after 2 replies"),
            ):
                status, said = self.ask(server, form, *turns)
                self.assertEqual(status, 400)
                self.assertIn(problem, said)


class Settings(unittest.TestCase):
    SERVER = models.Server("http://127.0.0.1:1/v1", "m", "llama.cpp", 0.0, 512, 8192, "KEY", "bubblewrap")

    def test_the_daemon_asks_as_the_flags_say(self):
        config = belljar_asks.config(self.SERVER)
        for line in ('provider = "llama.cpp"', "max_tokens = 512", "context_tokens = 8192", 'key_variable = "KEY"',
                     'backend = "bubblewrap"', "temperature = 0.0"):  # fmt: skip
            self.assertIn(f"\n{line}\n", config)

    def test_the_code_of_code_agent_can_write_only_its_folder(self):
        words = code_agent.jail("/tmp/of-a-task", "/tmp/env/bin/python")
        writable = [words[place + 1] for place, word in enumerate(words) if word == "--bind"]
        self.assertEqual(writable, ["/tmp/of-a-task"])
        self.assertIn("--clearenv", words)

    def test_a_code_agent_that_had_to_be_killed_was_late(self):
        ended = code_agent.outcome(TWENTY[0], None, 90)
        self.assertEqual((ended["solved"], ended["ended"], ended["seconds"]), (False, "time_limit", 90.0))
        self.assertEqual(ended.keys(), outcome().keys())


if __name__ == "__main__":
    unittest.main()
