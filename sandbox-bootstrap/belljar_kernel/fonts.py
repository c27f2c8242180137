"""The font cache of matplotlib, built with the image, put where matplotlib looks for it."""

import os

_PREBUILT = "/usr/share/belljar/matplotlib"
_CACHE_BYTES = 16 * 1024 * 1024


def install_cache():
    """Saves seconds at the first plot. Never fails: matplotlib builds its own cache if it must."""
    target = os.environ.get("MPLCONFIGDIR")
    try:
        if not target or os.path.exists(target):
            return
        names = os.listdir(_PREBUILT)
        os.mkdir(target, 0o700)
        for name in names:
            with open(os.path.join(_PREBUILT, name), "rb") as source:
                data = source.read(_CACHE_BYTES)
            with open(os.path.join(target, name), "wb") as copy:
                copy.write(data)
    except OSError:
        pass
