"""The kernel's parsers: whatever comes, in whatever pieces, is read or refused in the one way that is agreed.

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

from belljar_kernel import websocket, wire  # noqa: E402 - needs the path
from belljar_kernel.limits import FRAME_BYTES, UPGRADE_BYTES  # noqa: E402

import harness  # noqa: E402
from test_forged import SAY  # noqa: E402
from websocket_client import masked_frame, upgrade_request  # noqa: E402

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

masks = st.binary(min_size=4, max_size=4)
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


@st.composite
def conversations(draw):
    """Messages as a client may send them, and their frames: fragments, with control frames between them."""
    messages, frames = [], []
    for text in draw(st.lists(st.text(max_size=300), max_size=5)):
        payload = text.encode("utf-8", "surrogatepass")
        parts = pieces(payload, draw(cuts))
        for number, part in enumerate(parts):
            opcode = websocket.CONTINUATION if number else websocket.TEXT
            frames.append(masked_frame(opcode, part, final=number == len(parts) - 1, mask=draw(masks)))
            if number < len(parts) - 1 and draw(st.booleans()):
                ping = draw(st.binary(max_size=125))
                frames.append(masked_frame(websocket.PING, ping, mask=draw(masks)))
                messages.append((websocket.PING, ping))
        messages.append((websocket.TEXT, text))
    return messages, b"".join(frames)


@st.composite
def damaged(draw, streams):
    """A stream with some of its bytes replaced, dropped or repeated."""
    stream = bytearray(draw(streams))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream)))
        taken = draw(st.integers(0, 4))
        put = draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\r\n", b"\xff" * 8, b"\x81\xfe", b"\x88\x80", b":"])))
        stream[at : at + taken] = put
    return bytes(stream)


class Websocket(unittest.TestCase):
    @QUICK
    @given(conversations(), cuts)
    def test_what_is_sent_arrives_however_it_is_cut(self, conversation, at):
        messages, stream = conversation
        self.assertEqual(read(websocket.MessageReader(), pieces(stream, at), websocket.Violation), (messages, None))

    @QUICK
    @given(st.one_of(st.binary(max_size=200), damaged(conversations().map(lambda both: both[1]))), cuts)
    def test_damage_is_read_or_refused_in_one_way(self, stream, at):
        whole = read(websocket.MessageReader(), [stream], websocket.Violation)
        self.assertEqual(read(websocket.MessageReader(), pieces(stream, at), websocket.Violation), whole)

    @QUICK
    @given(st.integers(FRAME_BYTES + 1, 2**64 - 1), masks)
    def test_no_size_beyond_the_bound_is_waited_for(self, size, mask):
        head = b"\x81\xff" + size.to_bytes(8, "big") + mask
        self.assertIsNotNone(read(websocket.MessageReader(), [head], websocket.Violation)[1])

    @QUICK
    @given(damaged(st.just(upgrade_request("dGhlIHNhbXBsZSBub25jZQ=="))), cuts)
    def test_an_upgrade_is_answered_refused_or_waited_for(self, request, at):
        def outcome(received):
            try:
                return websocket.answer_upgrade(bytearray(received))
            except websocket.Violation:
                return "refused"

        whole = outcome(request)
        if whole is None:
            self.assertNotIn(b"\r\n\r\n", request[:UPGRADE_BYTES])
        elif whole != "refused":
            self.assertEqual(whole[0].count(b"\r\n\r\n"), 1)
            self.assertEqual(request[: whole[1]][-4:], b"\r\n\r\n")
        # What came first decides nothing before the rest of it is there.
        for end in at:
            early = outcome(request[:end])
            self.assertIn(early, (None, whole))


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
