"""Notebook habits in the source of a cell: `!ls`, `files = !ls`, `%pip install x`, `%%time`, `math.floor?`.

Source is Python first: only what Python's own parser refuses comes here. Commands are then looked for where a
statement may begin, or behind the `=` of an assignment, never inside of text, comments, brackets and continued lines.
Each becomes a call of a method of `__notebook__` (`notebook_commands.py`) on the line where it stands, and everything
else stays where it is. So whoever looks at the tree (the restricted policy, the list of assigned names, tracebacks)
sees what the cell really does.
"""

import ast
import functools
import re

# The name under which commands are called. It is a built-in one, so that functions and classes of cells find it, too.
NAME = "__notebook__"
LINE_COMMANDS = ("cd", "env", "ls", "matplotlib", "pip", "pwd", "run", "time", "timeit")
CELL_COMMANDS = ("bash", "capture", "sh", "time", "timeit", "writefile")
_TEXT_COMMANDS = ("bash", "sh", "writefile")  # what follows them is no Python
_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_MARKS = "!%?"

# Patterns, which are compiled when the first command is looked for: most sessions have none.
_BLANKS = r"[ \t\f]*"
_TOKEN = (
    r"(?:(?<!\w)(?P<prefix>[A-Za-z]{1,2}))?(?P<quote>'{3}|\"{3}|'|\")"
    r"|\#[^\n]*|\\\n"
    r"|(?P<mark>[()\[\]{}\n;:])"
    r"|(?P<gets>(?<![=!<>:+\-*/%&|^@~])=[ \t]*(?=!(?!=)|%[A-Za-z]))"
)
# What ends a piece of text, by its quotes, or needs a look; a text of one quote ends on its line at the latest.
_TEXT = {quote: rf"\\[\\'\"\n]|{quote}" + (r"|\n" if len(quote) == 1 else "") for quote in ("'", '"', "'''", '"""')}
_FIELD = r"|\{\{|\{"
_MAGIC = r"(%%?)([A-Za-z_]\w*)"
_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_HELP = rf"(?P<before>\?{{0,2}})[ \t]*(?P<name>{_DOTTED})(?:[ \t]*(?P<after>\?{{1,2}}))?[ \t]*(?:\#[^\n]*)?(?=\n|\Z)"
_TIMEIT_OPTION = r"-([nr])[ \t]*(\d{1,9})(?:[ \t]+|\Z)"
_pattern = functools.lru_cache(maxsize=None)(re.compile)

_TIMED_LOOP = """\
def timed_loop(__loops__, __now__):
    __begin__ = __now__()
    for __loop__ in __loops__:
        pass
    return __now__() - __begin__
"""


def parse(source, name, mode):
    """The tree of a source, which may have notebook commands in it. Raises `SyntaxError` as `compile` does."""
    try:
        return compile(source, name, mode, _FLAGS, dont_inherit=True)
    except SyntaxError:
        if "\0" in source or not any(mark in source for mark in _MARKS):
            raise
        translation = _Translation(source, name)
        if not translation.commands:
            raise
    return translation.tree(mode)


def is_hushed(statement, source):
    """Whether a semicolon follows the last expression, which suppresses its value, as in notebooks."""
    lines = _with_plain_ends(source).split("\n")
    behind = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :]
    return behind.lstrip().startswith(b";")


def timed_loop(setup, code, name, line, is_cell):
    """The code of a function `(loops, now)` that runs `code` once for each of the loops and returns the time of all."""
    first = line + 1 if is_cell else line
    tree = ast.parse(_TIMED_LOOP)
    function = tree.body[0]
    function.body[1].body = _plain_body(code, name, first)
    function.body[:0] = _plain_body(setup, name, line) if setup else []
    module = compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)
    return next(each for each in module.co_consts if hasattr(each, "co_code"))


def _plain_body(code, name, line):
    try:
        tree = parse(code, name, "exec")
        compile(tree, name, "exec", dont_inherit=True)  # no `return`, `break` or `await` out of the loop around it
    except SyntaxError as error:
        error.lineno = (error.lineno or 1) + line - 1
        error.end_lineno = None
        raise
    return ast.increment_lineno(tree, line - 1).body


def _with_plain_ends(source):
    return source.replace("\r\n", "\n").replace("\r", "\n")


class _Command:
    """A command in the source: where it stands, and the Python that takes its place."""

    def __init__(self, start, end, line, columns):
        self.start = start
        self.end = end
        self.line = line
        self.columns = columns  # first and last, in bytes, as Python counts them in a tree
        self.python = "None"
        self.timed = None  # the code of `%time`
        self.target = None  # the name behind `%%capture`, which may be empty
        self.is_inserted = False  # that code stands where the command does
        self.refusal = None  # why there is no such command


