"""``idpgan stream``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from idpgan.cli.output import AsJson, print_json


def stream(
    epsilon: Annotated[float, typer.Option(help="Of the whole stream; unit: one event, which adds at most 1.")],
    horizon: Annotated[int | None, typer.Option(help="Most values that will come; left out: not known.")] = None,
    state: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the stream is kept, secret.")] = None,
    first: Annotated[int | None, typer.Option(help="Index of the first line's value; default: the next.")] = None,
    block: Annotated[int, typer.Option(help="Values that are answered, and made durable, together.")] = 1,
    real: Annotated[bool, typer.Option("--real", help="Real values of at most 1 per event, not whole counts.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder to give away: all answers so far.")
    ] = None,
    data: Annotated[str, typer.Option(help="What the card calls the stream.")] = "a stream",
    as_json: AsJson = False,
) -> None:
    r"""Release the running count of values that arrive line by line on stdin, one answer per line on stdout.

    With --state the stream can be continued, and a value whose --first index was answered gets the same answer again.

    Example: printf '3\n0\n5\n' | idpgan stream --epsilon 1 --horizon 365 --state faces.state
    """
    from idpgan.jobs.stream import Terms
    from idpgan.jobs.stream import stream as run

    def show(answers: list[float]) -> None:
        if not as_json:
            print("\n".join(map(repr, answers)), flush=True)

    terms = Terms(epsilon, horizon, not real)
    done = run(sys.stdin, terms, show, state=state, first=first, block=block, out=out, data=data)
    if as_json:
        facts = {"count": done.count, "new": done.new, "repeated": done.repeated, "answers": list(done.answers)}
        print_json({**facts, "privacy": done.counter.privacy.to_json()})
