"""What a snapshot is made of again when it is loaded. Its pickle names these functions: they stay as they are.

A thing that cannot be made again stands as `Lost` in the graph; `snapshot_load` then leaves out the names that lead
to it.
"""

import collections
import posix  # not `os`, whose functions user code may replace
import sys
import types

from . import snapshot_reasons, snapshot_unflushed
from .late_imports import from_stdlib
from .limits import MISSING_NAME_CHARS, cut

# The load that is under way: an object with the session's namespace, the tools, and the next section of the stream.
loading = None


class Lost:
    """Stands for something that could not be made again."""

    reason = "it could not be made again"

    __slots__ = ("__weakref__",)

    def __new__(cls, *_positional, **_named):
        return object.__new__(cls)

    def __init__(self, *_positional, **_named):
        pass

    def __call__(self, *_positional, **_named):
        return self

    def __setstate__(self, _state):
        pass

    def __setitem__(self, _key, _value):
        pass

    def append(self, _item):
        pass

    extend = add = update = append


def lost(reason):
    """A class of its own for each reason: it has to serve as a class, too."""
    loading.has_lost = True
    return type("Lost", (Lost,), {"reason": reason, "__slots__": ()})


def namespace():
    return loading.namespace


def module(name):
    if name == "__main__":
        return sys.modules["__main__"]
    try:
        _import(name)
        return sys.modules[name]
    except BaseException as error:
        return lost(f"the module {cut(name, MISSING_NAME_CHARS)} could not be imported: {snapshot_reasons.told(error)}")


def _import(name):
    home = loading.homes.get(name.partition(".")[0])
    is_added = home is not None and home not in sys.path
    if is_added:
        sys.path.append(home)
    try:
        __import__(name)
    finally:
        # The module may have put its folder there itself, further to the front.
        for place in reversed(range(len(sys.path) if is_added else 0)):
            if sys.path[place] == home:
                del sys.path[place]
                break


def package(name, submodules):
    """The module, with those below it that the session has imported: each is an attribute of the one above it."""
    found = module(name)
    if isinstance(found, types.ModuleType):
        for each in submodules:
            try:
                _import(each)
            except BaseException as error:
                loading.missing[each] = f"the module could not be imported: {snapshot_reasons.told(error)}"
    return found


def module_globals(name):
    found = module(name)
    return found.__dict__ if isinstance(found, types.ModuleType) else {name: found}  # which is lost


def attribute(of_module, path):
    first, *parts = path.split(".")
    try:
        if of_module == "__main__":
            found = loading.namespace[first]  # on trial, the module itself has all names already
        else:
            found = module(of_module)
            if not isinstance(found, types.ModuleType):
                return found  # it is lost
            found = getattr(found, first)
        for part in parts:
            found = getattr(found, part)
    except (AttributeError, KeyError):
        return lost(f"{of_module} has no {path} any more")
    return found


def found_class(of_module, path):
    """What the pickle names."""
    return globals()[path] if of_module == __name__ else attribute(of_module, path)


def injected(name):
    """A tool, or something else that the kernel puts into the namespace."""
    try:
        return loading.injected[name]
    except KeyError:
        return lost(f"there is no tool {name} any more")


def bare_module(name, is_listed):
    made = types.ModuleType(name)
    if is_listed:
        made = sys.modules.setdefault(name, made)
    loading.made_modules.append(made)
    return made


def fill_module(made, state):
    made.__dict__.update(state)


# Functions.


def code(marshalled):
    return from_stdlib("marshal").loads(marshalled)


def cell():
    return types.CellType()


def fill_cell(made, content):
    made.cell_contents = content[0]


def function(its_code, its_globals, name, closure):
    return types.FunctionType(its_code, loading.namespace if its_globals is None else its_globals, name, None, closure)


def fill_function(made, state):
    its_dict = state.pop("__dict__")
    for name, value in state.items():
        setattr(made, name, value)
    made.__dict__.update(its_dict)


def cached(wrapped, parameters):
    return from_stdlib("functools").lru_cache(**parameters)(wrapped)


def fill_dict(made, state):
    made.__dict__.update(state)


# Classes.


def class_(meta, name, bases, early):
    """A class without its attributes. Neither its metaclass nor its bases are told that there is a new one: they were told
    when it was first made, and what they did then is in its attributes and in theirs."""
    hushed = []
    for base in {each: None for direct in bases for each in direct.__mro__}:
        hook = base.__dict__.get("__init_subclass__")
        if hook is not None and base is not object:
            try:
                type.__delattr__(base, "__init_subclass__")
                hushed.append((base, hook))
            except TypeError:
                pass  # made in C
    try:
        made = type.__new__(meta, name, bases, early)
    finally:
        for base, hook in hushed:
            type.__setattr__(base, "__init_subclass__", hook)
    loading.classes.append(made)
    return made


