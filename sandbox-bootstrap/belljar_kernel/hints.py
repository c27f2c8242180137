"""What to do about two errors that stop most users: a package that is not installed, a network that is not there."""

import _socket  # the C half, which user code cannot break
import errno
import sys

from .late_imports import from_stdlib
from .limits import HINT_LINKS

# Import names whose package has another name.
_DISTRIBUTIONS = {
    "attr": "attrs",
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "PyPDF2": "PyPDF2",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "github": "PyGithub",
    "google.generativeai": "google-generativeai",
    "google.protobuf": "protobuf",
    "graphviz": "graphviz",
    "igraph": "igraph",
    "imblearn": "imbalanced-learn",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "kafka": "kafka-python",
    "Levenshtein": "levenshtein",
    "lxml": "lxml",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "multipart": "python-multipart",
    "nacl": "pynacl",
    "osgeo": "gdal",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pylab": "matplotlib",
    "pyspark": "pyspark",
    "pytz": "pytz",
    "pywt": "PyWavelets",
    "ruamel.yaml": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "snappy": "python-snappy",
    "socks": "pysocks",
    "telegram": "python-telegram-bot",
    "umap": "umap-learn",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "wx": "wxpython",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
# Well-known packages that are imported by their own name.
_WELL_KNOWN = frozenset(
    "aiofiles aiohttp altair anthropic arrow asyncpg attrs black bokeh boto3 bottleneck catboost celery cffi chardet "
    "click cloudpickle cryptography cvxpy cython dash dask datasets deepdiff diskcache django docker duckdb einops "
    "fastapi fastparquet feedparser filelock flask fsspec gensim geopandas geopy gmpy2 gradio h5py holoviews httpx "
    "hypothesis imageio inflection IPython ipywidgets jax jinja2 joblib jsonschema keras langchain librosa lightgbm "
    "llvmlite loguru markdown matplotlib mlflow mpmath msgpack mypy nbformat networkx nltk numba numexpr numpy "
    "onnxruntime openai openpyxl orjson packaging pandas pandera paramiko patsy peewee pendulum pexpect pikepdf "
    "plotly polars pooch psutil psycopg pyarrow pydantic pydot pygments pymc pymongo pymysql pyparsing pypdf pytest "
    "qrcode rasterio redis regex reportlab requests rich rtree scapy scipy seaborn selenium sentencepiece shap "
    "shapely simpy spacy sqlalchemy sqlmodel starlette statsmodels streamlit sympy tables tabulate tenacity "
    "tensorflow termcolor textblob thefuzz tiktoken tokenizers toml torch torchaudio torchvision tornado tqdm "
    "transformers trio typer ujson urllib3 uvicorn uvloop wandb websockets wordcloud xarray xgboost "
    "xlrd xlsxwriter xlwt yfinance".split()
)
# Modules of the standard library that an image may lack, or that newer versions of Python do not have any more.
_STANDARD = frozenset(
    "aifc asynchat asyncore audioop binhex cgi cgitb chunk crypt curses distutils ensurepip formatter idlelib imghdr "
    "imp lib2to3 macpath mailcap msilib nis nntplib ossaudiodev parser pipes smtpd sndhdr spwd sunau symbol telnetlib "
    "this tkinter turtle turtledemo uu winreg winsound xdrlib".split()
)
_NO_NAME = (_socket.EAI_AGAIN, _socket.EAI_FAIL, _socket.EAI_NONAME, getattr(_socket, "EAI_NODATA", None))
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
_CELL_PREFIX = "<cell "
_GROUP = __builtins__.get("BaseExceptionGroup", ())  # since Python 3.11
# Whose error it is: the ways to what is missing differ.
FOR_CELLS, FOR_JOBS = 0, 1
_INSTALL = (
    "`%pip install {0}` in a cell installs it, and so does `belljar install -s SESSION {0}` outside of the session",
    "`belljar job run --with {0}` installs it before the script begins",
)
_INSTALL_COMMAND = ("`%pip install`", "`belljar job run --with`")
_INSTEAD_OF_NETWORK = (
    "the files of the workspace (`belljar cp` puts more there), the tools of the session, "
    "and `%pip install NAME` for packages",
    "the files that the job was given, and `belljar job run --with NAME` for packages",
)
_INSTEAD_WITHOUT_PACKAGES = (
    "the files of the workspace (`belljar cp` puts more there) and the tools of the session",
    "the files that the job was given",
)
_INSTEAD_OF_PIP = ("write `%pip {0}`", "leave the line out, and name the packages with `belljar job run --with`")


def about(error, no_packages=None, whose=FOR_CELLS):
    """A hint that belongs below the traceback of an error that ended a cell, or the script of a job; None if there is
    nothing to say. `no_packages` says why no package can be installed, if that is so."""
    for each in _causes(error):
        if isinstance(each, SyntaxError):
            return _about_line(each.text, no_packages, whose)
        if isinstance(each, ModuleNotFoundError):
            return _about_module(each.name, no_packages, whose)
        if _is_of_network(each):
            return _no_network(no_packages, whose) if _has_no_network() else None
    return None


def no_pip():
    return f"this sandbox has no `pip`; {install_outside()}"


def install_outside():
    return "`belljar install -s SESSION NAME` installs a package into the session"


def pip_option(option):
    return (
        f"`pip install` has no option `{option}` here: write names of packages, with versions if need be, "
        "as in `%pip install 'polars>=1' numpy`. Wheels come from the package index that the host uses"
    )


def not_of_index(package, what):
    return (
        f"`{package}` cannot be installed: it is {what}. Packages come from the index that the host uses: "
        "write a name, as in `%pip install polars`; a module of your own needs no installation in the workspace"
    )


def _no_network(no_packages, whose):
    instead = _INSTEAD_WITHOUT_PACKAGES if no_packages else _INSTEAD_OF_NETWORK
    return (
        "this sandbox has no network: no host can be reached, and trying again does not help. "
        f"There are {instead[whose]}"
    )


def _about_line(text, no_packages, whose):
    """Commands that were written without the sign that notebooks need."""
    words = text.split() if isinstance(text, str) else []
    if words[:2] not in (["pip", "install"], ["pip3", "install"]):
        return None
    if no_packages:
        return f"`pip` is a program and no Python, and {no_packages}"
    return f"`pip` is a program and no Python: {_INSTEAD_OF_PIP[whose].format(' '.join(words[1:]))}"


def _about_module(name, no_packages, whose):
    if not isinstance(name, str) or not name or name.startswith("_"):
        return None
    top = name.partition(".")[0]
    if top in _STANDARD or top in getattr(sys, "stdlib_module_names", sys.builtin_module_names):
        return None
    if sys.modules.get(top) is not None:
        return None  # the package is there, and has no such part
    distribution = _distribution(name)
    if distribution is not None:
        way = f", and {no_packages}" if no_packages else f": {_INSTALL[whose].format(distribution)}"
        return f"the package `{distribution}` is not installed{way}"
    known = {*_DISTRIBUTIONS, *_WELL_KNOWN, *_own_modules(), *getattr(sys, "stdlib_module_names", ())}
    similar = from_stdlib("difflib").get_close_matches(top, sorted(known), 1, 0.8)
    meant = f"; did you mean `{similar[0]}`? If not," if similar else ";"
    way = f"a package is installed with {_INSTALL_COMMAND[whose]} and its name in the index, which may be another one"
    return f"`{top}` is neither a file of the current folder nor an installed package{meant} {no_packages or way}"


def _distribution(name):
    """The package to install for a module, as far as it is known."""
    while name:
        if name in _DISTRIBUTIONS:
            return _DISTRIBUTIONS[name]
        if name in _WELL_KNOWN:
            return name.lower()
        name = name.rpartition(".")[0]
    return None


def _own_modules():
    try:
        names = from_stdlib("os").listdir(".")
    except OSError:
        return
    for name in names[:1000]:
        if name.endswith(".py"):
            yield name[:-3]


def _causes(error):
    """The error and what caused it. What a library raised while it handled an error, it raised because of that; what a
    cell or a script raises meanwhile may be about something else."""
    waiting = [error]
    for _ in range(HINT_LINKS):
        if not waiting:
            return
        error = waiting.pop()
        yield error
        cause = error.__cause__
        if cause is None and not error.__suppress_context__ and not _was_raised_in_own_code(error):
            cause = error.__context__
        if cause is not None:
            waiting.append(cause)
        waiting += getattr(error, "exceptions", ())[:HINT_LINKS] if isinstance(error, _GROUP) else ()


def _was_raised_in_own_code(error):
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None or frames.tb_frame.f_code.co_filename.startswith(_CELL_PREFIX):
        return True
    return frames.tb_frame.f_globals.get("__name__") == "__main__"  # of the script of a job


def _is_of_network(error):
    if isinstance(error, _socket.gaierror):
        return error.errno in _NO_NAME
    return isinstance(error, OSError) and error.errno in _NO_ROUTE


def _has_no_network():
    """Whether this process can reach nothing but itself: there is no route. Not every backend has walls."""
    try:
        with open("/proc/net/route", "rb") as file:
            return len(file.readlines()) <= 1  # of the headings
    except OSError:
        return True
