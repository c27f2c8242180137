"""The parser behind notebook habits: which lines are commands, what they become, and that Python keeps its meaning."""

import ast
import glob
import os
import random
import sys
import sysconfig
import time
import unittest
import warnings

from harness import KERNEL

sys.path.insert(0, KERNEL)
from belljar_kernel import names, notebook  # noqa: E402

FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def python(source, mode="exec"):
    """The Python that a source stands for, without blanks at its ends."""
    return ast.unparse(notebook.parse(source, "<cell 1>", mode))


class TheParser(unittest.TestCase):
    def test_valid_python_keeps_its_tree(self):
        sources = glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py"))
        self.assertGreater(len(sources), 100)
        for path in sources:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                source = file.read()
            try:
                wanted = compile(source, path, "exec", FLAGS, dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            found = notebook.parse(source, path, "exec")
            self.assertEqual(ast.dump(found, include_attributes=True), ast.dump(wanted, include_attributes=True), path)

    def test_python_beside_a_command_keeps_its_tree_and_its_lines(self):
        """The same files, refused by Python because of their last line: nothing in them may be taken for a command."""
        for path in sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py"))):
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                source = file.read()
            try:
                wanted = compile(source, path, "exec", FLAGS, dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            found = notebook.parse(source + "\n!last\n", path, "exec")
            last = found.body.pop()
            self.assertEqual(ast.unparse(last), "__notebook__.run('last')", path)
            self.assertEqual(ast.dump(found, include_attributes=True), ast.dump(wanted, include_attributes=True), path)

    def test_text_comments_brackets_and_continued_lines_are_never_commands(self):
        for source in (
            "s = '''\n!ls\n%cd x\nx?\n'''",
            's = """\n!ls\n"""',
            "s = 'a\\\n!ls'",
            "s = 'it\\'s'\n# !ls ' \"\n# x?",
            "x = (8\n% 5)",
            "x = 8 \\\n% 5",
            "x = [\n8\n%5\n]",
            "x = a != b",
            "s = r'\\'\n",
            "s = rb'\\\\'\n",
            "f'''{\nx\n!r}'''",
            "f'{x!r:>{w}} {{!ls}}'\n",
            "f'{x:%Y-%m-%d}'\n",
            "f'{{'\nx = {1: 2}\n",
            "print('!ls', \"%cd\", '''x?''')\n",
            "if x: y = 8 % 5\n",
            "lambda: 8 % 5\n",
            "d = {'a': '!ls',\n     'b': b'%d'}\n",
        ):
            with self.subTest(source):
                try:
                    wanted = ast.dump(compile(source, "c", "exec", FLAGS, dont_inherit=True), include_attributes=True)
                except SyntaxError:
                    continue  # not of this version of Python
                found = notebook.parse(source + "\n!last", "c", "exec")
                self.assertEqual(ast.unparse(found.body.pop()), "__notebook__.run('last')")
                self.assertEqual(ast.dump(found, include_attributes=True), wanted)

    @unittest.skipIf(sys.version_info < (3, 12), "formatted text that is nested like this came with Python 3.12")
    def test_quotes_in_fields_of_formatted_text_do_not_hide_commands(self):
        self.assertEqual(python('print(f"{d["#"]}", (\n1))\n!ls').splitlines()[-1], "__notebook__.run('ls')")
        self.assertEqual(python('f"""{f"{x}"}\n!no"""\n!ls').splitlines()[-1], "__notebook__.run('ls')")

    def test_commands_become_calls(self):
        for source, wanted in (
            ("!ls -la 'a b'", "__notebook__.run(\"ls -la 'a b'\")"),
            ("!echo it's (", '__notebook__.run("echo it\'s (")'),
            ("x = !ls", "x = __notebook__.lines('ls')"),
            ("[a, b] = !echo 1; echo 2", "[a, b] = __notebook__.lines('echo 1; echo 2')"),
            ("d['a'] = !ls", "d['a'] = __notebook__.lines('ls')"),
            ("é = !echo é", "é = __notebook__.lines('echo é')"),
            ("if x:\n\t!ls\nelse:\n\t%cd ..", "if x:\n    __notebook__.run('ls')\nelse:\n    __notebook__.cd('..')"),
            ("x = 1; !ls", "x = 1\n__notebook__.run('ls')"),
            ("if x: !ls", "if x:\n    __notebook__.run('ls')"),
            ("!ls \\\n  -la", "__notebook__.run('ls \\\\\\n  -la')"),
            ("\r\n!ls\r\nx = 1\r\n", "__notebook__.run('ls')\nx = 1"),
            ("%pip install -q x", "__notebook__.pip('install -q x')"),
            ("x = %env HOME", "x = __notebook__.env('HOME')"),
            ("math.floor?", "__notebook__.help('math.floor', False)"),
            ("?? x", "__notebook__.help('x', True)"),
            ("%time f(x)", "__notebook__.timed(__notebook__.begin(), f(x))"),
            ("%time x = 1", "with __notebook__.timer():\n    x = 1"),
            ("%time await f()", "__notebook__.timed(__notebook__.begin(), await f())"),
            ("# why\n%%time\nx = 1", "with __notebook__.timer():\n    x = 1"),
        ):
            with self.subTest(source):
                self.assertEqual(python(source), wanted)

    def test_an_expression_may_be_a_command(self):
        self.assertEqual(python("!ls", "eval"), "__notebook__.run('ls')")
        self.assertEqual(python("%time 1 + 1", "eval"), "__notebook__.timed(__notebook__.begin(), 1 + 1)")
        for source in ("x = !ls", "%%time\n1", "%time x = 1"):
            with self.assertRaises(SyntaxError):
                python(source, "eval")

    def test_code_that_is_wrong_has_the_error_that_python_has(self):
        for source in ("def f(:", "x = 'abc\n%d items'", "x? y", "!", "x = !", "a ! b", "x != !ls", "(\n!ls", "!ls\0", "% 5"):
            with self.subTest(source):
                with self.assertRaises((SyntaxError, ValueError)) as wanted:
                    compile(source, "c", "exec", FLAGS, dont_inherit=True)
                with self.assertRaises((SyntaxError, ValueError)) as found:
                    notebook.parse(source, "c", "exec")
                self.assertEqual(found.exception.args, wanted.exception.args)

    def test_an_error_beside_commands_is_on_the_line_where_it_stands(self):
        for source, line, containing in (
            ("!ls\n\ndef f(:\n  pass", 3, ""),
            ("%%time\n\nx = = 1", 3, ""),
            ("%%timeit\n\nx = = 1", 3, ""),
            ("!ls \\\n -la\nx = = 1", 3, ""),
            ("x = 1\n%time x = = 1", 2, ""),
            ("x = 1\n%timeit x = = 1", 2, ""),
            ("!ls\n%%time", 2, "has to be the first line"),
            ("!ls\n%nope x", 2, "there is no notebook command `%nope` here; there are `!COMMAND`, `%cd`"),
            ("%%perl\nls 'x\n", 1, "`%%perl`"),
            ("%%bash -x\nls 'x\n", 1, "stands alone"),
            ("%time", 1, "needs code"),
            ("%timeit -q x", 1, "`-n LOOPS`"),
        ):
            with self.subTest(source):
                with self.assertRaises(SyntaxError) as raised:
                    notebook.parse(source, "c", "exec")
                self.assertEqual(raised.exception.lineno, line)
                self.assertIn(containing, raised.exception.msg)

    def test_what_stands_for_a_command_stands_where_the_command_does(self):
        """Python marks the columns below the lines of a traceback, and the lines shown are those of the cell."""
        for source, column in (("é = 1; !ls {x}", 8), ("if x:\n    %cd a", 4), ("%time f(x)", 0), ("x = !ls", 4)):
            last = list(ast.walk(notebook.parse(source, "c", "exec")))
            places = {(each.col_offset, each.end_col_offset) for each in last if isinstance(each, ast.Call)}
            self.assertEqual(places, {(column, len(source.split("\n")[-1].encode()))}, source)

    def test_names_that_commands_assign_are_known(self):
        source = "x = !ls\n%time y = 1\nz, w = !ls\n%timeit v = 1\n!ls\nd?"
        self.assertEqual(names.assigned(source, 10), ["x", "y", "z", "w"])
        self.assertEqual(names.assigned("%%time\na = 1\na", 10), ["a"])

    def test_nonsense_is_an_error_of_python_or_a_tree_with_its_lines(self):
        pieces = "! % %% ? ls time timeit cd x 1 ' \" \'\'\' \"\"\" f' f\"\"\" { } {{ ( ) [ ] # ; : = == != é , . \\".split(" ")
        pieces += [" ", "\n", "\n    ", "\t", "\\\n", "\r\n", "\x0c", "\u2028", "y = ", "if x:", "await ", "return "]
        chance = random.Random(16)
        for _ in range(5000):
            source = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 25)))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = notebook.parse(source, "c", "exec")
                    compile(tree, "c", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            lines = len(source.replace("\r\n", "\n").split("\n"))
            for node in ast.walk(tree):
                self.assertLessEqual(getattr(node, "end_lineno", 1), lines, source)
    def test_formats_of_fields_are_text(self):
        for text in ('f"{n:#x}"', "f\"{n:'>10}\"", 'f"""{n:#x}"""', "f'{n:{w}.{p}} {n!r:>{w}}'", "f'{n:\\'>3}'"):
            source = f's = {text} + """\n!rm x\nreally?\n%d\n"""\n'
            try:
                plain = ast.dump(ast.parse(source))
            except SyntaxError:
                continue  # older versions know no backslashes there
            self.assertEqual(ast.dump(ast.Module(notebook.parse("!ls\n" + source, "c", "exec").body[1:], [])), plain)

    def test_what_cannot_be_timed_is_refused(self):
        for source in ("%timeit return 1", "%timeit break", "%timeit yield 1", "f = lambda: %time 1"):
            with self.assertRaises(SyntaxError, msg=source):
                notebook.parse(source, "c", "exec")

    def test_blanks_take_linear_time(self):
        started = time.monotonic()
        notebook.parse("x" + " " * 200_000 + "=1\n!ls", "c", "exec")
        self.assertLess(time.monotonic() - started, 5)

    def test_long_cells_take_linear_time(self):
        for unit in ("!ls\n", "x = !ls\n", "%time x\n", "f'{", "(", '"', "a.", "\\\n", "{", "%time ", 'f"""{', "?", "x;", "x       "):
            source = unit * (100_000 // len(unit)) + "\n)\n!ls"
            begun = time.monotonic()
            with self.assertRaises((SyntaxError, MemoryError, RecursionError)):
                notebook.parse(source, "c", "exec")
            self.assertLess(time.monotonic() - begun, 10, unit)
