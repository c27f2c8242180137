"""Small copies of large pictures, for models that see.

The daemon decodes no picture, because what a sandbox made is not trusted. So the sandbox itself adds a small copy to a
picture that is too large for models. That takes Pillow, which comes with matplotlib; without it there is no copy, and the
model is told in words which pictures it can see.
"""

import base64
import io
import struct

from . import wire
from .limits import PICTURE_BYTES, PICTURE_SIDE, SCALED_PIXELS, SCALED_SIDES

SMALL_COPY = "application/vnd.belljar.small-picture"
_PNG, _JPEG = "image/png", "image/jpeg"
_PNG_HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_SIDES = struct.Struct(">II")
_JPEG_QUALITY = 80
# Modes of Pillow that are scaled as they are. All others become RGBA.
_MODES = ("L", "RGB", "RGBA")


def with_small_copy(mime, most_bytes):
    """The forms of a value, and a small copy of its picture if that is too large for models and all forms together do not
    take more than `most_bytes`.

    A copy that code brought itself is dropped, because a model would see another picture than people do.
    """
    mime = without_small_copy(mime)
    form = next((form for form in (_PNG, _JPEG) if isinstance(mime.get(form), str)), None)
    if form is None:
        return mime
    try:
        small = _small_copy(form, mime[form])
    except Exception:
        return mime  # as without Pillow
    if small is None:
        return mime
    with_copy = {**mime, SMALL_COPY: small}
    size = sum(len(wire.encode_json(form)) for form in with_copy.values())
    return with_copy if size <= most_bytes else mime


def without_small_copy(mime):
    return {name: form for name, form in mime.items() if name != SMALL_COPY}


def _small_copy(form, encoded):
    data, is_long = base64.b64decode(encoded), len(encoded) > PICTURE_BYTES
    if form == _PNG and not (data.startswith(_PNG_HEAD) and _is_scaled(_SIDES.unpack_from(data, len(_PNG_HEAD)), is_long)):
        return None
    from PIL import Image  # few sessions have it, and fewer need it here

    picture = Image.open(io.BytesIO(data))  # reads no more than the head
    if not _is_scaled(picture.size, is_long):
        return None
    if picture.mode not in _MODES:
        picture = picture.convert("RGBA")
    for side in SCALED_SIDES:
        picture.thumbnail((side, side))
        for small in (_saved(picture, "PNG"), _saved(_opaque(Image, picture), "JPEG", quality=_JPEG_QUALITY)):
            if len(small) <= PICTURE_BYTES:
                return small
    return None


def _is_scaled(sides, is_long):
    return (is_long or max(sides) > PICTURE_SIDE) and sides[0] * sides[1] <= SCALED_PIXELS


def _saved(picture, form, **options):
    file = io.BytesIO()
    picture.save(file, format=form, **options)
    return base64.b64encode(file.getvalue()).decode()


def _opaque(image, picture):
    """The picture on white, because a JPEG has no transparency."""
    if picture.mode != "RGBA":
        return picture
    ground = image.new("RGB", picture.size, "white")
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground
