"""``idpgan methods``."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from idpgan.cli.output import AsJson, print_json
from idpgan.methods import methods_of

_WIDEST = 100  # columns; longer lines are hard to read


def methods(as_json: AsJson = False) -> None:
    """List every method with what its paper claims and what is proven.

    Sound: proven never exceeds what is claimed or asked for. No promise: nothing is claimed, and nothing proven.

    Example: idpgan methods --json
    """
    rows = [row.to_json() for row in methods_of("classifier", "gan", "publisher", "obfuscator").values()]
    if as_json:
        print_json(rows)
        return
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    print("\n\n".join(_block(row, width) for row in rows))


def _block(row: dict[str, Any], width: int) -> str:
    """Return what is said of one method, readable on a terminal of any width."""
    sound = {True: "sound", False: "not sound", None: "no promise"}[row["sound"]]
    facts = {
        "unit": f"{', '.join(row['units'])}; {row['relation']}",
        "claimed": row["claimed"] or "nothing",
        "proven": row["proven"],
        "why": row["reason"],
    }
    lines = textwrap.wrap(f"{row['name']} ({row['family']}, {sound})", width, subsequent_indent="  ")
    for word, text in facts.items():
        lines += textwrap.wrap(text, width, initial_indent=f"  {word:<9}", subsequent_indent=" " * 11)
    return "\n".join(lines)
