"""Which names code would assign at its top level; the code is parsed, never run."""

import ast

from . import notebook

# Nodes that open a scope of their own; only their name and the parts outside of the body count.
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def assigned(code, most):
    """At most `most` names, in the order in which they appear; none if the code does not parse."""
    try:
        tree = notebook.parse(code, "<cell>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    return assigned_in(tree, most)


def assigned_in(tree, most):
    """The same for code that is already parsed."""
    found = []  # (line, column, name)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        found += ((*_position(node), name) for name in _named(node))
        waiting += _same_scope(node)
    found.sort(key=lambda each: each[:2])
    return list(dict.fromkeys(name for _, _, name in found))[:most]


def _position(node):
    if type(node).__name__ == "MatchMapping":
        return node.end_lineno, node.end_col_offset  # its `**rest` is the last thing in it
    return node.lineno, node.col_offset


def _named(node):
    """Names that this node itself binds or deletes."""
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        # `import a.b` binds `a`; what `import *` binds is not known.
        return [each.asname or each.name.partition(".")[0] for each in node.names if each.name != "*"]
    if isinstance(node, ast.ExceptHandler):
        return (node.name,) if node.name else ()
    # Captures of `match`, which Python has since 3.10.
    kind = type(node).__name__
    if kind in ("MatchAs", "MatchStar"):
        return (node.name,) if node.name else ()
    if kind == "MatchMapping":
        return (node.rest,) if node.rest else ()
    return ()


def _same_scope(node):
    """Children whose assignments belong to the module's scope."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from node.decorator_list
        yield from _global_names(node)
    elif isinstance(node, (ast.Lambda, ast.expr_context)):
        return
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        # The loop variable is the comprehension's own, but `:=` inside of one is not.
        yield from (each for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.target
            yield node.value
    else:
        yield from ast.iter_child_nodes(node)


def _global_names(scope):
    """Names that a function or class declares `global`, as if it assigned them where it stands."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Global):
            for name in node.names:
                yield ast.copy_location(ast.Name(name, ast.Store()), scope)
