"""The side of check.py that runs in the container: a request per line on stdin, what a model would see on stdout."""

import ast
import contextlib
import io
import json
import os
import shutil
import sys
import traceback

namespace = {"__name__": "__main__"}
context = {"last_result": ""}


def run(code):
    """Like a notebook's cell: the value of a last expression is shown."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            tree = ast.parse(code, "<cell>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
                if value is not None:
                    print(repr(value))
        except Exception:
            traceback.print_exc()
    return told.getvalue() or "(none)"


def evaluate(expression):
    try:
        context["last_result"] = str(eval(expression, context))
    except Exception as error:
        return f"PythonError: {type(error).__name__}: {error}"
    return context["last_result"]


def main():
    # As in a session: no screen, and fonts that know Chinese.
    os.environ["MPLBACKEND"] = "Agg"
    os.environ["MPLCONFIGDIR"] = "/tmp/matplotlib"
    shutil.copytree("/usr/share/belljar/matplotlib", "/tmp/matplotlib", dirs_exist_ok=True)
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        if "variables" in request:
            namespace.update(request["variables"])
            answer = ""
        elif "expression" in request:
            answer = evaluate(request["expression"])
        else:
            answer = run(request["code"])
        print(json.dumps(answer), file=answers, flush=True)


main()
