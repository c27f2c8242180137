"""The calls of tools that a client has received, its answers, and its loans, without a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import unittest
from types import FrameType
from typing import Any, Coroutine
from unittest import mock

from belljar import BadRequestError, DaemonError, _loans, _tools
from belljar._calls import Call, nothing
from belljar._sync import end_of

from .harness import in_thread


def answer(size: int) -> Call[None]:
    return Call("POST", "/", nothing, b"x" * size)


class ReceivedCalls(unittest.TestCase):
    def test_a_call_is_new_once_and_its_answer_is_kept(self) -> None:
        calls = _tools._ReceivedCalls()
        self.assertEqual((calls.begin("a"), calls.begin("a"), calls.is_answered("a")), (True, False, False))
        given = answer(3)
        calls.answer("a", given)
        self.assertIs(calls.answer_to("a"), given)
        self.assertFalse(calls.begin("a"))

    def test_old_answers_go_before_they_are_too_large_and_their_calls_stay_known(self) -> None:
        with mock.patch.object(_tools, "_ANSWERS_BYTES", 10):
            calls = _tools._ReceivedCalls()
            for name in ("a", "b", "c"):
                calls.begin(name)
                calls.answer(name, answer(4))
            calls.answer("b", answer(4))
            self.assertEqual([calls.answer_to(name) is None for name in ("a", "b", "c")], [True, False, False])
            calls.answer("c", answer(40))
            self.assertIsNone(calls.answer_to("b"))
            self.assertFalse(any(calls.begin(name) for name in ("a", "b", "c")))
            self.assertTrue(all(calls.is_answered(name) for name in ("a", "b", "c")))
            self.assertEqual(calls._answer_bytes, 0)

    def test_calls_are_not_remembered_for_ever_but_while_they_are_worked_on(self) -> None:
        with mock.patch.object(_tools, "_CALLS_KNOWN", 3):
            calls = _tools._ReceivedCalls()
            calls.begin("slow")
            for number in range(5):
                calls.begin(str(number))
                calls.answer(str(number), answer(1))
            self.assertEqual((calls.begin("4"), len(calls._answers), calls._answer_bytes), (False, 3, 3))
            self.assertTrue(calls.begin("0"))
            self.assertFalse(calls.begin("slow"))


class FakeExchanges:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def request(self, call: Call[None]) -> None:
        self.sent.append(json.loads(call.body or b""))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeLoan(_tools.Loan):
    """A loan that makes its calls at once."""

    serves = False

    def __init__(self, tools: list[Any], error: Exception | None = None) -> None:
        self.fake = FakeExchanges()
        super().__init__(self.fake, "/s", tools)  # type: ignore[arg-type]
        self.error = error
        self.made: list[Any] = []
        self.is_closed = False

    async def start(self) -> None:
        await self.fake.sleep(0.1)
        if self.error is not None:
            raise self.error
        self._was_lent = self.serves = True

    async def settle(self, sleep: object) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    async def _outcome(self, tool: Any, arguments: dict[str, Any]) -> Any:
        self.made.append(arguments)
        if arguments.get("is_cancelled"):
            raise asyncio.CancelledError
        return arguments


def echo(text: str) -> str:
    return text


class CallsOfALoan(unittest.TestCase):
    def setUp(self) -> None:
        toolbox = _loans.Toolbox()
        toolbox.add(echo, None, None, False)
        self.tool = toolbox.tools["echo"]
        self.loan = FakeLoan([self.tool])

    def take(self, call: str, **arguments: Any) -> None:
        end_of(self.loan._take(call, self.tool, arguments))

    def test_a_call_whose_answer_was_forgotten_is_answered_with_that(self) -> None:
        with mock.patch.object(_tools, "_ANSWERS_BYTES", 10):
            self.take("a", text="x" * 20)
            self.take("a", text="x" * 20)
        self.assertEqual(len(self.loan.made), 1)
        self.assertEqual(self.loan.fake.sent[1]["failure"]["code"], "interrupted")

    def test_a_call_that_was_cancelled_is_answered_with_that_and_not_made_again(self) -> None:
        for _ in range(2):
            self.take("a", is_cancelled=True)
        self.assertEqual(len(self.loan.made), 1)
        self.assertEqual([sent["failure"]["code"] for sent in self.loan.fake.sent], ["interrupted"] * 2)

    def test_a_loan_that_follows_another_makes_no_call_of_it_again(self) -> None:
        self.take("a", text="x")
        before, self.loan = self.loan, FakeLoan([self.tool])
        end_of(before.start())
        self.loan.follow(before)
        self.take("a", text="x")
        self.assertEqual((self.loan.made, self.loan.fake.sent), ([], before.fake.sent))
        self.assertTrue(self.loan._was_lent and self.loan.were_taken)


class Owner:
    pass


class LoansOfASandbox(unittest.TestCase):
    def setUp(self) -> None:
        self.owner, self.toolbox = Owner(), _loans.Toolbox()
        self.made: list[FakeLoan] = []
        self.error: Exception | None = None
        self.loans = _loans.Loans(self.owner, self.toolbox, self.make, FakeExchanges().sleep)
        self.toolbox.add(echo, None, None, False)

    def make(self, tools: list[Any]) -> FakeLoan:
        self.made.append(FakeLoan(tools, self.error))
        return self.made[-1]

    def lend(self) -> None:
        end_of(self.loans.lend())

    def test_threads_that_lend_at_once_lend_once_and_all_wait_for_it(self) -> None:
        for expected in (1, 2):
            all_begin = threading.Barrier(4)

            def lend() -> None:
                all_begin.wait()
                self.lend()
                self.assertTrue(all(loan._was_lent for loan in self.made))

            for ended in [in_thread(lend) for _ in range(4)]:
                ended()
            self.assertEqual((len(self.made), self.loans._servers), (expected, self.made[-1:]))
            # The next ones find a loan that has ended.
            self.made[-1].serves = False

    def test_a_process_that_is_forked_while_a_thread_lends_does_not_wait_for_that_thread(self) -> None:
        is_lending, may_end = threading.Event(), threading.Event()

        async def wait(loan: FakeLoan) -> None:
            is_lending.set()
            may_end.wait()

        with mock.patch.object(FakeLoan, "start", wait):
            lending = in_thread(self.lend)
            is_lending.wait()
            pid = os.fork()
            if pid == 0:
                # Otherwise the child would wait for ever.
                signal.alarm(10)
                try:
                    self.lend()
                    # The tool is lent by the parent, and a second loan of its name would be refused.
                    os._exit(len(self.made) - 1)
                finally:
                    os._exit(100)
            may_end.set()
            lending()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual((self.toolbox.waiting, self.loans._servers), ([], self.made))

    def test_tools_wait_while_no_daemon_takes_them_and_go_if_one_refuses_them(self) -> None:
        self.error = DaemonError("there is none")
        for _ in range(2):
            with self.assertRaises(DaemonError):
                self.lend()
        self.assertEqual(list(self.toolbox.tools), ["echo"])
        self.error = None
        self.lend()
        self.assertEqual((self.toolbox.waiting, self.loans._servers), ([], self.made[-1:]))
        # The same goes for a loan that is made anew.
        self.made[-1].serves = False
        self.error = DaemonError("there is none")
        with self.assertRaises(DaemonError):
            self.lend()
        self.error = BadRequestError("such a name is taken")
        with self.assertRaises(BadRequestError):
            self.lend()
        self.assertTrue(self.made[-1].were_taken)
        self.assertEqual((self.toolbox.tools, self.loans._servers, self.loans.has_any), ({}, [], False))

    def test_a_ctrl_c_after_any_call_leaves_the_tools_to_the_next_request(self) -> None:
        for number in range(1, 1000):
            self.setUp()
            left = number

            def interrupt(frame: FrameType, event: str, about: object) -> None:
                nonlocal left
                # The interpreter looks for signals where a function begins, and after each that is written in C.
                if event in ("call", "c_return") and frame.f_code.co_filename == _loans.__file__:
                    left -= 1
                    if left == 0:
                        raise KeyboardInterrupt

            with mock.patch.object(time, "sleep"):
                sys.setprofile(interrupt)
                try:
                    self.lend()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.setprofile(None)
            if left > 0:
                break
            with self.subTest(number), mock.patch.object(FakeExchanges, "sleep", _soon):
                self.loans._sleep = _never
                self.lend()
                serving = [loan for loan in self.loans._servers if loan.serves]
                self.assertEqual([loan.tools for loan in serving], [[self.toolbox.tools["echo"]]])
                # None that was begun before is left open beside it.
                self.assertTrue(all(loan in serving or loan.is_closed or not loan.serves for loan in self.made))
        self.assertIn(number, range(10, 1000))


async def _soon(exchanges: FakeExchanges, seconds: float) -> None:
    pass


async def _never(seconds: float) -> None:
    raise AssertionError("nobody lends who could be waited for")
