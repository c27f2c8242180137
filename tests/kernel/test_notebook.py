"""Notebook habits in cells: `!ls`, `%pip`, `%%time`, `name?`. Valid Python is left alone."""

import os
import signal
import time
import unittest

from harness import KernelTest, ToolProblem, is_alive

EXEC = {
    "name": "exec_code",
    "description": "Runs code.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    "local": True,
}


class Commands(KernelTest):
    def fails(self, code, containing, kind=None, **options):
        run = self.kernel.run(code, **options)
        self.assertEqual(run.end["status"], "failure", run.end)
        self.assertIn(containing, run.end["exception"]["traceback"])
        if kind is not None:
            self.assertEqual(run.end["exception"]["type"], kind)
        return run

    def test_snippets_as_models_write_them(self):
        with open(os.path.join(self.kernel.workspace, "data.csv"), "w", encoding="utf-8") as file:
            file.write("name,value\na,1\nb,2\n")
        for code, output, value in (
            ("!ls", "data.csv\n", None),
            ("!echo hello world", "hello world\n", None),
            ("!head -n 1 data.csv && wc -l < data.csv", "name,value\n3\n", None),
            ("files = !ls *.csv\nprint(files)", "['data.csv']\n", None),
            ("files = !ls\nfiles.n, files.s, len(files)", "", "('data.csv', 'data.csv', 1)"),
            ("lines = !cat data.csv\nfor line in lines[1:]:\n    print(line.split(',')[0])", "a\nb\n", None),
            ("name = 'data.csv'\n!cat {name} | tail -1", "b,2\n", None),
            ("!echo $name {name.upper()} {len(files) + 1}", "data.csv DATA.CSV 2\n", None),
            ("import os\nos.environ['GREETING'] = 'hi'\n!echo $GREETING", "hi\n", None),
            ("!awk -F, '{print $2}' data.csv", "value\n1\n2\n", None),
            ("!mkdir -p out/{a,b} && ls out", "a\nb\n", None),
            ("for i in range(2):\n    !echo number {i}\n", "number 0\nnumber 1\n", None),
            ("if True:\n    !echo yes\nelse:\n    !echo no", "yes\n", None),
            ("!false\n_exit_code", "", "1"),
            ("%matplotlib inline\nx = 5\nx * 2", "", "10"),
            ("%matplotlib\nprint('ok')", "ok\n", None),
            ("%env MODE=test\nimport os\nos.environ['MODE']", "env: MODE=test\n", "'test'"),
            ("%env MODE", "", "'test'"),
            ("def shout(word):\n    !echo {word}!\n\nshout('hey')", "hey!\n", None),
            ("total = !expr 40 + 2\nint(total[0])", "", "42"),
            ("!python3 -c 'print(6 * 7)'", "42\n", None),
            ("!printf 'a\\nb\\n' > notes.txt\n!cat notes.txt\nopen('notes.txt').read()", "a\nb\n", "'a\\nb\\n'"),
            ("!echo one \\\n  two", "one two\n", None),
            ("# list\n!echo a  # a comment\nprint('b')", "a\nb\n", None),
            ("!find . -name '*.txt' -exec basename {} \\;", "notes.txt\n", None),
            ("!echo '{\"key\": 1}'", '{"key": 1}\n', None),
            ("async def f(): return 3\nx = await f()\n!echo {x}\nx", "3\n", "3"),
            ("%%time\nx = 5", None, None),
            ("%%time\ntotal = sum(range(10))\ntotal", None, "45"),
            ("%time sum(range(10))", None, "45"),
            ("result = %time sum(range(10))\nresult", None, "45"),
            ("%time result = max([1, 2])\nresult", None, "2"),
            ("%time await f()", None, "3"),
            ("%timeit -n 10 -r 2 sum(range(10))", None, None),
            ("%%timeit -n 10 -r 2 xs = list(range(9))\nsum(xs)\n", None, None),
            ("%%bash\nfor i in 1 2; do\n  echo $i {a,b}\ndone", "1 a b\n2 a b\n", None),
            ("%%sh\nexit 3", "", None),
            ("_exit_code", "", "3"),
            ("%%writefile made.py\nimport sys\nmade = sys.argv[1:]\nprint('!x')", "Writing made.py\n", None),
            ("%run made.py a 'b c'\nmade", "!x\n", "['a', 'b c']"),
            ("where = 'made.py'\n%ls {where}", "made.py\n", None),
            ("%%writefile -a made.py\nmore = 1\n", "Appending to made.py\n", None),
            ("%run made\nmore", "!x\n", "1"),
            ("%%writefile made.py\n\n", "Overwriting made.py\n", None),
            ("here = %pwd\nimport os\nhere == os.getcwd()", "", "True"),
            ("%%capture seen\nprint('a')\n!echo b\nimport sys\nprint('c', file=sys.stderr)\n5", "", None),
            ("seen.stdout, seen.stderr, str(seen)", "", "('a\\nb\\n', 'c\\n', 'a\\nb\\n')"),
            ("%%capture\nprint('hidden')", "", None),
            ("%%timeit -n 2 -r 1\n!true", None, None),
            ("word = 'x'\n%timeit -n 1 -r 1 !echo {word}", None, None),
            ("len?", None, None),
            ("?shout", None, None),
            ("shout??", None, None),
        ):
            with self.subTest(code):
                run = self.run_ok(code)
                if output is not None:
                    self.assertEqual(run.both, output)
                self.assertEqual(run.value, value)

    def test_times_are_told(self):
        self.assertRegex(self.run_ok("%%time\nsum(range(10))").stdout, r"\ACPU times: user .*\nWall time: .* [nµm]?s\n\Z")
        self.assertRegex(self.run_ok("%time 1;").stdout, r"\ACPU times.*\nWall time: .*\n\Z")
        timed = self.run_ok("n = 0\n%timeit -n 10 -r 2 globals().update(n=n + 1)\nprint(n)").stdout
        self.assertRegex(timed, r"\A[\d.e+]+ [nµm]?s ± .* per loop \(mean ± std\. dev\. of 2 runs, 10 loops each\)\n20\n\Z")
        run = self.kernel.run("%%time\n1 / 0")
        self.assertEqual(run.end["exception"]["type"], "ZeroDivisionError")
        self.assertIn("Wall time", run.stdout)

    def test_help_tells_what_a_thing_is(self):
        self.run_ok("def area(r, pi=3):\n    'The area of a circle.'\n    return r * r * pi")
        shown = self.run_ok("area?").stdout
        for part in ("Signature: area(r, pi=3)", "Type:      function", "The area of a circle."):
            self.assertIn(part, shown)
        self.assertIn("return r * r * pi", self.run_ok("area??").stdout)
        self.assertIn("NameError", self.run_ok("nothing_of_that_name?").stdout)

    def test_output_comes_while_the_command_runs_and_in_order(self):
        run = self.kernel.submit("import sys\nprint('before', file=sys.stderr)\n!echo ready; sleep 60")
        self.kernel.wait_for_output(run, "before\nready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
        code = "print(1)\n!echo 2; echo 3 >&2\nprint(4)\n!echo 5\nimport sys\nprint(6, file=sys.stderr)"
        for _ in range(5):
            lines = self.run_ok(code).both.split()
            # A command's own two streams are two pipes, between which there is no order.
            self.assertEqual((lines[0], sorted(lines[1:3]), lines[3:]), ("1", ["2", "3"], ["4", "5", "6"]))

    def test_output_of_commands_and_of_python_keeps_its_order(self):
        code = "import sys\nfor i in range(30):\n    print(i, file=sys.stderr)\n    !echo {i}a; echo {i}b\n    print(i, file=sys.stderr)"
        wanted = "".join(f"{i}\n{i}a\n{i}b\n{i}\n" for i in range(30))
        self.assertEqual(self.run_ok(code).both, wanted)

    def test_an_interrupt_ends_the_command_and_all_that_it_started(self):
        written = os.path.join(self.kernel.workspace, "pids")
        for start in ("!", "x = !"):
            command = "sleep 61 & echo $! $$ > pids.new; mv pids.new pids; trap '' INT; sleep 62; sleep 63"
            run = self.kernel.submit(f"y = 5\n{start}{command}")
            self.wait_until(lambda: os.path.exists(written), "the command runs")
            with open(written, encoding="ascii") as file:
                pids = [int(word) for word in file.read().split()]
            os.unlink(written)
            self.kernel.send(type="interrupt", cell=run.cell)
            self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")
            self.assertEqual(self.value("y"), "5")
            for pid in pids:
                self.wait_until(lambda pid=pid: not is_alive(pid), f"process {pid} ends")

    def test_an_interrupt_while_a_command_is_being_started_ends_it_too(self):
        # The start takes long, and the interrupt comes when the command already runs.
        self.run_ok(
            "import os, signal, subprocess\n"
            "class Slow(subprocess.Popen):\n"
            "    def __init__(self, *arguments, **options):\n"
            "        super().__init__(*arguments, **options)\n"
            "        started.append(self.pid)\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "started, subprocess.Popen = [], Slow"
        )
        self.assertEqual(self.kernel.run("!sleep 66").end["status"], "interrupted")
        pid = int(self.value("started[0]"))
        self.wait_until(lambda: not is_alive(pid), "the command ends")

    def test_nothing_of_a_command_is_left_when_it_ends(self):
        run = self.run_ok("!sleep 63 & echo $!\n")
        pid = int(run.stdout)
        self.wait_until(lambda: not is_alive(pid), "the rest of the command ends")
        self.assertEqual(run.end["live"], {"threads": 0, "tasks": 0, "children": 0})
        self.fails("!sleep 64 &", "cannot stay in the background", "NotebookError")
        run = self.kernel.submit("!echo $$; sleep 65; echo")
        self.kernel.wait_for_output(run, "\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)  # as when its time is over
        self.kernel.finish(run)
        self.wait_until(lambda: not is_alive(int(run.stdout)), "the command ends with its cell")

    def test_exit_codes_are_kept(self):
        self.assertEqual(self.value("!exit 7\n_exit_code"), "7")
        self.assertEqual(self.value("!kill -9 $$\n_exit_code"), f"-{int(signal.SIGKILL)}")
        self.assertEqual(self.value("x = !echo a; exit 3\nx, _exit_code"), "(['a'], 3)")

    def test_lines_are_a_list_that_can_be_stored(self):
        self.run_ok("import pickle\nx = !echo a; echo b\ny = pickle.loads(pickle.dumps(x))")
        self.assertEqual(self.value("type(y), y == x, x.n, x.s, x.l"), "(<class 'list'>, True, 'a\\nb', 'a b', ['a', 'b'])")

    def test_tracebacks_point_to_the_line_of_the_command(self):
        shown = self.fails("x = 1\n\n%cd no/such/folder\n", "FileNotFoundError").end["exception"]["traceback"]
        self.assertIn('File "<cell 1>", line 3', shown)
        self.assertIn("    %cd no/such/folder\n", shown)
        self.assertNotIn("__notebook__", shown)
        shown = self.fails("!ls\n%time 1 / 0", "ZeroDivisionError").end["exception"]["traceback"]
        self.assertIn('line 2, in <module>\n    %time 1 / 0\n', shown)
        self.assertNotIn("belljar_kernel", shown)
        shown = self.fails("%%time\nx = 1\ny = (\n  x / 0)", "ZeroDivisionError").end["exception"]["traceback"]
        self.assertIn("line 4", shown)
        shown = self.fails("%%timeit\nx = 1\nx / 0", "ZeroDivisionError").end["exception"]["traceback"]
        self.assertIn("line 3", shown)
        self.assertIn("x / 0", shown)

    def test_an_unknown_command_is_an_error_and_nothing_runs(self):
        for code, why in (
            ("%%bash -x\nls", "`%%bash` stands alone on its line"),
            ("x = 1\n%%writefile a\nb", "`%%writefile` has to be the first line of a cell"),
            ("%%capture --no-stderr\n1", "`%%capture` takes a name"),
            ("%%timeit\nawait f()", "'await' outside"),
            ("%%timeit\n!ls\nreturn", "'return' outside"),
        ):
            run = self.fails(code, why, "SyntaxError")
            self.assertEqual(run.both, "")
        self.fails("%%writefile -a\nx", "needs the path of a file", "NotebookError")
        self.fails("%run", "needs the path of a script", "NotebookError")
        self.fails("%%bash\nsleep 5 &", "cannot stay in the background", "NotebookError")
        run = self.fails("print(1)\n%load_ext autoreload", "there is no notebook command `%load_ext` here; there are ")
        self.assertEqual((run.end["reason"], run.both), ("syntax", ""))

    def test_later_cells_begin_where_cd_went(self):
        os.makedirs(os.path.join(self.kernel.workspace, "sub", "a b"))
        workspace = os.path.realpath(self.kernel.workspace)
        self.assertEqual(self.run_ok("%cd sub").stdout, workspace + "/sub\n")
        self.assertEqual(self.run_ok("!pwd").stdout, workspace + "/sub\n")
        # Another process takes over, which is a copy of the one that ended.
        self.kernel.run("import os; os._exit(1)")
        self.assertEqual(self.run_ok("!pwd", mode="fork").stdout, workspace + "/sub\n")
        self.run_ok("%cd 'a b'")
        self.kernel.send(type="undo", request=8, cells=1)
        self.kernel.expect("undone")
        self.assertEqual(self.run_ok("!pwd").stdout, workspace + "/sub\n")
        self.run_ok("%cd -\n%cd -\nimport os\nfolder = 'a b'\n%cd {folder}")
        self.assertEqual(self.run_ok("!pwd").stdout, workspace + "/sub/a b\n")
        self.assertEqual(self.run_ok("%cd").stdout, workspace + "\n")
        self.run_ok("%cd sub")
        self.kernel.send(type="reset", request=1)
        self.kernel.expect("reset_done")
        self.assertEqual(self.run_ok("!pwd").stdout, workspace + "\n")

    def test_code_that_runs_nested_has_the_output_of_its_commands(self):
        self.kernel.configure(tools=[EXEC])
        self.assertEqual(self.value("exec_code('!echo a; echo b >&2\\nx = !echo c\\nx')"), "\"a\\nb\\n['c']\\n\"")
        self.assertEqual(self.value("exec_code('%nope')")[:40], "'  File \"<cell 2.1>\", line 1\\n    %nope\\nS"[:40])

    def test_redirected_output_is_redirected(self):
        code = "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    !echo hidden\nout.getvalue()"
        run = self.run_ok(code)
        self.assertEqual((run.both, run.value), ("", "'hidden\\n'"))

    def test_the_restricted_policy_refuses_commands(self):
        for code in ("!ls", "x = !ls", "%pip install x", "%time 1", "%%time\n1", "%timeit 1", "%cd /", "%env", "len?", "if 1:\n  !ls"):
            run = self.kernel.run(code, restricted=True)
            self.assertEqual((run.end["status"], run.end["reason"]), ("failure", "policy"), (code, run.end))
            self.assertIn("does not allow notebook commands", run.end["exception"]["value"])
            self.assertEqual(run.both, "")
        run = self.kernel.run("__notebook__.run('ls')", restricted=True)
        self.assertEqual(run.end["reason"], "policy")
        self.assertEqual(self.kernel.run("!ls", restricted=True, expression=True).end["reason"], "policy")

    def test_expressions_and_forks_know_commands(self):
        run = self.kernel.run("  %env HOME", expression=True)
        self.assertEqual((run.end["status"], run.value), ("success", "'/tmp'"))
        run = self.run_ok("x = !echo 1\nx", mode="fork")
        self.assertEqual(run.value, "['1']")
        self.assertEqual(self.value("'x' in globals()"), "False")

    def test_a_missing_pip_is_told_in_plain_words(self):
        words = "this sandbox has no `pip`; `belljar install -s SESSION NAME` installs a package into the session"
        self.run_ok("import os\nos.environ['PATH'] = '/nowhere'")
        self.fails("%pip install polars", words, "NotebookError")
        self.assertIn(words, self.run_ok("!pip install polars").stderr)

    def test_pip_is_the_program_of_that_name(self):
        tool = os.path.join(self.kernel.workspace, "pip")
        with open(tool, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\necho "pip: $*"\necho "value = 7" > made_by_pip.py\n')
        os.chmod(tool, 0o755)
        self.run_ok("import os\nos.environ['PATH'] = os.getcwd() + ':' + os.environ['PATH']")
        run = self.run_ok("%pip install -q 'polars<2' numpy\nimport made_by_pip\nmade_by_pip.value")
        self.assertEqual((run.stdout, run.value), ("pip: install -q polars<2 numpy\n", "7"))
        self.assertEqual(self.run_ok("!pip list").stdout, "pip: list\n")

    def test_pip_install_is_done_by_the_host(self):
        self.offer_installer()
        quiet = ("%pip install -q polars", "!pip install --quiet polars", "!python3 -m pip install -q polars")
        for code in quiet:
            self.assertEqual(self.run_ok(code).stdout, "", code)
        loud = (
            ("%pip install 'a[x]<2' b>=1  # fast", ["a[x]<2", "b>=1"]),
            ("name = 'a'\n!pip3 install {name} \"b>=1\"", ["a", "b>=1"]),
            ("!uv pip install --no-cache-dir a", ["a"]),
        )
        for code, packages in loud:
            self.assertEqual(self.run_ok(code).stdout, f"installed: {', '.join(packages)}\n", code)
        self.assertEqual(self.value("x = !pip install a\nx, _exit_code"), "(['installed: a'], 0)")
        asked = [call["arguments"]["packages"] for call in self.kernel.seen_calls]
        self.assertEqual(asked, [["polars"]] * 3 + [packages for _, packages in loud] + [["a"]])

    def test_what_is_no_plain_pip_install_is_no_matter_of_the_host(self):
        self.offer_installer()
        for option in ("--index-url=https://localhost", "-e .", "--target=x"):
            self.fails(f"%pip install {option}", f"has no option `{option.split()[0]}` here", "NotebookError")
            self.fails(f"!pip install {option}", f"has no option `{option.split()[0]}` here", "NotebookError")
        self.fails("%pip install", "needs the name of a package", "NotebookError")
        self.fails("%pip install 'x", "cannot be read", "NotebookError")
        for package, what in (("https://localhost/x.whl", "a URL"), ("'a @ file:x'", "a URL"), ("./a", "a path"), ("a.whl", "a path")):
            self.fails(f"%pip install b {package}", f"cannot be installed: it is {what}", "NotebookError")
        self.run_ok("import os\nos.environ['PATH'] = '/nowhere'")
        self.fails("%pip download x", "has no `pip`", "NotebookError")
        for code in ("!pip install x; exit 3", "!echo pip install x", "!pip list", "!pip install x | cat"):
            self.run_ok(code)
        self.assertEqual(self.kernel.seen_calls, [])

    def test_a_file_of_requirements_names_packages_only(self):
        self.offer_installer()
        self.run_ok("open('list.txt', 'w').write('# all\\na>=1  # why\\n\\nb\\n')\nopen('bad.txt', 'w').write('-i https://x\\n')")
        self.assertEqual(self.run_ok("%pip install -r list.txt c").stdout, "installed: a>=1, b, c\n")
        self.assertEqual(self.run_ok("!pip install --requirement=list.txt").stdout, "installed: a>=1, b\n")
        self.fails("%pip install -r bad.txt", "has no option `-i` here", "NotebookError")
        self.fails("%pip install -r nowhere.txt", "`nowhere.txt` cannot be read", "NotebookError")

    def test_a_refused_installation_is_raised(self):
        def refuse(packages):
            raise ToolProblem("rejected", f"not {packages[0]}")

        self.offer_installer(refuse)
        self.fails("%pip install polars", "not polars", "tools.ToolError")
        self.fails("!pip install polars", "not polars", "tools.ToolError")

    def offer_installer(self, install=lambda packages: packages):
        packages = {"type": "array", "items": {"type": "string"}}
        parameters = {"type": "object", "properties": {"packages": packages}, "required": ["packages"]}
        self.kernel.tools["install_packages"] = install
        tool = {"name": "install_packages", "description": "", "parameters": parameters, "output": packages}
        self.kernel.configure(tools=[tool])

    def test_an_image_without_a_shell_is_told(self):
        self.run_ok("import os\nos.access = lambda *_: False")
        self.fails("!ls", "has no shell", "NotebookError")

    def test_a_function_of_an_earlier_cell_finds_its_commands(self):
        self.run_ok("class A:\n    def show(self, word):\n        x = !echo {word} {self.n}\n        return x\n    n = 3")
        self.assertEqual(self.value("A().show('a')"), "['a 3']")


if __name__ == "__main__":
    unittest.main()


class FilledIn(KernelTest):
    def test_what_belongs_to_the_shell_is_left_to_it(self):
        self.run_ok("x = 5")
        for command, printed in (
            ("echo a b | awk '{print}'", "a b"),
            ("echo 123 | grep -oE '[0-9]{3}'", "123"),
            ("echo \"it's $x, isn't it\"", "it's 5, isn't it"),
            ("echo 'a {x} $x'", "a 5 $x"),
            ("echo {x} $x {x + 1}", "5 5 6"),
            ("echo {x:03d} {'ab'[0:1]} {x!r:>3}", "005 a 5"),
            ("echo {nowhere:.2f}", "{nowhere:.2f}"),
        ):
            self.assertEqual(self.run_ok(f"!{command}").both, printed + "\n", command)

    def test_lines_are_there_when_the_command_has_ended(self):
        started = time.monotonic()
        self.assertEqual(self.value("found = !sleep 60 & echo hi\nlist(found)"), "['hi']")
        self.assertLess(time.monotonic() - started, 30)
