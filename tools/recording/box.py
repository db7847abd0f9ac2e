"""One case: commands that run in a separate folder, in this process, and their output and files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reading import Entries, Reader


class Case(NamedTuple):
    """A name, and a function that runs in a separate folder."""

    name: str
    act: Callable[[Box], None]


class Box:
    """Runs the commands of one case and records them.

    Args:
        name: Name of the case; every entry begins with it.
        folder: New, empty folder in which the commands run.
        data: The small data sets.
        tree: The checked out repository.
    """

    def __init__(self, name: str, folder: Path, data: Path, tree: Path) -> None:
        self.name, self.folder, self.data, self.tree = name, folder, data, tree
        self.reader = Reader({str(folder): "CASE", str(data): "DATA", str(tree): "TREE"})
        self.entries: Entries = {}
        self.count = 0

    def run(self, *arguments: str, stdin: str = "", says: str = "json") -> int:
        """Run a command of the package; record its exit code, its error line, and its JSON.

        Args:
            says: Content of stdout: "json", "text" (recorded unchanged), or "" (not recorded).
        """
        self.count += 1
        name = f"{self.name} {self.count} {' '.join(arguments[:1])}"
        code, out, err = called(arguments, stdin, self.folder.parent / f"{self.folder.name}.said")
        self.entries[f"{name}#exit"] = code
        lines = err.splitlines()
        if code and lines:
            self.entries[f"{name}#error"] = self.reader.plain(lines[-1])
        if says == "text":
            self.entries[f"{name}#says"] = self.reader.plain(out)
        elif says == "json" and out:
            try:
                self.entries.update(self.reader.flat(json.loads(out), f"{name}#json"))
            except json.JSONDecodeError:
                self.entries[f"{name}#no json"] = self.reader.plain(out)
        return int(code)

    def say(self, key: str, value: Any) -> None:
        """Record a value."""
        self.entries.update(self.reader.flat(value, f"{self.name}#{key}"))

    def keep(self) -> Entries:
        """Record every file of the case, and return all entries."""
        self.entries.update(self.reader.folder(self.folder, self.name))
        return self.entries

    def killed(self, file: str, number: int, *arguments: str) -> None:
        """Run a command in a process that dies before a file of this name is put in its place for the n-th time."""
        child = os.fork()
        if child == 0:
            replace, seen = os.replace, iter(range(1, number + 1))

            def dying(source: Any, target: Any, **options: Any) -> None:
                if Path(target).name == file and next(seen) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                replace(source, target, **options)

            os.replace = dying
            called(arguments, "", self.folder.parent / f"{self.folder.name}.killed")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.say("killed", os.WIFSIGNALED(status))


def called(arguments: tuple[str, ...], stdin: str, said: Path) -> tuple[Any, str, str]:
    """Run the package's command line here; return exit code, stdout and stderr."""
    from idpgan.__main__ import main

    said.with_suffix(".in").write_text(stdin, encoding="utf-8")
    sys.argv = ["idpgan", *arguments]
    with redirected(said) as finish:
        try:
            main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        except Exception as error:  # noqa: BLE001  # a defect is recorded too
            code = 70
            print(f"DEFECT {type(error).__name__}: {error}", file=sys.stderr)
        finish()
    return code, said.with_suffix(".out").read_text("utf-8"), said.with_suffix(".err").read_text("utf-8")


@contextlib.contextmanager
def redirected(said: Path) -> Iterator[Callable[[], None]]:
    """Redirect the three standard streams to files, for this process and its children."""
    before = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for number, suffix in enumerate((".in", ".out", ".err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        handle = os.open(said.with_suffix(suffix), flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115

    def finish() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    try:
        yield finish
    finally:
        finish()
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, handle in enumerate(before):
            os.dup2(handle, number)
            os.close(handle)
