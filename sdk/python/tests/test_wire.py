"""The parser of answers and events, however they are cut."""

from __future__ import annotations

import os
import pickle
import random
import re
import socket
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from belljar import BadRequestError, DaemonError, _api, _daemon
from belljar._wire import EventDecoder, Head, ResponseParser, WireError, encode_request
from belljar.errors import _CLASSES, AskError, problem_of
from belljar.results import Result


def parsed(pieces: list[bytes]) -> tuple[Head | None, bytes, bool]:
    parser = ResponseParser()
    body = b""
    for piece in pieces:
        parser.feed(piece)
        body += parser.take()
    return parser.head, body, parser.is_done


def cut(data: bytes, seed: int) -> list[bytes]:
    places = sorted(random.Random(seed).choices(range(len(data) + 1), k=seed % 9))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)])]


class Answers(unittest.TestCase):
    def test_an_answer_is_the_same_however_it_is_cut(self) -> None:
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b: c\r\n\r\nhello"
        chunked = (
            b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nbelljar-left-out: 0\r\n\r\n"
        )
        for data, status in ((plain, 200), (chunked, 404)):
            for seed in range(200):
                head, body, is_done = parsed(cut(data, seed))
                assert head is not None
                self.assertEqual((head.status, body, is_done), (status, b"hello", True))
            self.assertFalse(parsed([data[:-1]])[2])

    def test_an_answer_without_a_body_ends_with_its_head(self) -> None:
        self.assertTrue(parsed([b"HTTP/1.1 204 No\r\n\r\n"])[2])

    def test_what_is_no_answer_is_refused(self) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        for wrong in (
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            head + b"Content-Length: -1\r\n\r\n",
            head + b"Content-Length: 2\r\n\r\nabc",
            head + b"Content-Length: 99999999999\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
            b"x" * 70_000,
        ):
            with self.assertRaises(WireError, msg=wrong[:80]):
                parsed([wrong])

    def test_a_request_has_a_length_if_it_has_a_body(self) -> None:
        self.assertEqual(encode_request("GET", "/a", {}, None), b"GET /a HTTP/1.1\r\nHost: belljar\r\n\r\n")
        self.assertTrue(encode_request("PUT", "/a", {"X": "y"}, b"ab").endswith(b"X: y\r\nContent-Length: 2\r\n\r\nab"))


class Events(unittest.TestCase):
    def test_events_are_the_same_however_they_are_cut(self) -> None:
        stream = ": alive\n\nid: 1\nevent: output\ndata: {\"a\":\ndata: \"é\"}\n\ndata:b\n\nevent: y\n\n".encode()
        for seed in range(200):
            decoder = EventDecoder()
            events = [event for piece in cut(stream, seed) for event in decoder.feed(piece)]
            self.assertEqual([(event.name, event.data) for event in events], [("output", '{"a":\n"é"}'), ("", "b")])


class Values(unittest.TestCase):
    def test_sizes_are_those_of_the_configuration(self) -> None:
        for text, size in (
            ("512MiB", 512 << 20),
            ("1.5g", 3 << 29),
            ("10MB", 10_000_000),
            ("64 m", 64 << 20),
            ("2Gi", 2 << 30),
            ("7b", 7),
            ("7", 7),
            (7, 7),
        ):
            self.assertEqual(_api.bytes_of(text, "memory"), size, text)
        for wrong in ("", "x", "1x", "-1", "1.2.3g", -1, True, 1.5, "ib"):
            with self.assertRaises(BadRequestError, msg=str(wrong)):
                _api.bytes_of(wrong, "memory")  # type: ignore[arg-type]

    def test_the_copy_of_a_picture_for_models_is_no_form_of_a_result(self) -> None:
        copy = {"application/vnd.belljar.small-picture": "c21hbGw="}
        shown = Result({"image/png": "cG5n", **copy}, is_main_result=False)
        self.assertEqual(shown.formats(), ["image/png"])
        self.assertEqual(shown._repr_mimebundle_(), {"image/png": "cG5n"})

    def test_errors_survive_a_pipe(self) -> None:
        for error in (
            problem_of(409, b'{"code":"session_exists","message":"taken","hint":"another"}'),
            AskError("no", outcome="step_limit", steps=3, tokens=5),
        ):
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), str(again), vars(again)), (type(error), str(error), vars(error)))
        self.assertEqual(str(problem_of(409, b'{"code":"busy","message":"m","hint":"h"}')), "m (h)")
        for body in (b"", b"[]", b"{}", b"<html>"):
            self.assertIn("status 502", str(problem_of(502, body)))


    def test_every_code_of_the_daemon_has_a_class(self) -> None:
        codes = (Path(__file__).resolve().parents[3] / "docs/errors.toml").read_text().partition("[code]\n")[2].partition("\n[")[0]
        self.assertEqual(set(re.findall(r"^(\w+) =", codes, re.MULTILINE)), set(_CLASSES))


