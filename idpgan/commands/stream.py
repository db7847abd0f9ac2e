"""``idpgan stream``."""

from __future__ import annotations

import sys

from idpgan.commands.command import Answer, AsJson, command
from idpgan.jobs.options import StreamOptions


@command
def stream(options: StreamOptions, as_json: AsJson = False) -> Answer:
    r"""Release the running count of values that arrive line by line on stdin, one answer per line on stdout.

    With --state the stream can be continued, and a value whose --first index was answered gets the same answer again.

    Example: printf '3\n0\n5\n' | idpgan stream --epsilon 1 --horizon 365 --state faces.state
    """
    from idpgan.jobs.stream import stream as run

    def show(answers: list[float]) -> None:
        if not as_json:
            print("\n".join(map(repr, answers)), flush=True)

    done = run(sys.stdin, options, show)
    facts = {"count": done.count, "new": done.new, "repeated": done.repeated, "answers": list(done.answers)}
    return Answer({**facts, "privacy": done.counter.privacy.to_json()}, lambda: None)
