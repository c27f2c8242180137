"""Digests of what variables hold, by which two sessions are compared.

Only instances of classes that are made in C, which no code can change, are looked into, so that no code of the session
runs. Tables of pandas are the exception: of its own classes the attributes are read that hold the data.
"""

import sys

from .late_imports import from_stdlib
from .limits import (
    DIGEST_BYTES,
    DIGEST_CHUNK_BYTES,
    DIGEST_DEPTH,
    DIGEST_ITEMS,
    DIGEST_SIZE,
    DIGESTS_BYTES,
)

# Digests that are made in another way are not compared with those of this one.
_WAY = "2"
# Flags of classes, as CPython's `object.h` has them.
_IS_IMMUTABLE, _IS_ON_HEAP = 1 << 8, 1 << 9
# What classes say of themselves, without asking those that they are instances of.
_flags, _module, _called = (type.__dict__[name].__get__ for name in ("__flags__", "__module__", "__name__"))
# What numpy's elements may be: their bytes are their content. The others point to objects or have padding.
_PLAIN_KINDS = "biufcSUMmV"
_PADDED_FLOATS = "gG"
# What the code of a function does, without where it stands.
_CODE_PARTS = (
    "co_code",
    "co_exceptiontable",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_flags",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_consts",
)
_PANDAS_PARTS = {
    "Index": ("_data", "_name"),
    "RangeIndex": ("_range", "_name"),
    "DatetimeIndex": ("_data", "_name"),
    "TimedeltaIndex": ("_data", "_name"),
    "PeriodIndex": ("_data", "_name"),
    "CategoricalIndex": ("_data", "_name"),
    "DatetimeArray": ("_ndarray",),
    "TimedeltaArray": ("_ndarray",),
    "PeriodArray": ("_ndarray",),
    "NumpyExtensionArray": ("_ndarray",),
    "PandasArray": ("_ndarray",),
    "StringArray": ("_ndarray",),
    "Categorical": ("_ndarray", "categories", "ordered"),
    "NAType": (),
}


# Longer numbers and texts are charged before they are written out.
_SHORT, _SHORT_CHARS = 1 << 64, 256


class CannotDigestError(Exception):
    """The value is or holds something that has no digest, or too much."""


class Digests:
    """Makes digests until it has read as much as it may."""

    def __init__(self):
        self._left = DIGESTS_BYTES

    def of(self, value):
        """The way in which it was made, a colon, and the digest. Raises if there is none."""
        if self._left <= 0:
            raise CannotDigestError
        digest = _Digest(min(self._left, DIGEST_BYTES))
        try:
            digest.add(value)
            return digest.text()
        finally:
            self._left -= digest.read


