"""Values as the daemon shows them: `repr`, other MIME forms, `display()`, and figures."""

import base64
import io
import itertools
import sys

from . import wire
from .limits import JSON_DEPTH, cut
from .pictures import SMALL_COPY, with_small_copy, without_small_copy
from .report import safe_text, type_name

_PNG = "image/png"
# Bytes of a display around the forms that a value has itself: their names, and its text.
_AROUND_FORMS = 64 * 1024
# Method of the value, its MIME type; binary data becomes base64.
_FORMS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", _PNG),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_json_", "application/json"),
)
_CONTAINERS = {list: list, tuple: tuple, set: set, frozenset: frozenset, dict: dict}


class Displays:
    """Sends the displays of a cell, within bounds for one display and for all of them."""

    def __init__(self, runner):
        self._runner = runner
        self._of_main = Shown()
        self.pyplot = None, None  # the module that was imported, and its list of figures
        self.injected = {"display": self.display}
        runner.namespace.update(self.injected)
        sys.meta_path.insert(0, _PyplotWatcher(self))

    def begin(self):
        self._of_main = Shown()

    @property
    def dropped(self):
        return self._of_main.dropped

    def display(self, *values):
        """Show values in their richest form: tables, pictures, HTML."""
        for value in values:
            mime = self._forms(value)
            # Terminals and models see nothing else than the text.
            mime["text/plain"] = bounded_repr(value, self._runner.limits.repr_chars)
            self._send(mime)

    def view(self, value):
        """`ValueView` of a cell's value."""
        limits = self._runner.limits
        return {
            "repr": bounded_repr(value, limits.repr_chars),
            "type": cut(type_name(type(value)), limits.repr_chars),
            "mime": self._forms(value),
        }

    def _forms(self, value):
        """Other forms of a value; those that are too large count as displays that are left out."""
        forms, too_large = mime_forms(value, self._runner.limits)
        beside = self._runner.background.here()
        shown = self._of_main if beside is None else beside.shown
        shown.dropped += too_large
        return forms

    def figures_are_plain(self):
        """Whether looking for open figures runs no code of the user."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        module, get_fignums = self.pyplot
        return pyplot is None or (pyplot is module and pyplot.get_fignums is get_fignums)

    def flush_figures(self):
        """Show the figures that are open, in the order they were made, and close them. True if there were any."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return False
        numbers = pyplot.get_fignums()
        for number in numbers:
            figure = pyplot.figure(number)
            try:
                # An empty figure is only a side effect, as of `savefig()` after `show()`.
                if len(figure.get_children()) > 1:
                    picture = io.BytesIO()
                    figure.savefig(picture, format="png", bbox_inches="tight")
                    mime = {_PNG: base64.b64encode(picture.getvalue()).decode()}
                    self._send(with_small_copy(mime, self._runner.limits.display_bytes - _AROUND_FORMS))
            finally:
                pyplot.close(figure)
        return bool(numbers)

    def _send(self, mime):
        limits = self._runner.limits
        beside = self._runner.background.here()
        if beside is None and self._runner.current_cell() is None:
            return  # a thread of an earlier cell: there is no cell to show it in
        shown = self._of_main if beside is None else beside.shown
        bundle = wire.encode_json(mime)
        if SMALL_COPY in mime and not shown.has_room(len(bundle), limits):
            # A copy never takes the room of what it is a copy of.
            bundle = wire.encode_json(without_small_copy(mime))
        if shown.displays >= limits.displays or not shown.has_room(len(bundle), limits):
            shown.dropped += 1
            return
        shown.displays += 1
        shown.bytes += len(bundle)
        message = b'{"mime":%b}' % bundle
        if beside is None:
            self._runner.send_in_order(wire.DISPLAY, message)
        else:
            self._runner.send_in_order(wire.BACKGROUND_DISPLAY, wire.CELL.pack(beside.number) + message)


class Shown:
    """What one cell has shown."""

    def __init__(self):
        self.displays = self.bytes = self.dropped = 0

    def has_room(self, size, limits):
        return size <= limits.display_bytes and self.bytes + size <= limits.displays_bytes


def bounded_repr(value, chars):
    """The start of `repr(value)`, without building all of it for huge built-in values."""
    kind = type(value)
    if kind is str or kind is bytes or kind is bytearray:
        value = value[: chars + 1]
    elif kind in _CONTAINERS and len(value) > chars:
        # Every element takes more than one character, so the cut lies before the last one kept.
        elements = value.items() if kind is dict else value
        value = _CONTAINERS[kind](itertools.islice(elements, chars))
    return safe_text(repr, value, chars)


def mime_forms(value, limits):
    """Other forms of a value by MIME type, and how many are too large. Those are left out, as is one that fails."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return {}, 0
    forms = {}
    bundle = getattr(kind, "_repr_mimebundle_", None)
    if bundle is not None:
        forms.update(_bundle(value, bundle))
    for method, mime in _FORMS:
        convert = getattr(kind, method, None)
        if convert is not None and mime not in forms:
            forms[mime] = _guarded(convert, value)
    fitting, total, too_large = {}, 0, 0
    for mime, form in forms.items():
        form = _as_json(form)
        if form is None:
            continue
        size = len(wire.encode_json(form))
        if total + size <= limits.display_bytes - len(mime):
            fitting[mime] = form
            total += size
        else:
            too_large += 1
    return with_small_copy(fitting, limits.display_bytes - _AROUND_FORMS), too_large


def _bundle(value, convert):
    bundle = _guarded(convert, value)
    if isinstance(bundle, tuple) and bundle:
        bundle = bundle[0]  # the second part is metadata
    if not isinstance(bundle, dict):
        return {}
    return {mime: form for mime, form in bundle.items() if isinstance(mime, str) and mime != "text/plain"}


def _guarded(convert, value):
    try:
        form = convert(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None
    if isinstance(form, tuple) and form:
        form = form[0]
    return form


def _as_json(form):
    if isinstance(form, (bytes, bytearray)):
        return base64.b64encode(form).decode()
    try:
        check_json(form)
    except (TypeError, ValueError, RecursionError):
        return None
    return form


# The integers that the daemon reads without loss.
_LEAST_INT = -(2**63)
_MOST_INT = 2**64 - 1


def check_json(value, depth=JSON_DEPTH):
    """Raise TypeError or ValueError for what cannot go over the bridge as JSON."""
    kind = type(value)
    if value is None or kind in (str, bool):
        return
    if isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT:
        raise ValueError("an integer of more than 64 bits cannot go over the bridge; send it as a string")
    if kind is int:
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value!r} is no number in JSON")
    elif isinstance(value, (str, int)):
        return
    elif depth == 0:
        raise ValueError("nested too deeply")
    elif isinstance(value, (list, tuple)):
        for element in value:
            check_json(element, depth - 1)
    elif isinstance(value, dict):
        for key, element in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of type {type_name(type(key))} is no string")
            check_json(element, depth - 1)
    else:
        raise TypeError(f"a value of type {type_name(kind)} is no JSON")


class _PyplotWatcher:
    """Import hook that waits for pyplot, to make `show()` show figures here."""

    def __init__(self, displays):
        self._displays = displays

    def find_spec(self, name, path, _target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path)
            if spec is not None:
                break
        else:
            return None
        execute = spec.loader.exec_module

        # A function, because pyplot puts attributes on it.
        def show(*_arguments, **_options):
            """Show all open figures now."""
            self._displays.flush_figures()

        def execute_and_patch(module):
            execute(module)
            module.show = show
            self._displays.pyplot = module, getattr(module, "get_fignums", None)

        spec.loader.exec_module = execute_and_patch
        return spec
