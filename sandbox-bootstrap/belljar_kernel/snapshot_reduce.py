"""How the things of a session are taken apart, where `pickle` cannot do it, or would do it wrongly without a word."""

import builtins
import sys
import types

from . import (
    snapshot_arrays,
    snapshot_classes,
    snapshot_exceptions,
    snapshot_files,
    snapshot_hashes,
    snapshot_instances,
    snapshot_loggers,
    snapshot_make,
    snapshot_typing,
)
from .late_imports import from_stdlib
from .snapshot_classes import HEAP_TYPE, is_importable

pickle = from_stdlib("pickle")

# What cannot be taken apart, in words; the others are named by their type.
_REASONS = {
    types.GeneratorType: "a generator, which is in the middle of its code",
    types.CoroutineType: "a coroutine, which is in the middle of its code",
    types.AsyncGeneratorType: "an async generator, which is in the middle of its code",
    types.FrameType: "a frame of running code",
    types.TracebackType: "a traceback, which holds frames of running code",
}
# Classes whose instances look like plain ones, and are not: by module and name.
_ALIVE = {
    ("threading", "Thread"): "a thread, which does not outlive its process",
    ("subprocess", "Popen"): "a process, which does not outlive the sandbox",
    ("asyncio.events", "AbstractEventLoop"): "an event loop, which holds connections of its process",
    ("concurrent.futures._base", "Executor"): "a pool of threads or processes",
    ("multiprocessing.process", "BaseProcess"): "a process, which does not outlive the sandbox",
    ("tempfile", "_TemporaryFileWrapper"): "a temporary file, which goes with its process",
    ("tempfile", "TemporaryDirectory"): "a temporary folder, which goes with its process",
    ("socket", "socket"): "a socket, whose connection does not outlive the sandbox",
    ("weakref", "finalize"): "a finalizer, which is called when its process ends",
}
_NO_CLASSES = frozenset((type(None), type(...), type(NotImplemented)))


class Unpackable(pickle.PicklingError):
    """This cannot be packed, for a reason that people understand."""