class _Translation:
    """One source and the commands that were found in it."""

    def __init__(self, source, name):
        self._source = _with_plain_ends(source)
        self._name = name
        self.commands = []
        # Brackets, as empty text, and fields of formatted text, as the quotes of that text; with a colon before them if
        # the field is a part of another one's format.
        self._open = []
        self._line_field = None  # the depth of the first field that ends on its line at the latest
        self._timed_commands = {}  # the commands `%time` by their numbers
        self._around_all = None  # the command `%%time` or `%%capture`
        self._has_code = False  # something other than comments was there before
        self._counted = (1, 0)  # the line of a place in the source, so that lines are counted once
        self._scan()

    # Finding commands.

    def _scan(self):
        source, position, is_start, is_fresh = self._source, 0, True, True
        find_token, skip_blanks = _pattern(_TOKEN).search, _pattern(_BLANKS).match
        while True:
            if is_start and not self._open:
                position = skip_blanks(source, position).end()
                command = self._command_at(position, is_fresh)
                if command is not None:
                    self.commands.append(command)
                    position = command.end
                is_code = source[position : position + 1] not in ("\n", "#", "")
                self._has_code = self._has_code or is_code or command is not None
            token = find_token(source, position)
            if token is None:
                return
            position, is_start = token.end(), False
            if token["quote"]:
                position = self._behind_text(position, token["quote"], token["prefix"] or "")
            elif token["gets"]:
                command = None if self._open else self._command_at(position, False, is_assigned=True)
                if command is not None:
                    self.commands.append(command)
                    position = command.end
            elif token["mark"]:
                position = self._behind_mark(position, token["mark"])
                is_start, is_fresh = token["mark"] in "\n;:", token["mark"] == "\n"

    def _behind_mark(self, position, mark):
        if mark in "([{":
            self._open.append("")
        elif mark == "\n":
            if self._line_field is not None:
                self._close_to(self._line_field)
        elif mark == ":" and self._open and self._open[-1]:
            return self._behind_format(position)
        elif mark == "}" and self._open and self._open[-1]:
            return self._behind_field(position)
        elif mark in ")]}" and self._open and not self._open[-1]:
            self._close_to(len(self._open) - 1)
        return position

    def _behind_field(self, position):
        """What follows a field is text, or more of the format that it is a part of."""
        field = self._open[-1]
        self._close_to(len(self._open) - 1)
        return self._behind_format(position) if field.startswith(":") else self._behind_text(position, field, "f")

    def _behind_format(self, position):
        """The end of the format of a field, or of the part of it before the next field."""
        quote = self._open[-1].lstrip(":")
        for found in _pattern(rf"[{{}}]|{_TEXT[quote]}").finditer(self._source, position):
            end = found.group()
            if end.startswith("\\"):
                continue
            if end == "{":
                self._open.append(":" + quote)
                return found.end()
            if end == "}":
                return self._behind_field(found.end())
            while self._open.pop().startswith(":"):
                pass  # the text ends, and all of its fields
            self._close_to(len(self._open))
            return found.end() if end == quote else found.start()
        return len(self._source)

    def _close_to(self, depth):
        del self._open[depth:]
        if self._line_field is not None and depth <= self._line_field:
            self._line_field = None

    def _behind_text(self, position, quote, prefix):
        """The end of the text, or of the part of formatted text before the next field."""
        is_formatted = not {"f", "t"}.isdisjoint(prefix.lower())
        ends = _pattern(_TEXT[quote] + (_FIELD if is_formatted else ""))
        for found in ends.finditer(self._source, position):
            end = found.group()
            if end == quote:
                return found.end()
            if end == "\n":
                return found.start()
            if end == "{":
                if len(quote) == 1 and self._line_field is None:
                    self._line_field = len(self._open)
                self._open.append(quote)
                return found.end()
        return len(self._source)

    def _command_at(self, start, is_fresh, is_assigned=False):
        source = self._source
        mark = source[start : start + 1]
        if mark == "!" and not source.startswith("!=", start):
            return self._shell_command(start, is_assigned)
        magic = _pattern(_MAGIC).match(source, start) if mark == "%" else None
        if magic is not None:
            return self._magic(start, magic, is_fresh, is_assigned)
        asked = _pattern(_HELP).match(source, start) if is_fresh else None
        if asked is not None and (asked["before"] or asked["after"]):
            has_more = "??" in (asked["before"], asked["after"])
            command = self._command(start, asked.end())
            command.python = f"{NAME}.help({asked['name']!r}, {has_more})"
            return command
        return None

    def _command(self, start, end):
        line, counted = self._counted
        line += self._source.count("\n", counted, start)
        self._counted = (line, start)
        begin, line_end = self._source.rfind("\n", 0, start) + 1, self._source.find("\n", start)
        whole = self._source[begin : len(self._source) if line_end < 0 else line_end]
        return _Command(start, end, line, (len(whole[: start - begin].encode()), len(whole.encode())))

    def _shell_command(self, start, is_assigned):
        gives_lines = is_assigned
        end = self._end_of_command(start)
        line = self._source[start + 1 : end]
        if line.startswith("!"):
            line, gives_lines = line[1:], True
        line = line.strip()
        if not line:
            return None
        command = self._command(start, end)
        command.python = f"{NAME}.{'lines' if gives_lines else 'run'}({line!r})"
        return command

    def _magic(self, start, magic, is_fresh, is_assigned):
        signs, word = magic.groups()
        end = self._end_of_command(start)
        rest = self._source[magic.end() : end].replace("\\\n", " ").strip()
        command = self._command(start, end)
        if word not in (LINE_COMMANDS if signs == "%" else CELL_COMMANDS):
            command.refusal = f"there is no notebook command `{signs}{word}` here; there are {_known_commands()}"
        elif signs == "%%" and (is_assigned or not is_fresh or self._has_code):
            command.refusal = f"`%%{word}` has to be the first line of a cell"
        elif word == "timeit":
            self._timeit(command, rest, signs == "%%")
        elif word in ("time", "capture") and signs == "%%":
            self._around_all, command.target = command, rest if word == "capture" else None
            if word == "time" and rest:
                command.refusal = "`%%time` stands alone on its line; the code follows on the next one"
            elif rest and not rest.isidentifier():
                command.refusal = "`%%capture` takes a name for what is captured, and nothing else"
        elif signs == "%%" and word in _TEXT_COMMANDS:
            text, command.end = self._source[command.end + 1 :], len(self._source)
            command.python = f"{NAME}.{'writefile' if word == 'writefile' else 'script'}({rest!r}, {text!r})"
            if word != "writefile" and rest:
                command.refusal = f"`%%{word}` stands alone on its line; the commands follow on the next one"
        elif word == "time":
            command.python, command.timed = f"{NAME}.time({len(self.commands)})", rest
            self._timed_commands[len(self.commands)] = command
            if not rest:
                command.refusal = "`%time` needs code behind it"
        else:
            command.python = f"{NAME}.{'run_file' if word == 'run' else word}({rest!r})"
        return command

    def _timeit(self, command, rest, is_cell):
        options = {}
        option = _pattern(_TIMEIT_OPTION).match(rest)
        while option is not None:
            options[option[1]] = int(option[2])
            rest = rest[option.end() :]
            option = _pattern(_TIMEIT_OPTION).match(rest)
        code, setup = rest, ""
        if is_cell:
            setup, code, command.end = rest, self._source[command.end + 1 :], len(self._source)
        loops, runs = options.get("n", 0), options.get("r", 0)
        place = f"{self._name!r}, {command.line}, {is_cell}"
        command.python = f"{NAME}.timeit({setup!r}, {code!r}, {loops}, {runs}, {place})"
        if rest.startswith("-"):
            command.refusal = "`%timeit` knows the options `-n LOOPS` and `-r RUNS`"
        elif not code.strip():
            command.refusal = "`%timeit` needs code to run"
        else:
            # An error in it is found before anything runs.
            timed_loop(setup, code, self._name, command.line, is_cell)

    def _end_of_command(self, start):
        """The end of the line, or of the last one if a backslash continues it."""
        source = self._source
        while True:
            end = source.find("\n", start)
            if end < 0:
                return len(source)
            line = source[start:end]
            if (len(line) - len(line.rstrip("\\"))) % 2 == 0:
                return end
            start = end + 1

    # Making the tree.

    def tree(self, mode):
        by_line = {command.line: command for command in self.commands}
        refused = next((command for command in self.commands if command.refusal), None)
        try:
            tree = compile(self._python(), self._name, mode, _FLAGS, dont_inherit=True)
        except SyntaxError as error:
            if refused is None or (error.lineno or 0) < refused.line:
                self._show_original(error, by_line)
                raise
        if refused is None and self._around_all is not None and mode == "eval":
            refused = self._around_all
            refused.refusal = "`%%time` and `%%capture` are for cells, not for a single expression"
        if refused is not None:
            raise self._error(refused)
        _restore_columns(tree, by_line)
        if self._timed_commands:
            self._insert_timed(tree)
        if self._around_all is not None:
            tree.body = self._surrounded(tree.body[1:], self._around_all)
        return ast.fix_missing_locations(tree)

    def _python(self):
        """The source with the commands replaced, with as many lines as before."""
        parts, position = [], 0
        for command in self.commands:
            parts += (self._source[position : command.start], command.python)
            parts.append("\n" * self._source.count("\n", command.start, command.end))
            position = command.end
        return "".join((*parts, self._source[position:]))

    def _show_original(self, error, by_line):
        if error.lineno in by_line and error.text is not None:
            error.text = self._source.split("\n")[error.lineno - 1] + "\n"
            error.offset = error.end_offset = None

    def _error(self, command):
        text = self._source.split("\n")[command.line - 1]
        return SyntaxError(command.refusal, (self._name, command.line, None, text))

    def _insert_timed(self, tree):
        """Put the code of `%time` where it stands: it assigns names, awaits and returns like any other."""
        for node in list(ast.walk(tree)):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expression)):
                field = "body" if isinstance(node, ast.Expression) else "value"
                command = self._timed_command(getattr(node, field))
                if command is not None:
                    setattr(node, field, self._timed_value(command))
                continue
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list):
                    setattr(node, field, [each for one in statements for each in self._expanded(one)])
        for command in self._timed_commands.values():
            if not command.is_inserted:
                command.refusal = "`%time` has to begin a statement, or to stand behind the `=` of an assignment"
                raise self._error(command)

    def _expanded(self, statement):
        command = self._timed_command(statement.value) if isinstance(statement, ast.Expr) else None
        if command is None:
            return [statement]
        body = self._code_of(command)
        if len(body) == 1 and isinstance(body[0], ast.Expr):
            statement.value = _timed_expression(body[0].value, command)
            return [statement, *([_placed(ast.Pass(), command)] if _ends_hushed(command) else [])]
        return self._timed(body, command, lambda _last: _ends_hushed(command))

    def _timed_command(self, node):
        """The command `%time` that this call stands for, if it does."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "time":
            is_ours = isinstance(node.func.value, ast.Name) and node.func.value.id == NAME
            if is_ours and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                return self._timed_commands.get(node.args[0].value)
        return None

    def _timed_value(self, command):
        body = self._code_of(command)
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            command.refusal = "`%time` needs an expression here"
            raise self._error(command)
        return _timed_expression(body[0].value, command)

    def _code_of(self, command):
        command.is_inserted = True
        try:
            tree = parse(command.timed, self._name, "exec")
        except SyntaxError as error:
            command.refusal = error.msg
            raise self._error(command) from None
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                _placed(node, command)
        return tree.body

    def _surrounded(self, body, command):
        if command.target is None:
            return self._timed(body, command, lambda last: is_hushed(last, self._source))
        target = ast.Name(command.target, ast.Store()) if command.target else None
        capture = ast.With([ast.withitem(_call("capture"), target)], body or [ast.Pass()])
        return [_placed(capture, command)]

    def _timed(self, body, command, is_last_hushed):
        """Statements that measure the time of others; the value of a last expression is theirs, too."""
        last = body[-1] if body else None
        after = []
        if isinstance(last, ast.Expr) and not is_last_hushed(last):
            target = ast.Attribute(ast.Name(NAME, ast.Load()), "value", ast.Store())
            body[-1] = ast.copy_location(ast.Assign([ast.copy_location(target, last)], last.value, lineno=0), last)
            after = [ast.copy_location(ast.Expr(_call("take_value")), last)]
        timer = ast.With([ast.withitem(_call("timer"), None)], body or [ast.Pass()])
        return [_placed(timer, command), *after]


def _known_commands():
    commands = ["`!COMMAND`", *(f"`%{each}`" for each in LINE_COMMANDS), *(f"`%%{each}`" for each in CELL_COMMANDS)]
    return ", ".join(commands) + " and `NAME?`"


def _restore_columns(tree, by_line):
    """Let nodes that stand for a command stand where the command does, for the marks below lines of tracebacks."""
    for node in ast.walk(tree):
        command = by_line.get(getattr(node, "lineno", None))
        if command is not None and node.col_offset > command.columns[0]:
            node.col_offset = command.columns[0]
        command = by_line.get(getattr(node, "end_lineno", None))
        if command is not None and node.end_col_offset > command.columns[0]:
            node.end_col_offset = command.columns[1]


def _placed(node, command):
    node.lineno = node.end_lineno = command.line
    node.col_offset, node.end_col_offset = command.columns
    return node


def _call(method, *arguments):
    return ast.Call(ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load()), list(arguments), [])


def _timed_expression(value, command):
    """Arguments are evaluated in their order, so the clock is read before and after the value is made."""
    call = _call("timed", _call("begin"), value)
    for node in ast.walk(call):
        if isinstance(node, ast.expr):
            _placed(node, command)
    return call


def _ends_hushed(command):
    return command.timed.rstrip().endswith(";")
