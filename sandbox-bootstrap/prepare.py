"""Runs once for every image, before any session of it: compiles the kernel with the image's own Python, and
lists the packages that the image has, for models to know.

`python3 -I <this file> OUTPUT`: this file's directory cannot be written. `a/b.py` in it becomes `OUTPUT/a:b.pyc`;
what is known of the image is in `OUTPUT/prepared.json`. The daemon copies the files that it expects and no
others, under names of its own.
"""

import json
import os
import py_compile
import re
import site
import sys
from importlib import metadata

PACKAGES = 1_000
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
# Packages that people choose, even where another package needs them.
WELL_KNOWN = frozenset(
    "aiohttp altair beautifulsoup4 bokeh dask duckdb fastapi flask geopandas h5py httpx ipython jax jinja2 keras lightgbm "
    "lxml matplotlib networkx nltk numba numpy openai opencv-python opencv-python-headless openpyxl pandas pillow plotly "
    "polars psutil pyarrow pydantic pyyaml requests rich scikit-image scikit-learn scipy seaborn spacy sqlalchemy "
    "statsmodels sympy tensorflow torch tqdm transformers xarray xgboost".split()
)
# Packages that only help to build and install others, and their parts.
MACHINERY = re.compile(r"pip|setuptools|wheel|uv|autocommand|inflect|jaraco-.*|pkg-resources")


def packages():
    """The names of all packages, and of those that are worth a look: no other one needs them, or they are well known."""
    names, needed = {}, set()
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or not NAME.fullmatch(name):
            continue
        names[normal(name)] = name
        # Extras count, too: distributions of Linux install them along.
        needed.update(normal(found[0]) for found in map(NAME.match, distribution.requires or ()) if found)
    known = sorted(names, key=lambda name: names[name].lower())[:PACKAGES]
    main = [name for name in known if name in WELL_KNOWN or not (name in needed or MACHINERY.fullmatch(name))]
    return [names[name] for name in known], [names[name] for name in main]


def normal(name):
    """The name as `pip` compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main():
    directory = os.path.dirname(os.path.abspath(__file__))
    output = sys.argv[1]
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for folder, _, files in os.walk(directory):
        for source in (os.path.join(folder, file) for file in files if file.endswith(".py")):
            target = os.path.join(output, os.path.relpath(source, directory).replace(os.sep, ":") + "c")
            py_compile.compile(source, target, doraise=True, invalidation_mode=mode)
    names, main_names = packages()
    prepared = {
        "cache_tag": sys.implementation.cache_tag,
        "packages": names,
        "main_packages": main_names,
        "site": site.getsitepackages()[0],
    }
    with open(os.path.join(output, "prepared.json"), "w", encoding="utf-8") as file:
        json.dump(prepared, file)


main()
