"""Images for peers that need packages inside of the container: Belljar's own, with those packages on top.

Nothing is fetched by the engine: packages are downloaded for the Python of the image on the host, copied in, and
compiled there, so that no peer pays for that at its start.
"""

import hashlib
import pathlib
import shutil
import subprocess
import tempfile

import engine

HERE = pathlib.Path(__file__).parent
REQUIREMENTS = HERE / "requirements/gateway.txt"
BUILD_SECONDS = 300
# Newer systems have newer ones; pip takes what fits best.
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")

# The libraries are what the packages' compiled parts need and Python alone does not. llm-sandbox looks for the
# environment that it would have made.
DOCKERFILE = """FROM {image}
USER 0
COPY --from={science} /usr/lib/*-linux-gnu/libstdc++.so.6 /usr/lib/*-linux-gnu/libgcc_s.so.1 /usr/lib/
COPY packages /opt/packages
COPY bin/ /sandbox/.sandbox-venv/bin/
RUN ln -s /usr/bin/python3 /sandbox/.sandbox-venv/bin/python && python3 -m compileall -q /opt/packages || true
ENV PYTHONPATH=/opt/packages HOME=/tmp PIP_BREAK_SYSTEM_PACKAGES=1
USER 65534:65534
"""
# What the image of smolagents runs; llm-sandbox leaves a container with the command of its image.
GATEWAY = ["python3", "-m", "kernel_gateway", "--KernelGatewayApp.ip=0.0.0.0", "--KernelGatewayApp.port=8888"]


def name(image):
    return f"belljar-bench/{image.rpartition('/')[2]}"


def build(pip):
    """Builds the images with the `pip` of an environment, unless those of the same packages are there."""
    wanted = REQUIREMENTS.read_text()
    for image in (engine.BASE, engine.SCIENCE):
        source = engine.docker("image", "inspect", "--format", "{{.Id}}", image).decode().strip()
        mark = f"{source} {hash_of(wanted + DOCKERFILE)}"
        if engine.available(name(image)) and mark == label(name(image)):
            continue
        with tempfile.TemporaryDirectory(prefix="bjimage") as folder:
            fill(pathlib.Path(folder), pip, image)
            subprocess.run(
                ["docker", "build", "--quiet", "--network", "none", "--label", f"{engine.LABEL}.made={mark}",
                 "--tag", name(image), folder],
                check=True, capture_output=True, timeout=BUILD_SECONDS,
            )  # fmt: skip


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def label(image):
    form = f'{{{{index .Config.Labels "{engine.LABEL}.made"}}}}'
    return engine.docker("image", "inspect", "--format", form, image).decode().strip()


def fill(folder, pip, image):
    asked = "import platform, sys; print(*sys.version_info[:2], platform.machine())"
    run = ("run", "--rm", "--network", "none", image, "python3", "-c", asked)
    major, minor, machine = engine.docker(*run).decode().split()
    platforms = [f"--platform={kind}_{machine}" for kind in PLATFORMS]
    subprocess.run(
        [pip, "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--no-compile",
         f"--python-version={major}.{minor}", *platforms, "--target", folder / "packages", "-r", REQUIREMENTS],
        check=True, capture_output=True, timeout=BUILD_SECONDS,
    )  # fmt: skip
    shutil.rmtree(folder / "packages/bin", ignore_errors=True)
    (folder / "bin").mkdir()
    pip_command = folder / "bin/pip"
    pip_command.write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    pip_command.chmod(0o755)
    (folder / "Dockerfile").write_text(DOCKERFILE.format(image=image, science=engine.SCIENCE))
