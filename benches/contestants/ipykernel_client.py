"""Jupyter's own client and kernel."""

import time

import jupyter_client

import measure
from contestants.base import NO_CALLS, Contestant
from work import SCIENCE

ANSWER_SECONDS = 120
READY_SECONDS = 60


def make(_):
    return Jupyter()


class Session:
    def __init__(self):
        self.manager = jupyter_client.KernelManager()
        self.manager.start_kernel()
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=READY_SECONDS)


class Jupyter(Contestant):
    def __init__(self):
        super().__init__()
        self.version = f"{jupyter_client.__version__} with ipykernel {measure_version('ipykernel')}"
        self.lacks(NO_CALLS, "call")

    def open(self, science):
        session = Session()
        if science:
            self.run(session, SCIENCE)
        return session

    def exchange(self, session, code):
        number = session.client.execute(code)
        return self.finish(session, number)

    def finish(self, session, number):
        """Reads all messages of a cell up to the one that it is over; the value, the bytes of output, the error."""
        answer, size, error = "", 0, ""
        while True:
            message = session.client.get_iopub_msg(timeout=ANSWER_SECONDS)
            if message["parent_header"].get("msg_id") != number:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "execute_result":
                    answer = content["data"]["text/plain"]
                case "stream":
                    size += len(content["text"])
                case "error":
                    error = f"{content['ename']}: {content['evalue']}"
                case "status" if content["execution_state"] == "idle":
                    break
        while session.client.get_shell_msg(timeout=ANSWER_SECONDS)["parent_header"].get("msg_id") != number:
            pass
        return answer, size, error

    def run(self, session, code):
        answer, _, error = self.exchange(session, code)
        if error:
            raise RuntimeError(error)
        return answer

    def output(self, session, code):
        return self.exchange(session, code)[1]

    def deadline(self, session, code, seconds):
        number = session.client.execute(code)
        time.sleep(seconds)
        session.manager.interrupt_kernel()
        if "KeyboardInterrupt" not in self.finish(session, number)[2]:
            raise RuntimeError("the interrupt did not arrive")
        return session

    def die(self, session):
        """Watches the kernel's process and starts it anew, as a server does; without that nothing would answer."""
        session.client.execute("import os; os._exit(1)")
        end = time.monotonic() + ANSWER_SECONDS
        while session.manager.is_alive():
            if time.monotonic() > end:
                raise RuntimeError("it lives")
            time.sleep(0.001)
        session.client.stop_channels()
        session.manager.restart_kernel(now=True)
        session.connect()
        return session

    def close(self, session):
        session.client.stop_channels()
        session.manager.shutdown_kernel()

    def processes(self, session):
        return measure.descendants(session.manager.provisioner.pid)


def measure_version(package):
    import importlib.metadata

    return importlib.metadata.version(package)
