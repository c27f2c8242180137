"""The parsers of the kernel's Python side: whatever comes, in whatever pieces, is read or refused in the one way that is agreed.

These need `hypothesis`; `make test` and `make fuzz` make the environment for it. `BELLJAR_FUZZ_SECONDS` has each test
try inputs for about that long.
"""

import os
import sys
import unittest
from unittest import mock

os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(sys.prefix, "hypothesis"))
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

_TESTS = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path[:0] = [_TESTS, os.path.join(_TESTS, "..", "..", "sandbox-bootstrap")]

from belljar_kernel import wire  # noqa: E402 - needs the path

import harness  # noqa: E402
from test_forged import SAY  # noqa: E402

# Inputs of these parsers a second, roughly, and whole cells of a kernel.
INPUTS_A_SECOND, CELLS_A_SECOND = 300, 2
SECONDS = int(os.environ.get("BELLJAR_FUZZ_SECONDS", "0"))
QUICK = settings(
    max_examples=SECONDS * INPUTS_A_SECOND or 200,
    deadline=None,
    derandomize=not SECONDS,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SLOW = settings(QUICK, max_examples=SECONDS * CELLS_A_SECOND or 20)

cuts = st.lists(st.integers(0, 2000), max_size=6)


def pieces(stream, at):
    """The stream, cut at some places."""
    edges = [0, *sorted(min(cut, len(stream)) for cut in at), len(stream)]
    return [stream[start:end] for start, end in zip(edges, edges[1:])]


def read(reader, chunks, refusal):
    """All messages, and how it ended: None, or what the refusal says."""
    messages = []
    try:
        for chunk in chunks:
            reader.feed(chunk)
            while (message := reader.next()) is not None:
                messages.append(message)
    except refusal as problem:
        return messages, str(problem)
    return messages, None


class Wire(unittest.TestCase):
    @QUICK
    @given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=6), cuts)
    def test_messages_of_runners_arrive_however_they_are_cut(self, messages, at):
        stream = b"".join(wire.pack(kind, payload) for kind, payload in messages)
        self.assertEqual(read(wire.MessageReader(), pieces(stream, at), wire.WireError), (messages, None))

    @QUICK
    @given(st.binary(max_size=100), cuts)
    def test_any_bytes_of_runners_are_read_or_refused_in_one_way(self, stream, at):
        whole = read(wire.MessageReader(), [stream], wire.WireError)
        self.assertEqual(read(wire.MessageReader(), pieces(stream, at), wire.WireError), whole)

    @QUICK
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        )
    )
    def test_values_are_the_same_on_the_other_side(self, value):
        self.assertEqual(wire.decode_json(wire.encode_json(value).decode()), value)

    @QUICK
    @given(st.text(alphabet='{}[]",:0123456789eE+-.tfn\\u \n', max_size=60))
    def test_text_is_json_or_a_value_error(self, text):
        try:
            wire.decode_json(text)
        except (ValueError, RecursionError):
            pass


class Guardian(unittest.TestCase):
    """Code of a cell writes anything to the guardian's channels: it may lose its own cell by that, and no more."""

    def setUp(self):
        # What code says need not be as agreed: the daemon looks at each word, and the harness does not.
        for patched in (mock.patch.object(harness, "KERNEL_SCHEMA", None), mock.patch.object(harness.Kernel, "_answer_tool")):
            patched.start()
            self.addCleanup(patched.stop)
        self.kernel = harness.Kernel()
        self.addCleanup(self.kernel.close)
        self.kernel.start()
        self.kernel.run(SAY + "kept = 'as it was'")

    @SLOW
    @given(
        st.lists(
            st.tuples(
                st.sampled_from([900, 901]),
                st.sampled_from([*"MPQYCBVLXDHSZ\0", "raw"]),
                st.one_of(
                    st.binary(max_size=40),
                    st.sampled_from([b"", b"1", b"2097152", b"-1", b"\0" * 8, b"\xff" * 8, b"[" * 5000, b"{}"]),
                ),
            ),
            max_size=6,
        )
    )
    def test_whatever_code_sends_costs_its_cell_at_most(self, messages):
        sent = "os.write(place, payload) if kind == 'raw' else say(kind, payload, place)"
        self.end_of(f"for place, kind, payload in {messages!r}: {sent}\ntime.sleep(0.02)")
        frame = self.end_of("kept")
        if frame["type"] == "cell_lost":
            # The word that broke the rules was read when the cell that sent it was done.
            frame = self.end_of("kept")
        self.assertEqual((frame["type"], frame["result"]["repr"]), ("cell_done", "'as it was'"))

    def end_of(self, code):
        run = self.kernel.submit(code)
        while True:
            frame = self.kernel.next_frame(30)
            if frame.get("cell") == run.cell and frame["type"] in ("cell_done", "cell_lost", "refused"):
                return frame