class Places(unittest.TestCase):
    def path(self, user: int, **environment: str) -> str:
        with mock.patch("os.geteuid", lambda: user):
            return _daemon.socket_path(environment)

    def test_the_socket_is_where_the_command_looks(self) -> None:
        self.assertEqual(self.path(0, HOME="/root"), "/run/belljar/belljar.sock")
        self.assertEqual(self.path(7, HOME="/h", XDG_RUNTIME_DIR="/run/user/7"), "/run/user/7/belljar/belljar.sock")
        self.assertEqual(self.path(7, HOME="/h"), "/h/.local/state/belljar/run/belljar.sock")
        self.assertEqual(self.path(7, HOME="/h", XDG_STATE_HOME="/x"), "/x/belljar/run/belljar.sock")
        self.assertEqual(self.path(0, BELLJAR_HOME="/b"), "/b/belljar.sock")
        self.assertEqual(self.path(7, BELLJAR_HOME="/b", BELLJAR_SOCKET="/s"), "/s")

    def test_places_that_cannot_be_are_refused(self) -> None:
        for environment in ({}, {"BELLJAR_HOME": "here"}, {"BELLJAR_SOCKET": "/" + "x" * 107}):
            with self.assertRaises(DaemonError):
                self.path(7, **environment)

    def test_the_daemon_of_the_machine_is_used_unless_the_user_has_one(self) -> None:
        with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
            folder = Path(name)
            of_machine, home = str(folder / "machine"), folder / "state/belljar"
            environment = {"HOME": name, "XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder / "run")}
            own = folder / "run/belljar/belljar.sock"
            own.parent.mkdir(parents=True)

            def found() -> str:
                return _daemon.socket_path()

            with (
                mock.patch("os.geteuid", lambda: 7),
                mock.patch.dict(os.environ, environment, clear=True),
                mock.patch.object(_daemon, "_SYSTEM_SOCKET", of_machine),
            ):
                self.assertEqual(found(), str(own), "none listens")
                listener.bind(of_machine)
                self.assertEqual(found(), str(own), "its daemon has ended")
                listener.listen()
                self.assertEqual(found(), of_machine)
                self.assertEqual(_daemon.socket_path(environment), str(own), "these are not the words of this process")
                # The user's own runs.
                with socket.socket(socket.AF_UNIX) as other:
                    other.bind(str(own))
                    self.assertEqual(found(), of_machine, "it does not listen")
                    other.listen()
                    self.assertEqual(found(), str(own))
                self.assertEqual(found(), of_machine, "it has ended")
                # It has sessions for when it runs again.
                (home / "w").mkdir(parents=True)
                self.assertEqual(found(), of_machine, "no session is left")
                (home / "w/a-session").mkdir()
                self.assertEqual(found(), str(own))
                with mock.patch.dict(os.environ, {"BELLJAR_HOME": str(folder / "another")}):
                    self.assertEqual(found(), str(folder / "another/belljar.sock"), "it was named")

    def test_the_daemon_of_somebody_else_is_not_used(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = str(Path(folder) / "s")
            listener.bind(path)
            listener.listen()
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(path)
                _daemon.check_trust(path, stream)
                with mock.patch("os.geteuid", lambda: 4711):
                    if os.stat(path).st_uid != 0:
                        with self.assertRaises(DaemonError):
                            _daemon.check_trust(path, stream)
                with mock.patch("os.stat", lambda _path: mock.Mock(st_uid=4711)):
                    with self.assertRaises(DaemonError) as refused:
                        _daemon.check_trust(path, stream)
                    self.assertEqual(refused.exception.code, "foreign_daemon")
