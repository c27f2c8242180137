"""Who does the work. `CONTESTANTS` says what each is, so that one that cannot run is still in the report."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Entry:
    """`does` and `lacks` are what a reader has to know before comparing."""

    name: str
    module: str
    variant: str
    does: str
    lacks: str
    # The file below `requirements` that its environment is made from; contestants without one need nothing.
    requirements: str = ""
    # Builds images from the requirements of `gateway`; see `images.py`.
    image: bool = False
    only: str = ""


CELLS = "hot,idle,assign,change,start_science,science_hot,science_use,deadline,death,memory"
REST = "hot,assign,change"

OURS = [
    Entry("Belljar", "belljar", "docker",
          "A hardened container without network for each session; every cell in a durable journal before it is "
          "answered, a checkpoint after each that can have changed something.",
          "Its CPU limit is one processor, the default."),
    Entry("Belljar in a jail", "belljar", "bubblewrap",
          "The same in a bubblewrap jail with the host's Python.",
          "No image, so what the host's Python cannot import is not measured."),
    Entry("Belljar, checkpoints at rest", "belljar", "rest",
          "As the first, with `sandbox.checkpointing = \"idle\"`: a copy is made when the session rests, at the latest "
          "after 50 ms of cells back to back.",
          "A death can go back further than to the last cell; the result says so.", only=REST),
    Entry("Belljar, no checkpoints", "belljar", "unprotected",
          "As the first, with `sandbox.checkpoints = 0`.",
          "A cell that dies takes all variables with it.", only=CELLS),
    Entry("`docker exec`", "docker_cli", "exec",
          "A container of the same image without network; each cell is a new `python3 -c` in it.",
          "No state between cells, no limits, the engine's default rights; its deadline is `timeout` inside."),
    Entry("`docker run --rm`", "docker_cli", "run",
          "A new container of the same image without network for each cell.",
          "As before."),
    Entry("bare Python", "python_pipe", "",
          "One `python3` of the host that reads code from a pipe and writes the value of the last expression: what any "
          "persistent interpreter costs at least.",
          "No isolation, no deadline, nothing is kept when it dies."),
]  # fmt: skip

PEERS = [
    Entry("ipykernel", "ipykernel_client", "",
          "jupyter_client's blocking client and a kernel on the host, over TCP on loopback, as it is installed.",
          "No isolation; a deadline is the client's interrupt; a death loses all variables.",
          requirements="ipykernel.txt"),
    Entry("smolagents, local", "smolagents_local", "",
          "An interpreter of Python's syntax tree inside the caller's own process.",
          "No process of its own, so no isolation and no memory limit; a loop that is too late goes on in its thread; "
          "a subset of Python.",
          requirements="smolagents.txt"),
    Entry("smolagents, Docker", "smolagents_docker", "",
          "A container of the same image with Jupyter's kernel gateway added, on a port of loopback; a new websocket "
          "for each cell.",
          "The container has a network and its default rights; no deadline; a death loses all variables.",
          requirements="smolagents.txt", image=True),
    Entry("llm-sandbox", "llm_sandbox_session", "plain",
          "A container of the same image; each cell is a file that is copied in and run by a new Python. Its own "
          "set-up of a virtual environment is skipped, as it needs a package index.",
          "No state between cells; the container has a network, and root in it; removal waits for the container to end "
          "by itself, 10 s.",
          requirements="llm-sandbox.txt"),
    Entry("llm-sandbox, pooled", "llm_sandbox_session", "pooled",
          "The same from its pool of two started containers.",
          "As before; a container goes back to the pool with the files that the last user left.",
          requirements="llm-sandbox.txt"),
    Entry("llm-sandbox, interactive", "llm_sandbox_session", "interactive",
          "An IPython in a container of the same image with IPython added; code and results are files that are polled.",
          "The container has a network, and root in it; a death loses all variables.",
          requirements="llm-sandbox.txt", image=True),
    Entry("pydantic-monty", "monty", "",
          "An interpreter written in Rust, in a worker process that its pool has started before.",
          "A subset of Python without third-party packages; no sandbox of the operating system; after a deadline it "
          "gives no guarantee for the heap.",
          requirements="monty.txt"),
]  # fmt: skip