class _Digest:
    """The hash of one value. Each part goes into it with its class and its length, so that different values differ."""

    def __init__(self, most):
        self.read = 0
        self._most, self._items, self._depth = most, 0, 0
        self._has_code = False
        self._hash = _new_hash()

    def text(self):
        # The same function has other code in each version of Python.
        way = f"{_WAY}-{sys.implementation.cache_tag}" if self._has_code else _WAY
        return f"{way}:{self._hash.hexdigest()}"

    def add(self, value):
        kind = type(value)
        self._items += 1
        if self._items > DIGEST_ITEMS or self._depth == DIGEST_DEPTH:
            raise CannotDigestError
        # Code of a class whose instances are classes could run when one of them is looked up.
        way = _ways.get(kind) if type(kind) is type else _way_of(kind)
        if way is None:
            way = _ways[kind] = _way_of(kind)
        self._depth += 1
        way(self, value)
        self._depth -= 1

    def _charge(self, count):
        self.read += count
        if self.read > self._most:
            raise CannotDigestError

    def _begin(self, tag, length):
        self._charge(length)
        self._head(tag, length)

    def _head(self, tag, length):
        self._hash.update(b"%s %d " % (tag, length))

    def _write(self, tag, content):
        self._begin(tag, len(content))
        self._hash.update(content)

    def _buffer(self, tag, memory):
        """Part by part: the timer of the view is heard only in between."""
        memory = memory.cast("B")
        self._begin(tag, len(memory))
        for start in range(0, len(memory), DIGEST_CHUNK_BYTES):
            self._hash.update(memory[start : start + DIGEST_CHUNK_BYTES])

    def _sequence(self, tag, values):
        self._begin(tag, len(values))
        # The calls of `add` for a number or a text take several times as long as its hash, and long lists often hold nothing
        # else: so the short ones are hashed here, as the same bytes.
        for value in values:
            kind = type(value)
            if kind is int and -_SHORT < value < _SHORT:
                name, content = b"int", b"%x" % value
            elif kind is float:
                name, content = b"float", value.hex().encode()
            elif kind is str and len(value) <= _SHORT_CHARS:
                name, content = b"str", value.encode("utf-8", "surrogatepass")
            else:
                self.add(value)
                continue
            length = len(content)
            self._items += 1
            self.read += length
            if self._items > DIGEST_ITEMS or self.read > self._most:
                raise CannotDigestError
            self._hash.update(b"%s %d %s" % (name, length, content))

    def constant(self, value):
        self._write(type(value).__name__.encode(), repr(value).encode())

    def integer(self, value):
        self._charge(value.bit_length() // 4)
        digits = b"%x" % value
        self._head(b"int", len(digits))
        self._hash.update(digits)

    def float(self, value):
        self._write(b"float", value.hex().encode())

    def complex(self, value):
        self._write(b"complex", f"{value.real.hex()} {value.imag.hex()}".encode())

    def text_value(self, value):
        """Part by part: a whole text may take as many bytes again as it has, and its characters are all that is charged."""
        self._charge(len(value))
        self._head(b"str", len(value) if value.isascii() else sum(map(len, _encoded(value))))
        for part in _encoded(value):
            self._hash.update(part)

    def bytes(self, value):
        self._buffer(type(value).__name__.encode(), memoryview(value))

    def range(self, value):
        self._sequence(b"range", (value.start, value.stop, value.step))

    def typed_array(self, value):
        self._write(b"typecode", value.typecode.encode())
        self._buffer(b"array", memoryview(value))

    def sequence(self, value):
        self._sequence(type(value).__name__.encode(), value)

    def mapping(self, value):
        self._in_any_order(b"dict", value.items())

    def set(self, value):
        self._in_any_order(type(value).__name__.encode(), ((item,) for item in value))

    def _in_any_order(self, tag, groups):
        """In the order of their digests: equal sets may lie in another order in each process, and equal dictionaries, too."""
        outer, digests = self._hash, []
        for group in groups:
            self._hash = _new_hash()
            for item in group:
                self.add(item)
            digests.append(self._hash.digest())
        self._hash = outer
        self._write(tag, b"".join(sorted(digests)))

    def moment(self, value):
        """Its zone by itself: `repr` would ask it, and it may be of a class of the session."""
        self.constant(value.replace(tzinfo=None))
        self.add(value.tzinfo)

    def zone(self, value):
        self._sequence(b"timezone", (value.utcoffset(None), value.tzname(None)))

    def function(self, value):
        """What it was made of. The variables that it uses are compared by themselves."""
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = (value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells, value.__dict__)
        self._sequence(b"function", parts)

    def code(self, value):
        self._has_code = True
        self._sequence(b"code", [getattr(value, name, None) for name in _CODE_PARTS])

    def numpy_scalar(self, value):
        _check_plain(value.dtype)
        self._write(b"dtype", value.dtype.str.encode())
        self._write(b"scalar", value.tobytes())

    def ndarray(self, array):
        dtype = array.dtype
        self._write(b"ndarray", f"{array.shape} {dtype.str}".encode())
        if dtype.names is not None:
            # Field by field, because what lies between the fields is no content.
            self._sequence(b"fields", dtype.names)
            for name in dtype.names:
                self.add(array[name])
        elif dtype.kind == "O":
            for item in array.flat:
                self.add(item)
        elif array.nbytes:
            _check_plain(dtype)
            self._elements(array)

    def _elements(self, array):
        if array.flags.c_contiguous:
            self._buffer(b"elements", memoryview(array.reshape(-1).view("u1")))
            return
        # In the order of their indexes, however they lie in memory.
        self._begin(b"elements", array.nbytes)
        flat, at_once = array.flat, max(DIGEST_CHUNK_BYTES // array.dtype.itemsize, 1)
        for start in range(0, array.size, at_once):
            self._hash.update(flat[start : start + at_once].tobytes())

    def series(self, value):
        manager = _checked(value._mgr)
        values = [_checked(block).values for block in manager.blocks]
        self._sequence(b"series", (vars(value).get("_name"), *manager.axes, *values))

    def frame(self, value):
        """Column by column: which of them lie in one array differs between frames that are equal."""
        manager, columns = _checked(value._mgr), {}
        for block in manager.blocks:
            values = _checked(_checked(block).values)
            for number, place in enumerate(block.mgr_locs.as_array.tolist()):
                # What is no array of numpy may have one dimension, and is then the only column of its block.
                columns[place] = values if values.ndim == 1 else values[number]
        self._sequence(b"frame", (*manager.axes, *(columns[place] for place in sorted(columns))))

    def masked(self, value):
        """What lies under the mask is no content. The rest is copied, so there must be room for all of it."""
        mask, data = _checked_array(value._mask), _checked_array(value._data)
        # Any other mask would name places, and one place several times.
        if mask.dtype.kind != "b" or self.read + data.nbytes > self._most:
            raise CannotDigestError
        self._sequence(b"masked", (mask, data[~mask]))

    def part_of_table(self, value):
        called = _called(type(value))
        self._write(b"pandas", f"{called} {getattr(value, 'dtype', None)}".encode())
        self._sequence(b"parts", [getattr(value, name) for name in _PANDAS_PARTS[called]])


def _encoded(text):
    for start in range(0, len(text), DIGEST_CHUNK_BYTES):
        yield text[start : start + DIGEST_CHUNK_BYTES].encode("utf-8", "surrogatepass")


def _new_hash():
    return from_stdlib("_blake2").blake2b(digest_size=DIGEST_SIZE)


def _check_plain(dtype):
    if dtype.kind not in _PLAIN_KINDS or dtype.char in _PADDED_FLOATS or dtype.hasobject or dtype.names is not None:
        raise CannotDigestError


def _name_of(kind):
    """The module and the name of a class that is made in C; those of others may be anything."""
    flags = _flags(kind)
    is_native = flags & _IS_IMMUTABLE or not flags & _IS_ON_HEAP
    return (_module(kind), _called(kind)) if is_native else None


def _way_of(kind):
    """The method that adds instances of the class."""
    name = _name_of(kind)
    if name in _WAYS:
        return _WAYS[name]
    if name is not None and name[0] == "numpy" and ("numpy", "generic") in map(_name_of, type.mro(kind)):
        return _Digest.numpy_scalar
    if _is_of_pandas(kind) and _called(kind) in _PANDAS_WAYS:
        return _PANDAS_WAYS[_called(kind)]
    raise CannotDigestError


def _is_of_pandas(kind):
    """Whether pandas has the class under its name: one of the session may only be called so."""
    module = _module(kind)
    if type(module) is not str or not module.startswith("pandas."):
        return False
    found = sys.modules.get(module)
    return type(found) is type(sys) and vars(found).get(_called(kind)) is kind


def _checked(part):
    """A part of a table whose attributes can be read without running code of the session."""
    return part if _is_of_pandas(type(part)) else _checked_array(part)


def _checked_array(part):
    if _name_of(type(part)) != ("numpy", "ndarray"):
        raise CannotDigestError
    return part


_ways = {}  # by class, as they are met
_WAYS = {
    ("builtins", "NoneType"): _Digest.constant,
    ("builtins", "bool"): _Digest.constant,
    ("builtins", "ellipsis"): _Digest.constant,
    ("builtins", "NotImplementedType"): _Digest.constant,
    ("builtins", "int"): _Digest.integer,
    ("builtins", "float"): _Digest.float,
    ("builtins", "complex"): _Digest.complex,
    ("builtins", "str"): _Digest.text_value,
    ("builtins", "bytes"): _Digest.bytes,
    ("builtins", "bytearray"): _Digest.bytes,
    ("builtins", "range"): _Digest.range,
    ("builtins", "list"): _Digest.sequence,
    ("builtins", "tuple"): _Digest.sequence,
    ("builtins", "dict"): _Digest.mapping,
    ("builtins", "set"): _Digest.set,
    ("builtins", "frozenset"): _Digest.set,
    ("builtins", "function"): _Digest.function,
    ("builtins", "code"): _Digest.code,
    ("collections", "deque"): _Digest.sequence,
    ("array", "array"): _Digest.typed_array,
    ("datetime", "date"): _Digest.constant,
    ("datetime", "timedelta"): _Digest.constant,
    ("datetime", "timezone"): _Digest.zone,
    ("datetime", "datetime"): _Digest.moment,
    ("datetime", "time"): _Digest.moment,
    ("decimal", "Decimal"): _Digest.constant,
    ("numpy", "ndarray"): _Digest.ndarray,
}
_PANDAS_WAYS = {
    "DataFrame": _Digest.frame,
    "Series": _Digest.series,
    "IntegerArray": _Digest.masked,
    "FloatingArray": _Digest.masked,
    "BooleanArray": _Digest.masked,
    **dict.fromkeys(_PANDAS_PARTS, _Digest.part_of_table),
}