class Reducer:
    """The reducers of one pickler. `notes` is told what comes back changed."""

    def __init__(self, packing):
        self._packing = packing
        self._namespace = packing.namespace
        self._plans = {}
        self._singletons = {}
        self._registrations = None
        self._references = {}  # to the globals of modules
        self._known = {id(thing): (thing, reduced) for thing, reduced in _known(packing.injected)}
        self._by_type = {
            types.FunctionType: self._function,
            types.CodeType: lambda code: (snapshot_make.code, (from_stdlib("marshal").dumps(code),)),
            types.CellType: _cell,
            types.MethodType: lambda it: (snapshot_make.method, (it.__func__, it.__self__)),
            types.MappingProxyType: _mapping_proxy,
            types.ModuleType: self._module,
            Reference: lambda it: it.reduced,
            property: lambda it: (property, (it.fget, it.fset, it.fdel, it.__doc__)),
            classmethod: _wrapper,
            staticmethod: _wrapper,
            memoryview: snapshot_arrays.memory_view,
            **snapshot_files.reducers(packing),
            **_of_locks(),
            **_of_weak_references(),
        }
        cached = type(from_stdlib("functools").lru_cache(len))
        self._by_type[cached] = self._cached
        self._by_type[from_stdlib("re").Match] = _match

    def __call__(self, thing):
        known = self._known.get(id(thing))
        if known is not None:
            return known[1]
        kind = type(thing)
        try:
            plan = self._plans[kind]
        except KeyError:
            plan = self._plans[kind] = self._plan(kind)
            self._packing.hashes_by_code |= snapshot_hashes.are_by_code(kind)
        return NotImplemented if plan is None else plan(thing)

    def _plan(self, kind):
        """The function that takes instances of the class apart, or None if `pickle` does it."""
        if kind in _REASONS:
            return _refusal(_REASONS[kind])
        if kind in self._by_type:
            return self._by_type[kind]
        if issubclass(kind, type):
            return self._class
        if issubclass(kind, types.ModuleType):
            return self._module
        for base in kind.__mro__:
            if (base.__module__, base.__name__) in _ALIVE:
                return _refusal(_ALIVE[base.__module__, base.__name__])
        if kind.__module__.partition(".")[0] == "belljar_kernel":
            return _refusal("a part of the sandbox itself")
        if issubclass(kind, BaseException):
            return snapshot_exceptions.plan(kind, _base(kind), self._own_reduce, self._packing)
        of_arrays = snapshot_arrays.plan(kind, self._packing)
        if of_arrays is not None:
            return of_arrays
        if kind in from_stdlib("copyreg").dispatch_table:
            return None
        of_typing = snapshot_typing.plan(kind, is_importable)
        if of_typing is not None:
            return of_typing
        logging = sys.modules.get("logging")
        if logging is not None and issubclass(kind, logging.Logger):
            return lambda it: snapshot_loggers.reduce(it, logging)
        enum = sys.modules.get("enum")
        if enum is not None and issubclass(kind, enum.Enum) and not is_importable(kind):
            return _enum_member
        return self._plan_of_plain(kind)

    def _plan_of_plain(self, kind):
        if kind is not object and not kind.__flags__ & HEAP_TYPE:
            return None
        is_own = not is_importable(kind)
        found = snapshot_instances.plan(kind) if is_own else None
        if found is not None:
            return found
        has_own = _has_own_reduce(kind, object)
        if not is_own:
            beneath = None if has_own else snapshot_instances.plan_of_answering(kind)
            return lambda it: self._of_library(it, beneath)
        if has_own:
            return self._own_reduce
        if _makes_itself(kind):
            return _bare
        return None

    # Functions, classes and modules.

    def _function(self, function):
        if is_importable(function):
            return NotImplemented
        if function.__module__ is not None and function.__module__.partition(".")[0] == "belljar_kernel":
            raise Unpackable("a part of the sandbox itself")
        its_globals = self._globals_of(function.__globals__)
        state = {
            "__qualname__": function.__qualname__,
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__dict__": dict(function.__dict__),
        }
        if getattr(function, "__annotate__", None) is not None:
            state["__annotate__"] = function.__annotate__
        else:
            state["__annotations__"] = function.__annotations__
        if getattr(function, "__type_params__", ()):
            state["__type_params__"] = function.__type_params__
        arguments = (function.__code__, its_globals, function.__name__, function.__closure__)
        return snapshot_make.function, arguments, state, None, None, snapshot_make.fill_function

    def _globals_of(self, its_globals):
        if its_globals is self._namespace:
            return None
        module = sys.modules.get(its_globals.get("__name__"))
        if module is not None and module.__dict__ is its_globals and snapshot_classes.comes_from_disk(module):
            name = module.__name__
            return self._references.setdefault(name, Reference(snapshot_make.module_globals, (name,)))
        return its_globals

    def _class(self, cls):
        if cls in _NO_CLASSES or is_importable(cls):
            return NotImplemented
        for name, value in types.__dict__.items():
            if value is cls:
                return snapshot_make.attribute, ("types", name)
        try:
            if self._registrations is None:
                self._registrations = snapshot_classes.registrations()
            return snapshot_classes.reduce(cls, self._registrations.get(id(cls), []))
        except TypeError as problem:
            raise Unpackable(str(problem)) from None

    def _module(self, module):
        name = module.__name__
        if name == "__main__" or (sys.modules.get(name) is module and snapshot_classes.comes_from_disk(module)):
            self._packing.modules.add(name)
            below = snapshot_classes.submodules(module)
            return (snapshot_make.package, (name, below)) if below else (snapshot_make.module, (name,))
        if sys.modules.get(name) is module and module.__spec__ is not None:
            return snapshot_make.module, (name,)
        state = {key: value for key, value in module.__dict__.items() if key not in ("__builtins__", "__loader__", "__spec__")}
        listed = sys.modules.get(name) is module
        return snapshot_make.bare_module, (name, listed), state, None, None, snapshot_make.fill_module

    # Instances.

    def _own_reduce(self, thing):
        """What the class itself says. A name of the session would be looked for before it is there again."""
        reduced = thing.__reduce_ex__(5)
        if not isinstance(reduced, str):
            return reduced
        named = sys.modules.get(getattr(thing, "__module__", None) or "__main__")
        if named is not None and snapshot_classes.comes_from_disk(named):
            return reduced
        slots = {name: getattr(thing, name) for name in from_stdlib("copyreg")._slotnames(type(thing)) if hasattr(thing, name)}
        return snapshot_make.bare, (_base(type(thing)), type(thing)), (getattr(thing, "__dict__", None), slots)

    def _of_library(self, thing, beneath):
        """A thing that a library has one of, such as a mark for «no value», has to be that one again. What a module of the
        session has one of is in a file without its changes, so it is filled with what it holds."""
        kind = type(thing)
        names = self._singletons.get(kind)
        if names is None:
            names = self._singletons[kind] = _singletons(kind)
        name = names.get(id(thing))
        if name is None:
            return NotImplemented if beneath is None else beneath(thing)
        made = snapshot_make.attribute, name
        if not snapshot_classes.is_of_session(sys.modules.get(name[0])) or _has_own_reduce(kind, object):
            return made
        return (*made, snapshot_instances.attributes_of(thing), None, None, snapshot_make.fill_attributes)

    def _cached(self, function):
        if is_importable(function):
            return NotImplemented
        parameters = getattr(function, "cache_parameters", None)
        if parameters is None:
            raise Unpackable("a function with a cache, whose size is not known")
        made = snapshot_make.cached, (function.__wrapped__, parameters())
        return (*made, dict(function.__dict__), None, None, snapshot_make.fill_dict)


class Reference:
    """Stands in the pickle for what a call makes."""

    def __init__(self, make, arguments):
        self.reduced = make, arguments


