"""Kinds of objects that a session may hold, how each is made, and what has to be true when it has slept.

`check` is an expression that is true before and after; names that it uses are those that `make` binds. Where
`missing` is given, the names are reported as missing with a reason that has these words. `says` is what the guide says
beyond «comes back» or «is reported».
"""

import collections

Kind = collections.namedtuple("Kind", "name make check missing says needs", defaults=(None, None, ()))


def kind(name, make, check=None, missing=None, says=None, needs=()):
    return Kind(name, make, check, missing, says, needs)


KINDS = [
    # Functions.
    kind("functions", "def fun(a, *, b=2): return a + b + offset\noffset = 10", "fun(1) == 13 and fun.__globals__ is globals()"),
    kind("recursive functions", "def fact(n): return 1 if n < 2 else n * fact(n - 1)", "fact(6) == 720"),
    kind("mutually recursive functions", "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\npair = [even, odd]", "even(10) and not odd(10) and pair[0] is even"),
    kind("inner functions that call themselves", "def outer():\n    def rec(n): return 0 if n == 0 else 1 + rec(n - 1)\n    return rec\nrec = outer()", "rec(5) == 5"),
    kind("closures that share a cell", "def counter():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n    def now(): return n\n    return up, now\nup, now = counter(); up(); up()", "now() == 2 and up.__closure__[0] is now.__closure__[0]"),
    kind("lambdas", "twice = lambda x: x * 2", "twice(4) == 8"),
    kind("functions that set a `global`", "seen = 0\ndef note():\n    global seen\n    seen += 1\n    return seen", "note() == seen > 0"),
    kind("functions with attributes, annotations, defaults", "def fn(a: int, b: 'str' = 'x', *, c: float = 1.5) -> bool: 'doc'\nfn.tag = [1]", "fn.tag == [1] and fn.__annotations__['a'] is int and fn.__defaults__ == ('x',) and fn.__kwdefaults__ == {'c': 1.5} and fn.__doc__ == 'doc'"),
    kind("decorated functions", "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def wrap(*a): return f(*a) + 1\n    return wrap\n@deco\ndef decorated(x): return x", "decorated(1) == 2 and decorated.__wrapped__(1) == 1 and decorated.__name__ == 'decorated'"),
    kind("`functools.partial`", "import functools\npart = functools.partial(lambda a, b: a - b, 10)", "part(3) == 7"),
    kind("cached functions", "import functools\n@functools.lru_cache(maxsize=7)\ndef cached(x): return x * 3\ncached(2)", "cached(2) == 6 and cached.cache_parameters()['maxsize'] == 7", says="with an empty cache"),
    kind("`functools.singledispatch`", "import functools\n@functools.singledispatch\ndef show(x): return 'any'\n@show.register\ndef _show_int(x: int): return 'int'", "show(1) == 'int' and show('') == 'any'"),
    kind("bound methods", "class Holder:\n    def get(self): return self.v\nholder = Holder(); holder.v = 3; bound = holder.get; of_list = [1].append", "bound() == 3 and bound.__self__ is holder"),
    kind("built-in functions", "length = len; joined = ','.join; import math; root = math.sqrt", "length is len and joined('ab') == 'a,b' and root is math.sqrt"),
    # Classes.
    kind("classes and their instances", "class Point:\n    kind = 'p'\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\npt = Point(3); pts = [pt, pt]", "pt.x == 3 and type(pt) is Point and pts[0] is pts[1] is pt and isinstance(pt, Point)"),
    kind("class attributes changed later", "class Conf: level = 1\nConf.level = 5; Conf.extra = lambda self: self.level; conf = Conf()", "conf.level == 5 and conf.extra() == 5"),
    kind("inheritance and `super()`", "class A1:\n    def hi(self): return 'a'\nclass B1(A1):\n    def hi(self): return super().hi() + 'b'\nb1 = B1()", "b1.hi() == 'ab' and B1.__mro__[1] is A1 and B1.__base__ is A1"),
    kind("classes with `__init_subclass__`", "class Plug:\n    made = []\n    def __init_subclass__(cls, **kw): Plug.made.append(cls)\nclass P1(Plug): pass", "Plug.made == [P1]", says="the hooks do not run again"),
    kind("classes with metaclasses", "class Meta(type):\n    calls = []\n    def __new__(m, name, bases, ns, tag=None):\n        Meta.calls.append(name)\n        c = super().__new__(m, name, bases, ns); c.tag = tag; return c\n    def __call__(cls, *a): return super().__call__(*a)\nclass WithMeta(metaclass=Meta, tag=7): pass\nwm = WithMeta()", "type(WithMeta) is Meta and WithMeta.tag == 7 and type(wm) is WithMeta and Meta.calls == ['WithMeta']", says="the metaclass is not called again"),
    kind("`__slots__`", "class Slot:\n    __slots__ = ('a', '__b')\n    def __init__(self): self.a, self.__b = 1, 2\n    def b(self): return self.__b\nslot = Slot()", "slot.a == 1 and slot.b() == 2 and not hasattr(slot, '__dict__')"),
    kind("properties, class and static methods", "class Props:\n    _v = 2\n    @property\n    def v(self): return self._v\n    @v.setter\n    def v(self, n): self._v = n\n    @classmethod\n    def c(cls): return cls\n    @staticmethod\n    def s(x): return x\nprops = Props(); props.v = 9", "props.v == 9 and Props.c() is Props and Props.s(4) == 4"),
    kind("descriptors and cached properties", "import functools\nclass Cp:\n    @functools.cached_property\n    def heavy(self): return [1]\ncp = Cp(); heavy = cp.heavy", "cp.heavy is heavy"),
    kind("classes with a `__new__` of their own", "class Single:\n    def __new__(cls, v):\n        self = super().__new__(cls); self.v = v; return self\nclass Pair(tuple):\n    def __new__(cls, a, b): return super().__new__(cls, (a, b))\nsingle = Single(3); duo = Pair(1, 2)", "single.v == 3 and duo == (1, 2) and type(duo) is Pair"),
    kind("dataclasses", "import dataclasses\n@dataclasses.dataclass(order=True)\nclass Dc:\n    a: int\n    b: list = dataclasses.field(default_factory=list)\ndc = Dc(1)", "dc == Dc(1, []) and dataclasses.replace(dc, a=2) == Dc(2) and dataclasses.asdict(dc) == {'a': 1, 'b': []} and dataclasses.fields(Dc)[0].default is dataclasses.MISSING"),
    kind("frozen dataclasses with slots", "import dataclasses, sys\n@dataclasses.dataclass(frozen=True, **({'slots': True} if sys.version_info > (3, 10) else {}))\nclass Fz:\n    a: int\nfz = Fz(1)", "fz == Fz(1) and hash(fz) == hash(Fz(1))"),
    kind("enums", "import enum\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 'b'\n    def low(self): return self.name.lower()\nred = Color.RED", "red is Color.RED is Color(1) and Color['BLUE'].low() == 'blue' and list(Color) == [Color.RED, Color.BLUE]"),
    kind("int enums and flags", "import enum\nclass Lvl(enum.IntEnum):\n    LOW = 1\n    HIGH = 2\nclass Perm(enum.Flag):\n    R = enum.auto()\n    W = enum.auto()\nlvl = Lvl.HIGH; perm = Perm.R | Perm.W", "lvl is Lvl.HIGH and lvl + 1 == 3 and perm == Perm.R | Perm.W and Perm.R in perm"),
    kind("named tuples", "import collections, typing\nNt = collections.namedtuple('Nt', 'a b')\nclass Tn(typing.NamedTuple):\n    x: int\n    y: str = 'd'\nnt = Nt(1, 2); tn = Tn(5)", "nt == (1, 2) and nt._replace(a=3).a == 3 and tn.y == 'd' and type(tn) is Tn"),
    kind("abstract classes", "import abc\nclass Abs(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\nclass Conc(Abs):\n    def m(self): return 1\n@Abs.register\nclass Virt: pass\nconc = Conc()", "conc.m() == 1 and isinstance(conc, Abs) and issubclass(Virt, Abs) and Abs.__abstractmethods__ == {'m'}"),
    kind("generics and type variables", "import typing\nT = typing.TypeVar('T', bound=int)\nclass Box(typing.Generic[T]):\n    pass\nUid = typing.NewType('Uid', int)\nboxed = Box[int]; opt = typing.Optional[T]", "boxed.__origin__ is Box and Box.__parameters__ == (T,) and T.__bound__ is int and opt.__args__[0] is T and Uid(3) == 3"),
    kind("typed dictionaries and protocols", "import typing\nclass Td(typing.TypedDict):\n    a: int\n@typing.runtime_checkable\nclass Proto(typing.Protocol):\n    def run(self): ...\nclass Runs:\n    def run(self): pass\ntd = Td(a=1)", "td == {'a': 1} and isinstance(Runs(), Proto) and Td.__annotations__ == {'a': int}"),
    kind("instances of local classes", "def make_local():\n    class Local:\n        v = 4\n    return Local()\nlocal = make_local()", "local.v == 4 and type(local).__qualname__ == 'make_local.<locals>.Local'"),
    kind("subclasses of built-in types", "class MyDict(dict):\n    tag = 't'\nclass MyList(list): pass\nclass MyInt(int): pass\nmyd = MyDict(a=1); myd.note = 'n'; myl = MyList([1]); myl.self = myl; myi = MyInt(3)", "myd == {'a': 1} and myd.note == 'n' and myl.self is myl and myi == 3 and type(myi) is MyInt"),
    kind("objects that name themselves (`__reduce__` gives a name)", "class _Sentinel:\n    def __reduce__(self): return 'SENTINEL'\nSENTINEL = _Sentinel(); uses = [SENTINEL]", "uses[0] is SENTINEL"),
    kind("exceptions", "class Bad(Exception):\n    def __init__(self, code, text):\n        super().__init__(f'{code}: {text}'); self.code = code\ntry:\n    try: 1 / 0\n    except ZeroDivisionError as zero: raise Bad(7, 'x') from zero\nexcept Bad as e: bad = e\nimport_error = ImportError('no', name='n')", "bad.code == 7 and str(bad) == '7: x' and type(bad.__cause__) is ZeroDivisionError and import_error.name == 'n'", says="without tracebacks, which is reported"),
    # What runs.
    kind("generators", "gen = (i for i in range(3)); next(gen)", missing="a generator"),
    kind("coroutines", "async def co(): pass\ncoro = co()", "callable(co)", missing={"coro": "a coroutine"}),
    kind("async generators", "async def ag(): yield 1\nagen = ag()", "callable(ag)", missing={"agen": "an async generator"}),
    kind("locks, events, conditions, queues", "import threading, queue\nlock = threading.Lock(); rlock = threading.RLock(); event = threading.Event(); event.set(); cond = threading.Condition(rlock); q = queue.Queue(); q.put(5); sem = threading.Semaphore(3)", "lock.acquire(False) and not lock.release() and event.is_set() and cond._lock is rlock and q.queue[0] == 5 and sem._value == 3"),
    kind("locks that are held", "import threading\nheld = threading.Lock(); held.acquire()", missing="a lock that is held"),
    kind("threads", "import threading\nthread = threading.Thread(target=print)", missing="a thread"),
    kind("pools", "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(1)", missing="a pool"),
    kind("processes", "import subprocess\nchild = subprocess.Popen(['true']); child.wait()", missing="a process"),
    kind("sockets", "import socket\nsock = socket.socket()", missing="a socket"),
    kind("SQLite connections and cursors", "import sqlite3\ndb = sqlite3.connect(':memory:')\ncur = db.execute('select 1')", missing={"db": "sqlite3.Connection", "cur": "sqlite3.Cursor"}),
    kind("asyncio tasks, futures and loops", "import asyncio\nasync def nap(): await asyncio.sleep(0)\ntask = asyncio.ensure_future(nap()); await asyncio.sleep(0); aloop = asyncio.get_running_loop(); alock = asyncio.Lock()", "callable(nap) and not alock.locked()", missing={"task": "Task", "aloop": "event loop"}),
    kind("context variables", "import contextvars\nctxvar = contextvars.ContextVar('c')\nctxvar.set(1)", missing="ContextVar"),
    kind("frames and tracebacks", "import sys\ntry: 1/0\nexcept ZeroDivisionError: tb = sys.exc_info()[2]", missing={"tb": "a traceback"}),
    # Files.
    kind("text files at a position", "open('text.txt', 'w').write('one\\ntwo\\nthree\\n')\ntext_file = open('text.txt'); first_line = text_file.readline()", "text_file.tell() == 4 and text_file.name.endswith('text.txt')", says="opened again, which is reported"),
    kind("binary files at a position", "open('bin.dat', 'wb').write(bytes(100))\nbin_file = open('bin.dat', 'rb'); skipped = bin_file.seek(40)", "bin_file.tell() == 40 and len(bin_file.peek()) == 60"),
    kind("files that are written", "log_file = open('log.txt', 'w'); written = log_file.write('begun\\nnot flushed')", "log_file.tell() == 17", says="with what was not flushed yet"),
    kind("closed files", "with open('closed.txt', 'w') as closed_file: _ = closed_file.write('x')", "closed_file.closed and closed_file.name.endswith('closed.txt')"),
    kind("temporary files", "import tempfile\ntemp = tempfile.NamedTemporaryFile(); anon = tempfile.TemporaryFile()", missing={"temp": "a temporary file", "anon": "file"}),
    kind("files in memory", "import io\nsio = io.StringIO('abc'); bio = io.BytesIO(b'xyz'); moved = (sio.read(1), bio.seek(2))", "sio.tell() == 1 and sio.getvalue() == 'abc' and bio.tell() == 2"),
    kind("files with a mark of their encoding or own ends of lines", "marked = open('marked.txt', 'w', encoding='utf-8-sig', newline='\\r\\n'); _ = marked.write('a\\n')", "(marked.write('b\\n'), marked.flush(), open('marked.txt', 'rb').read().startswith(b'\\xef\\xbb\\xbfa\\r\\nb\\r\\n'))[2]", says="as they were begun"),
    kind("standard output", "import sys\nout = sys.stdout; streams = {'err': sys.stderr}", "out is sys.stdout and streams['err'] is sys.stderr"),
    # Structures.
    kind("recursive lists and dictionaries", "rl = [1]; rl.append(rl); rd = {}; rd['me'] = rd; rt = ([],); rt[0].append(rt)", "rl[1] is rl and rd['me'] is rd and rt[0][0] is rt"),
    kind("objects whose hash comes from their attributes, in sets of each other", "class Hashed:\n    def __init__(self, n): self.near, self.n = set(), n\n    def __hash__(self): return hash(self.n)\n    def __eq__(self, other): return self.n == other.n\nh1, h2 = Hashed(1), Hashed(2); h1.near |= {h1, h2}; h2.near.add(h1)", "h1 in h1.near and h2 in h1.near and h1 in h2.near"),
    kind("objects that answer to every name", "class Answers:\n    def __init__(self): self.kept = 1\n    def __getattr__(self, name): return lambda *_: None\nanswers = Answers()", "answers.__dict__ == {'kept': 1}"),
    kind("things with two names", "shared = [1]; also = shared; inside = {'s': shared}", "also is shared and inside['s'] is shared"),
    kind("weak references", "import weakref\nclass Ref: pass\nref_to = Ref(); wref = weakref.ref(ref_to); wprox = weakref.proxy(ref_to); gone = weakref.ref(Ref())", "wref() is ref_to and gone() is None and wprox.__class__ is Ref"),
    kind("weak dictionaries and sets", "import weakref\nclass Wk: pass\nwk = Wk(); wvd = weakref.WeakValueDictionary(a=wk); wkd = weakref.WeakKeyDictionary({wk: 1}); wset = weakref.WeakSet([wk])", "wvd['a'] is wk and wkd[wk] == 1 and wk in wset"),
    kind("iterators", "import itertools\nzipped = zip([1, 2], 'ab'); mapped = map(str, [1, 2]); enum_it = enumerate('ab'); list_it = iter([1, 2, 3]); used = (next(zipped), next(mapped), next(list_it)); rev = reversed([1, 2])", "list(__import__('copy').copy(list_it)) == [2, 3] and type(zipped) is zip"),
    kind("ranges, slices, complex and large numbers", "rng = range(2, 9, 3); sl = slice(1, None); cpl = 1+2j; big = 2**5000; inf = float('inf')", "list(rng) == [2, 5, 8] and sl == slice(1, None) and cpl == 1+2j and big == 2**5000 and inf > 0"),
    kind("`Decimal` and `Fraction`", "from decimal import Decimal\nfrom fractions import Fraction\ndec = Decimal('1.10'); fra = Fraction(1, 3)", "str(dec) == '1.10' and fra * 3 == 1"),
    kind("dates, zones, UUIDs, paths", "import datetime, zoneinfo, uuid, pathlib\nwhen = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc); uid = uuid.UUID(int=5); path = pathlib.Path('/tmp/x')\ntry: zone = zoneinfo.ZoneInfo('Europe/Berlin')\nexcept Exception: zone = None", "when.year == 2026 and uid.int == 5 and path.name == 'x' and (zone is None or zone is zoneinfo.ZoneInfo('Europe/Berlin'))"),
    kind("`collections`", "import collections\ndq = collections.deque([1, 2], maxlen=5); dd = collections.defaultdict(lambda: [0]); dd['a'].append(1); cnt = collections.Counter('aab'); od = collections.OrderedDict(b=1, a=2); cm = collections.ChainMap({'a': 1}, od)", "dq.maxlen == 5 and dd['a'] == [0, 1] and dd['z'] == [0] and cnt['a'] == 2 and list(od) == ['b', 'a'] and cm.maps[1] is od"),
    kind("namespaces, mapping proxies, frozen sets", "import types\nns = types.SimpleNamespace(a=1); plain = {'a': 1}; proxy_map = types.MappingProxyType(plain); fs = frozenset([1, 2])", "ns.a == 1 and proxy_map['a'] == 1 and (plain.update(b=2) or proxy_map['b'] == 2) and fs == {1, 2}"),
    kind("bytes, arrays of `array`, memory views", "import array\nba = bytearray(b'abc'); mv = memoryview(ba); arr = array.array('d', [1.5, 2.5])", "mv.obj is ba and arr.tolist() == [1.5, 2.5] and arr.typecode == 'd'"),
    kind("views of a part of memory", "part_of = memoryview(bytearray(10))[2:5]", missing="a view of a part"),
    kind("regular expressions and matches", "import re\nrx = re.compile('(a)(b)?', re.I); mt = rx.search('xxAB'); mts = list(re.finditer('[0-9]', '1a2'))", "rx.match('AB').groups() == ('A', 'B') and mt.span() == (2, 4) and mt.re is rx", missing={"mts": "a match"}),
    kind("ctypes values", "import ctypes\nci = ctypes.c_int(5); carr = (ctypes.c_int * 2)(1, 2)", "ci.value == 5", missing={"carr": ""}),
    kind("modules", "import json, os.path as osp, sys\nmods = {'j': json, 's': sys}", "mods['j'] is json and mods['s'] is sys and osp.join('a', 'b') == 'a/b'"),
    kind("modules below packages", "import xml.dom.minidom, xml.etree.ElementTree as tree", "xml.etree.ElementTree is tree and callable(xml.dom.minidom.parseString)"),
    kind("modules of the workspace", "open('helper_mod.py', 'w').write('class K: pass\\nv = 1\\n')\nimport helper_mod\nhk = helper_mod.K()", "type(hk) is helper_mod.K", says="by name: a changed file gives the changed module"),
    kind("modules made by code", "import types, sys\nmade_mod = types.ModuleType('made_mod'); made_mod.v = [1]; exec('def f(): return v', made_mod.__dict__); sys.modules['made_mod'] = made_mod", "made_mod.f() == [1] and __import__('made_mod') is made_mod"),
    kind("modules patched at run time", "import json as patched_json\ndef my_dumps(*a): return 'mine'\npatched_json.dumps = my_dumps", missing={"json.dumps": "the module's own is back"}, says="without the patch, which is reported"),
    kind("values that cells put into modules", "import string as of_python, math as of_c\nof_python.MINE = in_module = [1]; of_c.tau = 4; del of_python.octdigits", "of_python.MINE is in_module and of_c.tau == 4 and not hasattr(of_python, 'octdigits')"),
    kind("loggers and handlers", "import logging\nlg = logging.getLogger('my.app'); lg.setLevel(10); hd = logging.StreamHandler(); hd.setFormatter(logging.Formatter('%(message)s!')); lg.addHandler(hd)", "logging.getLogger('my.app') is lg and lg.level == 10 and lg.handlers == [hd] and hd.formatter._fmt == '%(message)s!'"),
    kind("loggers that no name leads to", "import logging\nlogging.getLogger('of.nobody').setLevel(40); logging.getLogger('of.nobody').propagate = False", "(logging.getLogger('of.nobody').level, logging.getLogger('of.nobody').propagate) == (40, False)"),
    kind("functions of a module that has a state", "import random, decimal\nrandint = random.randint; context = decimal.getcontext()", "randint.__self__ is random._inst and context is decimal.getcontext()"),
    kind("random states", "import random\nrnd = random.Random(3); rnd_state = rnd.getstate(); random.seed(4); mod_state = random.getstate()", "rnd.getstate() == rnd_state and random.getstate() == mod_state"),
    kind("environment variables, `sys.path`", "import os, sys\nos.environ['MINE'] = 'yes'; sys.path.append('/extra')", "os.environ['MINE'] == 'yes' and '/extra' in sys.path and os.getenv('MINE') == 'yes'"),
    kind("marks of libraries (`object()`, `MISSING`)", "import dataclasses, inspect\nmarks = [dataclasses.MISSING, inspect._empty, Ellipsis, NotImplemented, type(None)]", "marks[0] is dataclasses.MISSING and marks[1] is inspect._empty and marks[2] is ... and marks[4] is type(None)"),
    kind("`globals()`, `sys.modules`, `sys.path` as values", "import sys\ngl = globals(); sm = sys.modules; sp = sys.path", "gl is globals() and sm is sys.modules and sp is sys.path"),
    kind("tools", "the_tools = tools; err_class = ToolError", "the_tools is tools and err_class is ToolError"),
    # Packages.
    kind("numpy arrays and scalars", "import numpy as np\nna = np.arange(100000.0); small = np.ones(3); scalar = np.float32(1.5); fortran = np.asfortranarray(np.ones((300, 300))); days = np.array(['2026-01-01'], 'M8[D]').repeat(20000)", "na.sum() == 4999950000.0 and na.flags.owndata and small.flags.writeable and type(scalar) is np.float32 and fortran.flags.f_contiguous and fortran.flags.owndata and str(days[-1]) == '2026-01-01'", needs=("numpy",)),
    kind("numpy views that share memory", "import numpy as np\nnb = np.zeros((400, 400)); row = nb[3]; tr = nb.T; step = nb[::2, ::-1]; asint = nb.view('i8'); ro = nb.view(); ro.flags.writeable = False", "(row.__setitem__(5, 7) or nb[3, 5] == 7) and tr[5, 3] == 7 and np.shares_memory(step, nb) and step[0, 0] == nb[0, 399] and np.shares_memory(asint, nb) and not ro.flags.writeable and np.shares_memory(ro, nb)", needs=("numpy",)),
    kind("numpy arrays over bytes", "import numpy as np\nraw_bytes = bytearray(800); over = np.frombuffer(raw_bytes, 'i4')[2:]", "(over.__setitem__(0, 5) or raw_bytes[8] == 5)", needs=("numpy",)),
    kind("numpy memory maps", "import numpy as np\nmm = np.memmap('map.dat', 'f8', 'w+', shape=(100,)); mm[:] = 2; mm.flush()", "mm.sum() == 200 and type(mm) is np.memmap", says="mapped again, which is reported", needs=("numpy",)),
    kind("structured, object and masked arrays", "import numpy as np\nst = np.array([(1, 'a')], dtype=[('x', 'i4'), ('y', 'U3')]); ob_item = [1]; ob = np.array([ob_item, None], dtype=object); obv = ob[:1]; mk = np.ma.array([1, 2, 3], mask=[0, 1, 0])", "st['y'][0] == 'a' and ob[0] is ob_item and obv[0] is ob_item and np.shares_memory(obv, ob) and mk.sum() == 4", needs=("numpy",)),
    kind("numpy random generators", "import numpy as np\ng = np.random.default_rng(3); g_state = g.bit_generator.state; np.random.seed(2); np_state = np.random.get_state()[1].copy()", "g.bit_generator.state == g_state and (np.random.get_state()[1] == np_state).all()", needs=("numpy",)),
    kind("pandas frames, series, categoricals", "import pandas as pd, numpy as np\ndf = pd.DataFrame({'a': np.arange(20000), 'b': pd.Categorical(['x', 'y'] * 10000), 'c': ['s'] * 20000}, index=pd.date_range('2026', periods=20000, freq='min')); ser = df['a']; other = df", "other is df and df.a.sum() == 199990000 and str(df.b.dtype) == 'category' and ser.name == 'a' and df.index.freqstr in ('min', 'T') and df.loc['2026-01-01 00:02', 'a'] == 2", needs=("pandas",)),
    kind("scipy sparse matrices", "import scipy.sparse as sp_sparse\nsm1 = sp_sparse.eye(1000, format='csr')", "sm1.sum() == 1000", needs=("scipy",)),
    kind("scikit-learn models", "from sklearn.linear_model import LogisticRegression\nimport numpy as np\nmodel = LogisticRegression().fit(np.arange(20.0).reshape(-1, 1), [0] * 10 + [1] * 10)\npred = model.predict([[3.0], [17.0]]).tolist()", "model.predict([[3.0], [17.0]]).tolist() == pred == [0, 1]", needs=("sklearn",)),
    kind("matplotlib figures", "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); line, = ax.plot([1, 2, 3])", "fig.axes[0] is ax and ax.lines[0] is line and list(line.get_ydata()) == [1, 2, 3]", needs=("matplotlib",)),
    kind("polars frames", "import polars as pl\npf = pl.DataFrame({'a': [1, 2]})", "pf['a'].sum() == 3", needs=("polars",)),
]
