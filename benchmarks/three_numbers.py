"""Claimed, proven and audited of every method at one epsilon, by `idpgan audit`, into benchmarks/results/audits/.

python benchmarks/three_numbers.py [--epsilon 1] [--only NAME ...]    # then: python benchmarks/readme_tables.py

Each method is audited as the command does it by itself: default unit, neighbors and delta, a fixed noise seed, so that
the result can be had again; releases whose runs are cheap by more of them. A method that is there
already, for the same commit, is not audited again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from measured import RESULTS, ROOT

from idpgan import publish
from idpgan.audit.bounds import SHARE, share_text
from idpgan.files import write_text_atomic
from idpgan.methods import methods_of

AUDITS = RESULTS / "audits"
_KEPT = (
    "unit",
    "relation",
    "claimed",
    "proven",
    "audited",
    "proven_mu",
    "exact_mu",
    "audited_mu",
    "neighbors",
    "verdict",
)
_HEAD = ("method", "unit", "relation", "claimed", "proven", "audited", SHARE)
_RUNS = dict.fromkeys(("idp-gan-aggregate", "gaussian", "evolution", "arden"), 1_000_000)  # seconds, even so


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", default=[], help="audit just these, again")
    arguments = parser.parse_args()
    path = AUDITS / f"eps{arguments.epsilon:g}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["methods"] if path.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [*methods_of("generator", "classifier"), *publish.METHODS]
    for name in arguments.only or names:
        if name not in arguments.only and kept.get(name, {}).get("commit") == commit.strip():
            continue
        kept[name] = {**audited(name, arguments.epsilon), "commit": commit.strip()}
        print(json.dumps({"method": name, **kept[name]}), flush=True)
        document = {"epsilon": arguments.epsilon, "methods": {name: kept[name] for name in names if name in kept}}
        path.parent.mkdir(exist_ok=True)
        write_text_atomic(path, json.dumps(document, indent=1) + "\n")


def audited(name: str, epsilon: float) -> dict[str, Any]:
    """Return what the command says of a method."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "idpgan", "audit", name, "--epsilon", str(epsilon), "--seed", "1", "--json"]
    command += ["--runs", str(_RUNS[name])] if name in _RUNS else []
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode not in (0, 1):  # 1: above what is proven, which the table shows
        raise SystemExit(f"{' '.join(command[2:])}: {found.stderr.strip()}")
    said = json.loads(found.stdout)
    result = said.get("result") or {}
    shown = {key: said.get(key) for key in _KEPT}
    facts = {key: result.get(key) for key in ("delta", "confidence", "runs", "separation")}
    return {**shown, **facts, "seconds": round(time.perf_counter() - began, 1)}


def lines(path: Path, only: Collection[str] = ()) -> list[str]:
    """Return the lines of the table of a file of audits, of all methods or some; an audit above the claim is bold.

    Methods whose numbers are the same share a line.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, row in document["methods"].items():
        if row["audited"] is not None and (not only or name in only):
            claimed, proven, audited = (_number(row[key]) for key in _HEAD[3:6])
            if row["claimed"] is not None and row["audited"] > row["claimed"]:
                audited = f"**{audited}**"
            share = share_text(row.get("audited_mu"), "inf" if row["proven"] == "inf" else row.get("proven_mu"))
            if row.get("exact_mu") is not None:
                share += f" ({share_text(row['audited_mu'], row['exact_mu'])} of what these neighbors can show)"
            alike.setdefault((row["unit"], row["relation"], claimed, proven, audited, share), []).append(f"`{name}`")
    rows = [f"| {' | '.join((', '.join(names), *cells))} |" for cells, names in alike.items()]
    return [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD), *rows]


def _number(value: float | str | None) -> str:
    return "nothing" if value is None else "infinite" if value == "inf" else f"{float(value):.3g}"


if __name__ == "__main__":
    main()
