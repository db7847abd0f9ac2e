"""``idpgan methods``."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from idpgan.commands.command import Answer, command
from idpgan.methods import methods_of

_WIDEST = 100  # columns; longer lines are hard to read


@command
def methods() -> Answer:
    """List every method with what its paper claims and what is proven.

    Sound: proven never exceeds what is claimed or asked for. No promise: nothing is claimed, and nothing proven.

    Example: idpgan methods --json
    """
    rows = [row.to_json() for row in methods_of("classifier", "generator", "publisher", "obfuscator").values()]
    width, blocks = min(shutil.get_terminal_size().columns, _WIDEST), []
    for row in rows:
        sound = {True: "sound", False: "not sound", None: "no promise"}[row["sound"]]
        lines = textwrap.wrap(f"{row['name']} ({row['family']}, {sound})", width, subsequent_indent="  ")
        facts = {
            "unit": f"{', '.join(row['units'])}; {row['relation']}",
            "claimed": row["claimed"] or "nothing",
            "proven": row["proven"],
            "why": row["reason"],
        }
        for word, text in facts.items():
            indented: Any = {"initial_indent": f"  {word:<9}", "subsequent_indent": " " * 11}
            lines += textwrap.wrap(text, width, break_on_hyphens=False, **indented)
        blocks.append("\n".join(lines))
    return Answer(rows, lambda: print("\n\n".join(blocks)))
