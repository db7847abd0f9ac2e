"""``idpgan methods``."""

from __future__ import annotations

from idpgan.cli.output import AsJson, print_json


def methods(as_json: AsJson = False) -> None:
    """List every method with what its paper claims and what is proven.

    Sound: proven never exceeds what is claimed or asked for; "-" where nothing is promised.

    Example: idpgan methods --json
    """
    from idpgan import publish
    from idpgan.jobs.methods import REGISTRY

    rows = [row.to_json() for row in REGISTRY.infos.values()]
    rows += [row.to_json() for row in publish.METHODS.values()]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Methods")
    for heading in ("name", "family", "units", "relation", "sound", "claimed", "proven", "why"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        sound = {True: "yes", False: "no", None: "-"}[row["sound"]]
        claimed, units = row["claimed"] or "nothing", ", ".join(row["units"])
        why = row["reason"]
        table.add_row(row["name"], row["family"], units, row["relation"], sound, claimed, row["proven"], why)
    Console().print(table)