def _known(injected):
    """Things that are there again in every session, and have to be those."""
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        thing = getattr(sys, name, None)
        if thing is not None:
            yield thing, (snapshot_make.attribute, ("sys", name))
    for name in ("print", "input", "open"):
        yield getattr(builtins, name), (snapshot_make.attribute, ("builtins", name))
    for name, thing in injected.items():
        if type(thing) not in (str, int, float, list, dict, types.ModuleType):
            yield thing, (snapshot_make.injected, (name,))
    for thing, of_module, path in _states_of_modules():
        yield thing, (snapshot_make.attribute, (of_module, path))
    if "decimal" in sys.modules:
        yield sys.modules["decimal"].getcontext(), (snapshot_make.decimal_context, ())
    if "os" in sys.modules:
        yield sys.modules["os"].environ, (snapshot_make.attribute, ("os", "environ"))


def _states_of_modules():
    """Things whose methods modules offer as functions; what they hold is among the settings."""
    for of_module, path in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        thing = getattr(sys.modules.get(of_module), path, None)
        if thing is not None:
            yield thing, of_module, path


def _refusal(reason):
    def refuse(_thing):
        raise Unpackable(f"it is or holds {reason}")

    return refuse


def _has_own_reduce(kind, base):
    return kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not base.__reduce__


def _base(kind):
    """The nearest base that is made in C."""
    return next(each for each in kind.__mro__ if not each.__flags__ & HEAP_TYPE)


def _makes_itself(kind):
    """Whether `__new__` is code of the session that expects arguments which `pickle` would not give."""
    for each in kind.__mro__:
        if "__getnewargs__" in each.__dict__ or "__getnewargs_ex__" in each.__dict__:
            return False
        if isinstance(each.__dict__.get("__new__"), staticmethod):
            return True
    return False


def _bare(thing):
    kind = type(thing)
    _new, arguments, *rest = object.__reduce_ex__(thing, 5)
    return (snapshot_make.bare, (_base(kind), *arguments), *rest)


def _enum_member(member):
    kind = type(member)
    base = getattr(kind, "_member_type_", object)
    _new, arguments, *rest = object.__reduce_ex__(member, 2)
    if base is object:
        arguments = (kind,)
    return (snapshot_make.bare, (base, *arguments), *rest)


def _singletons(kind):
    """Instances of the class that its module, or the package that it is from, has under a name: by their id."""
    found = {}
    names = [kind.__module__] if kind is not object else list(sys.modules)
    for of_module in names:
        module = sys.modules.get(of_module)
        if module is None or not snapshot_classes.comes_from_disk(module):
            continue
        for name, value in list(module.__dict__.items()):
            if type(value) is kind:
                found.setdefault(id(value), (of_module, name))
    return found


def _wrapper(method):
    """A class or static method; since Python 3.10 it has attributes, most of them those of its function."""
    its_own = dict(getattr(method, "__dict__", ()))
    made = type(method), (method.__func__,)
    return (*made, its_own, None, None, snapshot_make.fill_dict) if its_own else made


def _cell(cell):
    try:
        content = (cell.cell_contents,)
    except ValueError:
        return snapshot_make.cell, ()
    return snapshot_make.cell, (), content, None, None, snapshot_make.fill_cell


def _mapping_proxy(proxy):
    if isinstance(proxy.get("__dict__"), types.GetSetDescriptorType) or "__weakref__" in proxy:
        raise Unpackable("it is or holds the attributes of a class as a mapping")
    return types.MappingProxyType, (from_stdlib("gc").get_referents(proxy)[0],)


def _match(match):
    pattern, arguments = match.re, (match.string, match.pos, match.endpos)
    for name in ("search", "match", "fullmatch"):
        again = getattr(pattern, name)(*arguments)
        if again is not None and again.regs == match.regs:
            return snapshot_make.match, (pattern, name, *arguments)
    raise Unpackable("it is or holds a match of a pattern that cannot be found again by itself")


def _of_locks():
    def plain(lock):
        if lock.locked():
            raise Unpackable("it is or holds a lock that is held")
        return snapshot_make.lock, (False,)

    def reentrant(lock):
        if "unlocked" not in repr(lock):
            raise Unpackable("it is or holds a lock that is held")
        return snapshot_make.lock, (True,)

    threading = from_stdlib("threading")
    return {type(threading.Lock()): plain, type(threading.RLock()): reentrant}


def _of_weak_references():
    weakref = from_stdlib("weakref")

    def reference(it):
        referent = it()
        return (snapshot_make.dead_weak, ()) if referent is None else (snapshot_make.weak, (referent, it.__callback__))

    def mapping(it):
        return type(it), (), None, None, iter(list(it.items()))

    def proxy(it):
        try:
            return snapshot_make.proxy, (it.__reduce_ex__.__self__,)
        except (ReferenceError, AttributeError):
            raise Unpackable("it is or holds a weak proxy whose object is gone") from None

    return {
        weakref.ref: reference,
        weakref.WeakValueDictionary: mapping,
        weakref.WeakKeyDictionary: mapping,
        weakref.WeakSet: lambda it: (weakref.WeakSet, (list(it),)),
        weakref.ProxyType: proxy,
        weakref.CallableProxyType: proxy,
    }

