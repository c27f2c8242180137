"""Packages, from an index that the tests start themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from belljar import AsyncSandbox, BadRequestError, BelljarError, ForbiddenError, PackageError, Sandbox

from .harness import WithDaemon
from .test_async import run

_ROOT = Path(__file__).resolve().parents[3]
_INDEX = _ROOT / "tests/it/support/package_index.py"
_UV = _ROOT / "target/sdk/uv-wheels"


class WithIndex(WithDaemon):
    """Tests against a daemon that knows no other index."""

    index: ClassVar[subprocess.Popen[str]]

    @classmethod
    def setUpClass(cls) -> None:
        if not list(_UV.glob("*.whl")):
            fetch = ["pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "uv", "--dest", str(_UV)]
            subprocess.run([sys.executable, "-m", *fetch], check=True)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        command = [sys.executable, str(_INDEX), folder.name, str(_UV)]
        cls.index = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls._end_index)
        assert cls.index.stdout is not None
        port = cls.index.stdout.readline().strip()
        cls.configuration += f'[packages]\nindex = "https://localhost:{port}/simple"\ndeny = ["bell-denied"]\n'
        trust = {"SSL_CERT_FILE": f"{folder.name}/ca.pem", "NO_PROXY": "localhost"}
        before = {name: os.environ.get(name) for name in trust}
        os.environ.update(trust)
        cls.addClassCleanup(_restore, before)
        super().setUpClass()

    @classmethod
    def _end_index(cls) -> None:
        cls.index.kill()
        cls.index.communicate()


class PackageCases(WithIndex):
    def test_packages_are_there_at_once(self) -> None:
        with Sandbox.create(packages=["bell-dep"]) as box:
            self.assertEqual(box.run_code("from bell_dep import inner; inner.DEEP").text, "7")
            installed = box.install("bell-hello==1.0")
            self.assertEqual({(one.name, one.version) for one in installed.packages}, {("bell-hello", "1.0"), ("bell-dep", "1.0")})
            self.assertIsNone(box.run_code("import bell_hello").error)
            refused: list[tuple[str, type[BelljarError]]] = [
                ("bell-none", PackageError),
                ("bell-denied", ForbiddenError),
                ("-e .", BadRequestError),
            ]
            for wrong, kind in refused:
                with self.assertRaises(kind, msg=wrong):
                    box.install(wrong)
        before = self.ground.sessions()
        with self.assertRaises(PackageError):
            Sandbox.create(packages=["bell-none"])
        self.assertEqual(self.ground.sessions(), before)

        async def work() -> str | None:
            async with await AsyncSandbox.create() as box:
                await box.install("bell-dep")
                return (await box.run_code("import bell_dep.inner; bell_dep.inner.DEEP")).text

        self.assertEqual(run(work()), "7")


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class OnDocker(PackageCases):
    backend = "docker"


class OnBubblewrap(PackageCases):
    backend = "bubblewrap"


del PackageCases