def fill_class(made, state):
    attributes, registered, registered_at = state
    for name, value in attributes.items():
        type.__setattr__(made, name, value)
    if registered is not None:
        from_stdlib("_abc")._abc_init(made)
        for each in registered:
            made.register(each)
    for each in registered_at:
        if isinstance(each, from_stdlib("abc").ABCMeta):
            each.register(made)


def bare(base, cls, *arguments):
    """An instance without a call of its class's own `__new__`."""
    return base.__new__(cls, *arguments)


def begun(cls, attributes, slots):
    """An instance that has some of its attributes."""
    made = object.__new__(cls)
    if attributes:
        object.__getattribute__(made, "__dict__").update(attributes)
    for name, value in slots.items():
        object.__setattr__(made, name, value)
    return made


def fill_instance(made, state):
    """Neither the contents nor the attributes go through methods of the class, but what it says of its own state does."""
    container, contents, its_state, is_own = state
    if container is not None:
        CONTAINERS[container](made, *contents)
    if is_own and its_state is not None:
        # Looked up in the class, because an instance with `__getattr__` may have an answer for every name.
        for each in type(made).__mro__:
            if "__setstate__" in each.__dict__:
                each.__dict__["__setstate__"].__get__(made, type(made))(its_state)
                return
    attributes, slots = its_state if isinstance(its_state, tuple) and len(its_state) == 2 else (its_state, None)
    if attributes:
        its_dict = object.__getattribute__(made, "__dict__")
        its_dict.clear()  # so that they come in the order that they had
        its_dict.update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def fill_attributes(made, state):
    """Give it these attributes instead of those that it has."""
    if isinstance(made, type):
        return  # it is lost
    attributes, slots = state
    if attributes is not None:
        its_dict = object.__getattribute__(made, "__dict__")
        its_dict.clear()
        its_dict.update(attributes)
    for name, value in slots.items():
        object.__setattr__(made, name, value)


def _fill_ordered(made, items):
    for key, value in items:
        collections.OrderedDict.__setitem__(made, key, value)


def _fill_default(made, items, factory):
    collections.defaultdict.__init__(made, factory)
    dict.update(made, items)


CONTAINERS = {
    "OrderedDict": _fill_ordered,
    "defaultdict": _fill_default,
    "dict": dict.update,
    "list": list.extend,
    "set": set.update,
    "deque": collections.deque.__init__,
    "bytearray": bytearray.extend,
}


def exception(base, cls, arguments):
    made = base.__new__(cls, *arguments)
    base.__init__(made, *arguments)
    return made


def fill_exception(made, state):
    *links, members, attributes = state
    for name, value in members.items():
        if _member(made, name) is not value:
            try:
                object.__setattr__(made, name, value)
            except (AttributeError, TypeError):
                pass  # it is set when the exception is made, and never again
    made.__dict__.update(attributes)
    made.__cause__, made.__context__, made.__suppress_context__ = links


def _member(made, name):
    try:
        return object.__getattribute__(made, name)
    except AttributeError:
        return loading  # no exception holds it


def fill_own_exception(made, state):
    """The same of one whose class says in Python how it is taken apart."""
    *links, rest = state
    if rest is not None:
        made.__setstate__(rest)
    made.__cause__, made.__context__, made.__suppress_context__ = links


def type_variable(kind, name, options):
    return getattr(from_stdlib("typing"), kind)(name, *options.pop("constraints", ()), **options)


def type_alias(name, its_module, value, parameters):
    made_in = {"__name__": its_module, "make": from_stdlib("typing").TypeAliasType}
    made_in.update(name=name, value=value, parameters=parameters)
    return eval("make(name, value, type_params=parameters)", made_in)


def fill_type_variable(made, its_module):
    made.__module__ = its_module


# Small things.


def method(of_function, instance):
    return types.MethodType(of_function, instance)


def lock(is_reentrant):
    threading = from_stdlib("threading")
    return threading.RLock() if is_reentrant else threading.Lock()


def weak(referent, callback):
    return from_stdlib("weakref").ref(referent, callback)


def dead_weak():
    weakref = from_stdlib("weakref")
    return weakref.ref(weakref.WeakSet())


def proxy(referent):
    return from_stdlib("weakref").proxy(referent)


