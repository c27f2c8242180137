"""Arrays and views of memory, taken apart so that what shared memory shares it again."""

import sys

from . import snapshot_make
from .late_imports import from_stdlib
from .limits import INLINE_BYTES

pickle = from_stdlib("pickle")

# Classes beside `bytes` and `bytearray` whose memory is packed whole, and is theirs again.
_EXPORTERS = (("array", "array"),)


def plan(kind, packing):
    """How instances of this class are taken apart; None if it is no array."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if kind is getattr(numpy, "ndarray", None):
        return lambda array: _array(array, numpy, packing)
    if kind is getattr(numpy, "memmap", None):
        return lambda array: _mapped(array, numpy, packing)
    ndarray = getattr(numpy, "ndarray", None)
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    # Elements of masked arrays are of a class below that of the arrays, and are no arrays.
    if ndarray is None or not issubclass(kind, ndarray) or kind.__name__ == "mvoid":
        return None
    if any(issubclass(kind, each) and _says_the_same(kind, each) for each in (ndarray, masked) if each):
        return lambda array: _of_subclass(array, numpy, packing)
    return None


def _says_the_same(kind, base):
    """Whether the class is taken apart as that one is."""
    names = ("__reduce__", "__reduce_ex__", "__setstate__")
    return all(getattr(kind, name) is getattr(base, name) for name in names)


def memory_view(view):
    base = view.obj
    whole = memoryview(base)
    if not view.contiguous or whole.nbytes != view.nbytes:
        raise pickle.PicklingError("it is or holds a view of a part of other memory")
    is_readonly = view.readonly and not whole.readonly
    return snapshot_make.view, (base, view.format, view.shape, is_readonly)


def _array(array, numpy, packing):
    if array.nbytes == 0:
        return NotImplemented
    base = array.base
    if base is not None:
        shared = _shared(array, numpy)
        if shared is not None:
            return shared
        packing.note("memory", f"an array came back with memory of its own, which it shared with a {_owner(array, numpy)}")
        if array.dtype.hasobject or not (array.flags.c_contiguous or array.flags.f_contiguous):
            return NotImplemented
    elif array.dtype.hasobject or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return NotImplemented
    order = "C" if array.flags.c_contiguous else "F"
    raw = array.reshape(-1, order="A").view(numpy.uint8)
    data = None
    if raw.nbytes >= INLINE_BYTES:
        packing.add_buffer(memoryview(raw))
    else:
        data = raw.tobytes()
    return snapshot_make.array, (array.shape, array.dtype, order, data, array.flags.writeable)


def _of_subclass(array, numpy, packing):
    """One that has memory of another array comes back as a view of that, as the class of its own."""
    its_dict = dict(getattr(array, "__dict__", ()))
    if array.base is not None and not array.dtype.hasobject:
        return snapshot_make.array_as, (array.view(numpy.ndarray), type(array), its_dict)
    if array.base is not None:
        packing.note("memory", f"an array came back with memory of its own, which it shared with a {_owner(array, numpy)}")
    make, arguments, state = type(array).__reduce__(array)
    return make, arguments, (state, its_dict), None, None, snapshot_make.fill_array


def _root(array, numpy):
    """What has the memory of the array."""
    root = array
    while isinstance(root, numpy.ndarray) and not isinstance(root, numpy.memmap) and root.base is not None:
        root = root.base
    return root.obj if type(root) is memoryview else root


def _owner(array, numpy):
    return type(_root(array, numpy)).__name__


def _shared(array, numpy):
    """The array as a view of what has the memory; None if that cannot be packed as one thing."""
    root = _root(array, numpy)
    if isinstance(root, numpy.ndarray):
        if not (root.flags.c_contiguous or root.flags.f_contiguous):
            return None
        if root.dtype.hasobject != array.dtype.hasobject or (root.dtype.hasobject and root.dtype != array.dtype):
            return None
        start = _address(root)
    elif isinstance(root, (bytes, bytearray)) or (type(root).__module__, type(root).__name__) in _EXPORTERS:
        start = _address(numpy.frombuffer(root, numpy.uint8))
    else:
        return None
    offset = _address(array) - start
    if offset < 0:
        return None
    arguments = (root, array.shape, array.dtype, array.strides, offset, array.flags.writeable)
    return snapshot_make.array_view, arguments


def _address(array):
    return array.__array_interface__["data"][0]


def _mapped(array, numpy, packing):
    if type(array.base) is not from_stdlib("mmap").mmap:
        return _shared(array.view(numpy.ndarray), numpy) or NotImplemented  # a part of another map
    if array.filename is None or array.mode == "c":
        raise pickle.PicklingError("it is or holds a map of a file whose changes are not in the file")
    packing.note_file(str(array.filename))
    mode = "r+" if array.mode == "w+" else array.mode
    order = "C" if array.flags.c_contiguous else "F"
    return snapshot_make.mapped, (str(array.filename), array.dtype, mode, array.offset, array.shape, order)
