"""Programs and files as adapters have them: of any size, with the rights of the sandbox's user, and nothing left behind."""

from __future__ import annotations

import errno
import threading

from belljar import BelljarError, Sandbox
from belljar._guest import INLINE_BYTES, FileTooLarge, Guest, OutputTooLarge, Program, SandboxGone, shell_words

from .harness import WithDaemon, eventually, in_thread

_LARGE = 5 * 1024 * 1024
#: After SIGTERM, or SIGKILL for those that did not heed it.
_KILLED = (143, 137)


class GuestCases(WithDaemon):
    def test_files_of_all_sizes_and_places(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            for size in (0, INLINE_BYTES, INLINE_BYTES + 1, _LARGE):
                data = (b"\x00\xff\n" * (size // 3 + 1))[:size]
                for path in ("deep/file", "/tmp/deep/file"):
                    guest.write(path, data)
                    self.assertEqual(guest.read(path), data)
                    self.assertEqual(guest.read(path, _LARGE), data)
            with self.assertRaises(FileTooLarge):
                guest.read("deep/file", _LARGE - 1)
            # A list that is larger than a command may say.
            box.commands.run("mkdir many; cd many; seq -f %0200g 1000 | xargs touch", check=True)
            self.assertEqual(len(guest.entries("many")), 1000)
            self.assertEqual({entry.name for entry in box.files.list()}, {"deep", "many"})

    def test_a_file_keeps_its_rights_and_links_lead_on(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            guest.write("run", b"#!/bin/sh\n")
            box.commands.run("chmod 741 run; ln -s run link; ln -s nowhere lost; ln -s /etc/hostname out", check=True)
            guest.write("link", b"#!/bin/sh\necho hello\n")
            self.assertEqual(box.commands.run("stat -c %a run; ./link").stdout, "741\nhello\n")
            self.assertEqual(guest.real_path("link"), f"{guest.folder}/run")
            self.assertEqual((guest.exists("lost"), guest.exists("link")), (False, True))
            self.assertEqual(guest.read("link"), b"#!/bin/sh\necho hello\n")
            guest.remove("link")
            self.assertTrue(guest.exists("run"))
            numbers = {"none": errno.ENOENT, "run/x": errno.ENOTDIR, "/etc": errno.EISDIR, "/dev/null": errno.EINVAL}
            for path, number in numbers.items():
                with self.assertRaises(OSError) as raised:
                    guest.read(path)
                self.assertEqual(raised.exception.errno, number)
                self.assertIn(path, str(raised.exception))
            with self.assertRaises(PermissionError):
                guest.write("/etc/passwd", b"")

    def test_names_that_are_no_text(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            box.commands.run("mkdir odd; printf x > odd/\"$(printf 'a\\377')\"", check=True)
            (entry,) = guest.entries("odd")
            self.assertEqual(entry.name.encode("utf-8", "surrogateescape"), b"a\xff")
            self.assertEqual(guest.read(f"odd/{entry.name}"), b"x")
            guest.remove(f"odd/{entry.name}")
            self.assertEqual(guest.entries("odd"), [])

    def test_answers_that_make_no_sense_are_errors_of_this_package(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            self.assertTrue(guest.folder)
            for answer in ("1", "{}", "no json", '{"value": 1}', '{"error": 1}', '{"error": ["a", "b"]}', "[" * 100_000):
                guest._source = f"print({answer[:20]!r} + {answer[20:21]!r} * {max(len(answer) - 20, 0)})"
                for work in (guest.status, guest.entries, lambda path: guest.read(path, 10)):
                    with self.subTest(answer=answer[:20]), self.assertRaises(BelljarError):
                        work("/tmp/file")

    def test_words_and_input_of_any_size(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            words = ["printf", "%s", *["x" * 60_000] * 10]
            self.assertEqual(len(Program(guest, words, envs={"A": "a"}).run().stdout), 600_000)
            shell = ["sh", "-c", "wc -c; echo $A; pwd", *words]
            counted = Program(guest, shell, cwd="/tmp", envs={"A": "a"}, stdin=b"i" * _LARGE)
            self.assertEqual(counted.run().stdout.split(), [str(_LARGE), "a", "/tmp"])
            # A program that ends when nobody reads it any more does so here, too.
            ended = Program(guest, ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"], stdin=b"i" * _LARGE).run()
            self.assertEqual(ended.stdout, "y\n141\n")
            missing = Program(guest, ["no-such-program"], stdin=b"i" * _LARGE).run()
            self.assertEqual(missing.exit_code, 127)
            self.assertEqual(box.files.list(), [])

    def test_a_program_ends_when_it_is_to(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)

            def is_ended() -> bool | None:
                return True if all(one.state == "done" for one in box.commands.list()) else None

            with self.assertRaises(OutputTooLarge) as much:
                Program(guest, shell_words("yes"), most=10).run()
            self.assertEqual(much.exception.stdout, "y\n" * 5)
            eventually("the program that wrote too much has ended", is_ended)
            begun = threading.Event()
            program = Program(guest, shell_words("echo $$; sleep 1000"))
            told = program._saw

            def saw(event: dict[str, object]) -> None:
                told(event)
                if event.get("type") == "output":
                    begun.set()

            program._saw = saw  # type: ignore[method-assign]
            waits = in_thread(program.run)
            begun.wait()
            program.end()
            self.assertIn(waits().exit_code, _KILLED)
            # One that is ended before it has begun.
            early = Program(guest, shell_words("sleep 1000"))
            early.end()
            self.assertIn(early.run().exit_code, _KILLED)

    def test_a_removed_sandbox_is_told_from_a_reset_one(self) -> None:
        with Sandbox.create() as box:
            guest = Guest(box)
            waits = in_thread(Program(guest, shell_words("sleep 1000")).run)
            eventually("it runs", lambda: True if any(one.state == "running" for one in box.commands.list()) else None)
            box.reset()
            self.assertIn(waits().exit_code, _KILLED)
            waits = in_thread(Program(guest, shell_words("sleep 1000")).run)
            eventually("it runs", lambda: True if any(one.state == "running" for one in box.commands.list()) else None)
            box.kill()
            with self.assertRaises(SandboxGone):
                waits()
            with self.assertRaises(SandboxGone):
                guest.read("file")


class OnDocker(GuestCases):
    backend = "docker"


class OnBubblewrap(GuestCases):
    backend = "bubblewrap"


del GuestCases