def match(pattern, method_name, string, position, end):
    return getattr(pattern, method_name)(string, position, end)


def view(base, form, shape, is_readonly):
    made = memoryview(base)
    if made.format != form or made.shape != shape:
        made = made.cast("B").cast(form, shape)
    return made.toreadonly() if is_readonly else made


def logger(name, kind=None):
    """The one of the registry, which others may hold already: it becomes one of its class."""
    logging = from_stdlib("logging")
    made = logging.getLogger(name) if name is not None else logging.getLogger()
    if kind is not None and type(made) is not kind:
        made.__class__ = kind
    return made


def fill_logger(made, state):
    made.__dict__.update(state)
    for handler in made.handlers:
        from_stdlib("logging")._addHandlerRef(handler)
    made.manager._clear_cache()


def decimal_context():
    return module("decimal").getcontext()


# Arrays.


def array(shape, dtype, order, data, is_writable):
    numpy = sys.modules.get("numpy") or module("numpy")
    if isinstance(numpy, type) or isinstance(dtype, Lost):
        if data is None:
            loading.pass_section()
        return numpy() if isinstance(numpy, type) else dtype
    made = numpy.empty(shape, dtype, order)
    raw = made.reshape(-1, order="A").view(numpy.uint8)
    if data is None:
        loading.section_into(memoryview(raw))
    else:
        raw[:] = numpy.frombuffer(data, numpy.uint8)
    made.setflags(write=is_writable)
    return made


def array_view(root, shape, dtype, strides, offset, is_writable):
    numpy = sys.modules.get("numpy") or module("numpy")
    for each in (root, dtype):
        if isinstance(each, Lost):
            return each
    if isinstance(root, numpy.ndarray):
        flat = root.view(numpy.ndarray).reshape(-1, order="A")
        if dtype.hasobject:
            made = numpy.lib.stride_tricks.as_strided(flat[offset // dtype.itemsize :], shape, strides)
            if not is_writable:
                made.setflags(write=False)
            return made
        root = flat.view(numpy.uint8)
    made = numpy.ndarray(shape, dtype, root, offset, strides)
    if made.flags.writeable and not is_writable:
        made.setflags(write=False)
    return made


def fill_array(made, state):
    its_state, its_dict = state
    made.__setstate__(its_state)
    made.__dict__.update(its_dict)


def array_as(made, kind, its_dict):
    if isinstance(made, Lost) or issubclass(kind, Lost):
        return made if isinstance(made, Lost) else kind()
    made = made.view(kind)
    if its_dict:
        made.__dict__.update(its_dict)
    return made


def mapped(path, dtype, mode, offset, shape, order):
    numpy = sys.modules.get("numpy") or module("numpy")
    if isinstance(numpy, type):
        return numpy()
    if loading.leaves_files and mode == "r+":
        mode = "c"  # a trial writes to no file, and makes none longer
    try:
        return numpy.memmap(path, dtype, mode, offset, shape, order)
    except (OSError, ValueError) as error:
        return lost(f"the file that it maps is not as it was: {error}"[:300])


# Files.


def file(path, mode, options, position, pending, before=None):
    """Open a file again where it was: neither emptied nor made anew. What was written but not flushed yet waits for the
    end of the load: one that fails puts nothing into a buffer, which would be flushed when the file goes."""

    def again(name, flags):
        return posix.open(name, flags & ~(posix.O_TRUNC | posix.O_EXCL | posix.O_CREAT) | posix.O_CLOEXEC)

    try:
        if loading.leaves_files:
            posix.stat(path)
            return closed_file(path, mode, options)
        opened = snapshot_unflushed.room_for(pending, options) if pending else options
        made = open(path, mode, opener=again, **opened)  # noqa: SIM115
        if opened is not options and options.get("buffering") == 1:
            made.reconfigure(line_buffering=True)
        if position is not None:
            made.seek(position)
        if pending:
            loading.unflushed.append((loading.name, path, made, position, pending, before))
        loading.reopened(path)
        return made
    except (OSError, ValueError) as error:
        beside = f", and {len(pending)} bytes that were not flushed to it are gone" if pending else ""
        return lost(f"the file {path} could not be opened again{beside}: {error}"[:300])


def closed_file(path, mode, options):
    loading.opens_nowhere = True
    try:
        made = open(path, mode, opener=lambda _path, flags: posix.open("/dev/null", flags & posix.O_ACCMODE), **options)  # noqa: SIM115
        made.close()
    finally:
        loading.opens_nowhere = False
    return made
