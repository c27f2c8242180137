"""Why a name cannot be packed or loaded, in words that are cut before anything is kept of them."""

from .limits import MISSING_NAME_CHARS, MISSING_REASON_CHARS, cut


def told(error):
    """The class of the error and its message, which code of the session may have made."""
    name, text = _name(error), _text(error)
    return cut(f"{name}: {text}", MISSING_REASON_CHARS) if text is not None else name


def message(error):
    """Only its message, if it has one."""
    return _text(error) or _name(error)


def _name(error):
    return cut(type(error).__name__, MISSING_NAME_CHARS)


def _text(error):
    try:
        return cut("".join((str(error),)), MISSING_REASON_CHARS)
    except BaseException:
        return None
