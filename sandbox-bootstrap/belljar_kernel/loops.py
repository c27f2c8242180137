"""The one event loop of a runner, for cells with top-level `await` and the tasks they leave.

`asyncio` is loaded when the first cell needs it: most never do.
"""

import posix  # not `os`, whose functions user code may replace
import posixpath
from select import poll as _poll  # likewise

from .interrupts import Expired
from .late_imports import from_stdlib
from .limits import LOOP_STARTS

_POLLIN = 1


class EventLoop:
    def __init__(self, is_own_process, interrupts):
        self._is_own_process = is_own_process
        self._interrupts = interrupts
        self._interrupt = None  # the exception for which the running cell was cancelled
        self._watches_forks = False
        self._loop = None
        self._forgotten = None  # in a copy, the loop of the original
        self._forgotten_tasks = []

    def run(self, coroutine):
        """Run the coroutine to its end, no matter what other tasks do to the loop meanwhile.

        An interrupt cancels it. If the coroutine ignores that, it continues, as code without `await` does that
        catches everything: a cell must not continue after it was reported as ended.
        """
        asyncio = from_stdlib("asyncio")
        if asyncio._get_running_loop() is not None or not self._interrupts.on_main_thread():
            return _run_within(coroutine)
        loop = self._ready_loop()
        task = loop.create_task(coroutine)
        self._interrupt = None
        self._interrupts.divert = lambda error, frame: self._cancel(task, error, frame)
        try:
            self._run_to_end(loop, task)
        finally:
            self._interrupts.divert = None
        if self._interrupt is not None and task.cancelled():
            raise self._interrupt
        return task.result()

    def _run_to_end(self, loop, task):
        for _ in range(LOOP_STARTS):
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    if not task.cancelled() and task.exception() is error:
                        raise
                    return  # the task has ended at the same time as another
                if loop.is_closed() or not self._is_own_process():
                    raise
                if isinstance(error, (KeyboardInterrupt, Expired)):
                    self._interrupt = error
                    task.cancel()
                elif not isinstance(error, RuntimeError):  # a stop of the loop is raised as one
                    _tell_end(error)
            if task.done():
                return
        task.cancel()
        raise RuntimeError("the event loop was stopped again and again")

    def _cancel(self, task, error, frame):
        """Cancel the task instead of raising in the loop's own code, where an interrupt or an alarm would break the
        loop: the next step of some task would never run. True if the task was cancelled.
        """
        if task.done() or not (from_stdlib("asyncio").current_task(self._loop) is None or _is_of_asyncio(frame)):
            return False
        self._interrupt = error
        task.cancel()
        self._loop.call_soon_threadsafe(int)  # wakes the loop
        return True

    def idle(self, control):
        """Let tasks, servers and timers of earlier cells continue until the guardian sends something."""
        for _ in range(LOOP_STARTS):
            if self._loop is None or self._loop.is_closed() or self._loop.is_running() or _is_readable(control):
                return
            self._run_for_a_while(control)

    def _run_for_a_while(self, control):
        """Run the loop; any task may stop it, or end it with an exception of its own."""
        try:
            self._run_until_readable(control)
        except BaseException as error:
            # A task raised SystemExit, or user code broke something that asyncio depends on. The
            # task has ended; the runner continues.
            _tell_end(error)

    def _run_until_readable(self, control):
        loop = self._loop
        loop.add_reader(control.fileno(), loop.stop)
        try:
            loop.run_forever()
        finally:
            if not self._is_own_process():
                posix._exit(0)  # a child that a task forked; it shares the loop's descriptors with the runner
            if not loop.is_closed():
                loop.remove_reader(control.fileno())

    def descriptors(self):
        """The descriptors of the loop itself; none if there is no loop."""
        if self._loop is None or self._loop.is_closed():
            return ()
        try:
            return [each.fileno() for each in (self._loop._selector, self._loop._ssock, self._loop._csock)]
        except AttributeError:
            return (-1,)  # another kind of loop than asyncio's own

    def forget(self):
        """Give up the loop in a copy of the process: its descriptors and its tasks are dead there.

        The tasks are kept untouched: if they were collected, they would print warnings, and their `finally`
        clauses would run.
        """
        if self._loop is not None:
            self._forgotten_tasks += self._tasks()
            self._forgotten, self._loop = self._loop, None

    def renew(self):
        """Make a loop in place of the forgotten one, in a copy that is the main line now."""
        loop, self._forgotten = self._forgotten, None
        if loop is not None:
            try:
                loop._default_executor = None  # its threads are gone; a lock of theirs may be held
                loop.close()
                self._ready_loop()
            except BaseException:
                pass  # user code broke something that asyncio depends on; the loop is then made when needed

    def pending(self):
        """How many tasks there are that are not done."""
        return len(self._tasks())

    def is_quiet(self):
        """Whether nothing waits for the loop to run: no task, timer, or descriptor but the loop's own."""
        if self._loop is None or self._loop.is_closed():
            return True
        try:
            waits = self._loop._ready or self._loop._scheduled or len(self._loop._selector.get_map()) > 1
            return not waits and not self._tasks()
        except Exception:
            return False  # another kind of loop than asyncio's own

    def _tasks(self):
        if self._loop is None or self._loop.is_closed():
            return ()
        try:
            return list(from_stdlib("asyncio").all_tasks(self._loop))
        except BaseException:
            return ()

    def _ready_loop(self):
        asyncio = from_stdlib("asyncio")
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        if not self._watches_forks:
            self._watches_forks = True
            posix.register_at_fork(after_in_child=self._stop_in_child)
        return self._loop

    def _stop_in_child(self):
        """A forked child runs to the next `await` and no further: it would take events of its parent from the loop."""
        if self._loop is not None and self._loop.is_running():
            self._loop.stop()


def _run_within(coroutine):
    """Run code that is nested in a task, or on another thread, in a loop of its own."""
    asyncio = from_stdlib("asyncio")
    outer = asyncio._get_running_loop()
    outer_task = None if outer is None else asyncio.current_task(outer)
    swap_task = getattr(asyncio.tasks, "_swap_current_task", None)  # from Python 3.12 on
    loop = asyncio.new_event_loop()
    try:
        if swap_task and outer_task is not None:
            swap_task(outer, None)
        asyncio._set_running_loop(None)
        return loop.run_until_complete(coroutine)
    finally:
        try:
            remaining_tasks = asyncio.all_tasks(loop)
            for task in remaining_tasks:
                task.cancel()
            if remaining_tasks:
                loop.run_until_complete(asyncio.wait(remaining_tasks))
        finally:
            loop.close()
            asyncio._set_running_loop(outer)
            if swap_task and outer_task is not None:
                swap_task(outer, outer_task)


def _is_of_asyncio(frame):
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return name == from_stdlib("selectors").__file__ or name.startswith(posixpath.dirname(from_stdlib("asyncio").__file__))


def _tell_end(error):
    try:
        posix.write(2, f"a background task ended with {type(error).__name__}\n".encode())
    except OSError:
        pass


def _is_readable(control):
    poll = _poll()
    poll.register(control.fileno(), _POLLIN)
    return bool(poll.poll(0))
