"""Tool calls of a runner that have no answer yet, numbered by the guardian itself.

A runner's own number of a call cannot be trusted, because user code can write to the channel: an earlier or a later
call may have the same number. So the daemon gets a number that the guardian made. The answer goes back with the
runner's number, and with the newest cell that the runner had been given when it sent the call, so that the runner does
not take it for the answer to a call of a later cell.

The kernel's code in a runner limits its calls in flight. User code that writes calls to the descriptor itself may send
any number of them; excess calls are answered here, and the daemon does not see them.
"""

from . import wire
from .limits import CALLS_BYTES, CALLS_REMEMBERED, REFUSALS_BYTES


class _Flight:
    """The calls that a runner sent while one cell was its newest."""

    __slots__ = ("cell", "since", "count", "size", "is_flood")

    def __init__(self, cell, since):
        self.cell = cell
        self.since = since  # bytes that the runner had sent before
        self.count = 0
        self.size = 0
        self.is_flood = False  # a call was refused


class _Call:
    __slots__ = ("flight", "number", "size")

    def __init__(self, flight, number, size):
        self.flight = flight
        self.number = number  # the runner's own number
        self.size = size


class Calls:
    """The calls of one runner, which are received and answered on `channel`. All runners share `numbers`."""

    def __init__(self, channel, numbers):
        self._channel = channel
        self._numbers = numbers
        self._open = {}  # by the guardian's number, oldest first
        self._flight = self._flight_before = _Flight(0, 0)

    def begin_cell(self, cell):
        """Begin a cell: what the runner has sent up to now, read or not, belongs to the time before it."""
        self._flight_before, self._flight = self._flight, _Flight(cell, self._channel.sent())
        self._channel.read_while(None)

    def begin(self, payload, most):
        """The guardian's number of a call that was just received, and whether it belongs to the present cell. The
        number is None if the call was refused, and thereby answered."""
        number, is_present = wire.CALL.unpack_from(payload)[0], self._channel.handled() > self._flight.since
        flight, why = self._flight if is_present else self._flight_before, None
        why = self._too_much(flight, len(payload), most)  # control: calls_in_flight_are_bounded
        if why is not None:
            self._refuse(flight, number, why)
            return None, is_present
        call = next(self._numbers)
        self._open[call] = _Call(flight, number, len(payload))
        flight.count += 1
        flight.size += len(payload)
        if len(self._open) > CALLS_REMEMBERED:
            # The daemon does not answer malformed calls, so their entries would pile up.
            del self._open[next(iter(self._open))]
        return call, is_present

    def answer(self, call, text):
        """Pass the daemon's answer on. False if this runner did not make that call, or has its answer."""
        known = self._open.pop(call, None)
        if known is None:
            return False
        known.flight.count -= 1
        known.flight.size -= known.size
        self._send(known.flight, known.number, text.encode())
        return True

    def _too_much(self, flight, size, most):
        if flight.is_flood and flight is not self._flight:
            return "the cell that made this call has ended"
        if flight.count >= most:
            return f"{most} tool calls have no answer yet, and no more may be made at once: wait for some of them"
        if flight.count and flight.size + size > CALLS_BYTES:
            return (
                f"tool calls that bring {flight.size} bytes have no answer yet, and with this one it would be more "
                f"than {CALLS_BYTES}: wait for some of them"
            )
        return None

    def _refuse(self, flight, number, why):
        """Answer with an ordinary failure. A runner that does not read these is not read from until the next cell."""
        flight.is_flood = True
        if flight is self._flight:
            self._channel.read_while(REFUSALS_BYTES)
        self._send(flight, number, wire.encode_json({"type": "tool_failed", "error": {"code": "busy", "message": why}}))

    def _send(self, flight, number, answer):
        self._channel.send(wire.pack(wire.TOOL_ANSWER, wire.ANSWERED.pack(flight.cell, number) + answer))
