"""Counts the replies of a model, and those that are syntactically valid.

A reply is valid if it has the form that was agreed (the dialect could be read, calls name a tool and give the arguments
that it wants), and if the Python in it is Python. Whether it works is another question.
"""

import dataclasses

# Notes of an ask, in English, that say of a reply or a call that it had not the agreed form.
UNUSABLE = "the reply could not be used: "
CALL_FAILED = " was not made: The tool call failed: "
NOT_AS_AGREED = (CALL_FAILED + "there is no tool ", CALL_FAILED + "the arguments ")


@dataclasses.dataclass
class Replies:
    count: int = 0
    valid: int = 0


def of_events(events):
    """Counts the replies of one ask by its events in order: all that follows from a reply comes before the next."""
    verdicts = []
    for event in events:
        if event["type"] == "model_replied":
            verdicts.append(True)
        elif verdicts and spoils(event):
            verdicts[-1] = False
    return Replies(len(verdicts), sum(verdicts))


def spoils(event):
    """Whether the event says that the reply before it was not valid."""
    kind = event["type"]
    if kind == "ask_noted":
        return event["note"].startswith(UNUSABLE) or any(words in event["note"] for words in NOT_AS_AGREED)
    if kind == "cell_finished":
        return event["result"]["reason"] == "syntax"
    # The last of too many replies without the agreed form has no note: it ends the ask.
    return kind == "ask_finished" and event["end"]["outcome"] == "malformed"
