"""Type variables, new types and type aliases of the session, taken apart."""

from . import snapshot_make

_KINDS = ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")


def plan(kind, is_importable):
    """How instances of this class are taken apart; None if it is none of these."""
    if kind.__name__ not in _KINDS or kind.__module__ not in ("typing", "_typing", "typing_extensions"):
        return None
    reduce = {"NewType": _new_type, "TypeAliasType": _alias}.get(kind.__name__, _variable)
    return lambda thing: NotImplemented if is_importable(thing) else reduce(thing)


def _new_type(thing):
    made = snapshot_make.type_variable, ("NewType", thing.__name__, {"tp": thing.__supertype__})
    return (*made, thing.__module__, None, None, snapshot_make.fill_type_variable)


def _alias(alias):
    return snapshot_make.type_alias, (alias.__name__, alias.__module__, alias.__value__, alias.__type_params__)


def _variable(variable):
    kind, options = type(variable).__name__, {}
    if kind != "TypeVarTuple":
        names = ("covariant", "contravariant", "infer_variance")
        options = {name: True for name in names if getattr(variable, f"__{name}__", False)}
        if variable.__bound__ is not None:
            options["bound"] = variable.__bound__
    if getattr(variable, "__constraints__", ()):
        options["constraints"] = variable.__constraints__
    if hasattr(variable, "has_default") and variable.has_default():
        options["default"] = variable.__default__
    made = snapshot_make.type_variable, (kind, variable.__name__, options)
    return (*made, variable.__module__, None, None, snapshot_make.fill_type_variable)
