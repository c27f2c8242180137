"""What only Belljar is measured for, beside the bare engine where there is something to compare.

Each module has a function `measured(binary)` that gives tables for the report; those that came before a
failure are kept.
"""


def table(title, note, columns, rows):
    """`rows` are pairs of a label and a list of figures, one for each of the `columns`."""
    return {"title": title, "note": note, "columns": columns, "rows": [list(row) for row in rows]}
