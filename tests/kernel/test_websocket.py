"""The websocket module by itself."""

import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "sandbox-bootstrap")))

from belljar_kernel import websocket  # noqa: E402 - needs the path
from belljar_kernel.limits import FRAME_BYTES, UPGRADE_BYTES  # noqa: E402

from websocket_client import masked_frame, upgrade_request  # noqa: E402


class Upgrade(unittest.TestCase):
    def test_the_example_of_the_rfc(self):
        answer, used = websocket.answer_upgrade(bytearray(upgrade_request("dGhlIHNhbXBsZSBub25jZQ==") + b"rest"))
        self.assertIn(b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", answer)
        self.assertTrue(answer.startswith(b"HTTP/1.1 101 ") and answer.endswith(b"\r\n\r\n"))
        self.assertEqual(used, len(upgrade_request("dGhlIHNhbXBsZSBub25jZQ==")))

    def test_half_a_request_waits(self):
        whole = upgrade_request()
        for size in range(len(whole)):
            self.assertIsNone(websocket.answer_upgrade(bytearray(whole[:size])))

    def test_what_is_refused(self):
        good = upgrade_request()
        for bad in (
            good.replace(b"GET", b"PUT"),
            good.replace(b"HTTP/1.1", b"HTTP/1.0"),
            good.replace(b"Version: 13", b"Version: 8"),
            good.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
            good.replace(b"Connection: Upgrade", b"Connection: close"),
            good.replace(b"Sec-WebSocket-Key", b"X"),
            good.replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: AAAA"),
            good.replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: !"),
            good.replace(b"Host: kernel", b"Host kernel"),
            good.replace(b"Host: kernel", b"Host : kernel"),
            good.replace(b"Host: kernel", b"Upgrade: websocket"),
            good.replace(b"\r\n\r\n", b"\r\n" + b"A: b\r\n" * 5 + b"\r\n"),
            b"x" * UPGRADE_BYTES,
        ):
            with self.assertRaises(websocket.Violation):
                websocket.answer_upgrade(bytearray(bad))


class Frames(unittest.TestCase):
    def read(self, *chunks):
        reader, messages = websocket.MessageReader(), []
        for chunk in chunks:
            reader.feed(chunk)
            while (message := reader.next()) is not None:
                messages.append(message)
        return messages

    def test_messages_of_all_sizes_in_any_pieces(self):
        for size in (0, 1, 125, 126, 65535, 65536, 200_000):
            text = "é" * (size // 2)
            frame = masked_frame(websocket.TEXT, text.encode(), mask=os.urandom(4))
            self.assertEqual(self.read(frame), [(websocket.TEXT, text)])
            middle = random.Random(size).randrange(len(frame))
            self.assertEqual(self.read(frame[:middle], frame[middle:]), [(websocket.TEXT, text)])
        frame = masked_frame(websocket.TEXT, b"slow")
        self.assertEqual(self.read(*(bytes([byte]) for byte in frame)), [(websocket.TEXT, "slow")])

    def test_control_frames_between_fragments(self):
        messages = self.read(
            masked_frame(websocket.TEXT, b"a", final=False),
            masked_frame(websocket.PING, b"p"),
            masked_frame(websocket.CONTINUATION, b"b", final=False),
            masked_frame(websocket.CONTINUATION, b"c"),
        )
        self.assertEqual(messages, [(websocket.PING, b"p"), (websocket.TEXT, "abc")])

    def test_breaches_of_the_protocol(self):
        text = websocket.TEXT
        for frame, code in (
            (b"\x81\x01a", websocket.PROTOCOL_ERROR),
            (masked_frame(text, b"a", reserved=0x10), websocket.PROTOCOL_ERROR),
            (masked_frame(0x7, b"a"), websocket.PROTOCOL_ERROR),
            (masked_frame(websocket.BINARY, b"a"), websocket.PROTOCOL_ERROR),
            (masked_frame(websocket.CONTINUATION, b"a"), websocket.PROTOCOL_ERROR),
            (masked_frame(text, b"a", final=False) * 2, websocket.PROTOCOL_ERROR),
            (masked_frame(websocket.PING, b"a", final=False), websocket.PROTOCOL_ERROR),
            (masked_frame(websocket.CLOSE, b"a" * 126), websocket.PROTOCOL_ERROR),
            (b"\x81\xff" + (FRAME_BYTES + 1).to_bytes(8, "big"), websocket.TOO_BIG),
            (masked_frame(text, b"\xc3"), websocket.BAD_TEXT),
        ):
            with self.assertRaises(websocket.Violation) as caught:
                self.read(frame)
            self.assertEqual(caught.exception.code, code)

    def test_fragments_together_are_bounded(self):
        reader = websocket.MessageReader()
        reader.feed(masked_frame(websocket.TEXT, b"x" * (FRAME_BYTES // 2), final=False))
        self.assertIsNone(reader.next())
        reader.feed(masked_frame(websocket.CONTINUATION, b"x" * (FRAME_BYTES // 2 + 1)))
        with self.assertRaises(websocket.Violation):
            reader.next()

    def test_random_bytes_never_do_more_than_violate(self):
        source = random.Random(1)
        for _ in range(2000):
            try:
                self.read(source.randbytes(source.randrange(1, 60)))
            except websocket.Violation:
                pass

    def test_frames_to_the_client(self):
        self.assertEqual(websocket.encode(websocket.TEXT, b"hi"), b"\x81\x02hi")
        self.assertEqual(websocket.encode(websocket.BINARY, b"a", b"b" * 199)[:4], b"\x82\x7e\x00\xc8")
        self.assertEqual(
            websocket.encode(websocket.BINARY, b"b" * 70000)[:10], b"\x82\x7f" + (70000).to_bytes(8, "big")
        )
        self.assertEqual(websocket.encode_close(1002, "no"), b"\x88\x04\x03\xeano")

    def test_unmasking_is_no_loop_over_bytes(self):
        data, key = os.urandom(4 * 1024 * 1024 + 3), b"\x01\x82\x03\xf4"
        started = time.perf_counter()
        plain = websocket.unmask(data, key)
        fast = time.perf_counter() - started
        sample = range(0, len(data), 4099)
        self.assertTrue(all(plain[at] == data[at] ^ key[at % 4] for at in sample))
        started = time.perf_counter()
        bytes(data[at] ^ key[at % 4] for at in range(200_000))
        loop = (time.perf_counter() - started) * len(data) / 200_000
        self.assertLess(fast, loop / 5)
