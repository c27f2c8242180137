"""What contestants share; `work.py` says what the methods mean."""

NO_STATE = "keeps no state between cells"
NO_CALLS = "code cannot call functions of the host"
NO_PACKAGES = "has no third-party packages"


class Contestant:
    version = ""
    # Starts and removals take seconds, so that there are few of them.
    slow = False

    def __init__(self):
        self.absent = {}

    def lacks(self, reason, *works):
        self.absent.update(dict.fromkeys(works, reason))

    def close(self, session):
        pass

    def end(self):
        """Gives back what does not belong to a session."""
