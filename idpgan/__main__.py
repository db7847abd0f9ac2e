"""``python -m idpgan`` and the command ``idpgan``."""

import os
import signal
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None, script: str | None = None) -> None:
    """Run the command line; Ctrl-C while it is imported, a second or two, is one line too.

    Threads that wait for each other let other programs compute meanwhile, unless the environment says otherwise.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is imported
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from idpgan.commands import main as run

    try:
        run(arguments, script)
    finally:
        if signal.getsignal(signal.SIGINT) is _stop:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all that is left is to clean up


def _stop(*_: Any) -> None:
    """End at once: an exception in the middle of an import is a traceback, or taken for a missing package."""
    os.write(2, b"idpgan: stopped by Ctrl-C; nothing was begun.\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
