"""Files of a sandbox's workspace. Paths are relative to it, or begin with `/workspace`; other absolute ones are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import IO, Literal, overload

from . import _api
from ._archive import empty_folder
from ._async import AsyncClient
from ._sync import SyncClient
from .errors import BadRequestError, NotFoundError
from .results import FileInfo

Content = str | bytes | bytearray | memoryview | IO[bytes] | IO[str]


def _bytes_of(data: Content) -> bytes:
    if hasattr(data, "read"):
        data = data.read()
    if isinstance(data, str):
        return data.encode("utf-8")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise _api.wrong(f"a file holds text or bytes, not {type(data).__name__}")


def _text_of(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        hint = 'read it with `format="bytes"`'
        raise BadRequestError(f"`{path}` is no text in UTF-8", code="bad_request", hint=hint) from None


def _checked(format: str) -> None:
    if format not in ("text", "bytes"):
        raise _api.wrong(f'`format` is "text" or "bytes", not {format!r}')


#: The workspace itself, of which no folder has a list that it is in. It has the path by which `list` gives all files.
_WORKSPACE = FileInfo("workspace", "", "folder", 0)


def _parent_and_name(path: str) -> tuple[str, str]:
    parent, _, name = _api.in_workspace(path).rstrip("/").rpartition("/")
    if not name:
        raise _api.wrong("a folder has a name")
    return parent, name


def _entry(entries: list[FileInfo], name: str, path: str) -> FileInfo:
    for entry in entries:
        if entry.name == name:
            return entry
    raise NotFoundError(f"there is no `{path}`", code="no_such_file")


class Files:
    def __init__(self, client: SyncClient, session: str) -> None:
        self._client = client
        self._session = session

    @overload
    def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    def read(self, path: str, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """All of a file, which has to fit into memory."""
        _checked(format)
        data = self._client.request(_api.read_file(self._session, path))
        return data if format == "bytes" else _text_of(data, path)

    def write(self, path: str, data: Content) -> None:
        """Makes a file, with the folders above it, or replaces it at once."""
        self._client.request(_api.write_file(self._session, path, _bytes_of(data)))

    def list(self, path: str = "") -> list[FileInfo]:
        return self._client.request(_api.list_files(self._session, path))

    def get_info(self, path: str) -> FileInfo:
        """A file or a folder, as it is listed."""
        if _api.is_workspace(path):
            self.list()
            return replace(_WORKSPACE)
        parent, name = _parent_and_name(path)
        return _entry(self.list(parent), name, path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        # What is elsewhere is not known, which is not the same as that it is not there.
        _api.in_workspace(path)
        try:
            self.get_info(path)
            return True
        except (NotFoundError, BadRequestError) as error:
            if error.code == "no_such_session":
                raise
            return False

    def make_dir(self, path: str) -> None:
        """Makes a folder, with those above it; one that is there stays as it is."""
        if _api.is_workspace(path):
            self.list()
            return
        parent, name = _parent_and_name(path)
        self._client.request(_api.unpack(self._session, parent, empty_folder(name)))

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it."""
        self._client.request(_api.remove_file(self._session, path))


class AsyncFiles:
    def __init__(self, client: AsyncClient, session: str) -> None:
        self._client = client
        self._session = session

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    async def read(self, path: str, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """All of a file, which has to fit into memory."""
        _checked(format)
        data = await self._client.request(_api.read_file(self._session, path))
        return data if format == "bytes" else _text_of(data, path)

    async def write(self, path: str, data: Content) -> None:
        """Makes a file, with the folders above it, or replaces it at once."""
        await self._client.request(_api.write_file(self._session, path, _bytes_of(data)))

    async def list(self, path: str = "") -> list[FileInfo]:
        return await self._client.request(_api.list_files(self._session, path))

    async def get_info(self, path: str) -> FileInfo:
        """A file or a folder, as it is listed."""
        if _api.is_workspace(path):
            await self.list()
            return replace(_WORKSPACE)
        parent, name = _parent_and_name(path)
        return _entry(await self.list(parent), name, path)

    async def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        # What is elsewhere is not known, which is not the same as that it is not there.
        _api.in_workspace(path)
        try:
            await self.get_info(path)
            return True
        except (NotFoundError, BadRequestError) as error:
            if error.code == "no_such_session":
                raise
            return False

    async def make_dir(self, path: str) -> None:
        """Makes a folder, with those above it; one that is there stays as it is."""
        if _api.is_workspace(path):
            await self.list()
            return
        parent, name = _parent_and_name(path)
        await self._client.request(_api.unpack(self._session, parent, empty_folder(name)))

    async def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it."""
        await self._client.request(_api.remove_file(self._session, path))
