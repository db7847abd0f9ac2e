"""Hundreds of short audits over all methods with a proof, units, relations and laws: none may be above it.

python benchmarks/audits.py [--out runs/audits] [--only TEXT] [--list]

Each bound holds with confidence 1 - 0.05 / (number of bounds), two to an audit (epsilon and separation; of one run
Steinke's and that of the law), so that all hold together with 95 %. Statistic and threshold are chosen on the first
half of the runs, the noise is the operating system's. One JSON line per audit; an audit that is there already, for the
same code, is read back, so that an interrupted sweep goes on where it was. The last line is the sum. Exit code 1: one
is above.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import idpgan
from idpgan import classify, publish
from idpgan.audit.cases import CASES, AuditCase
from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.commands.audit import audit_entry, method_case, nothing_to_audit
from idpgan.privacy import Relation, Unit
from idpgan.privacy.dpsgd import least_noise
from idpgan.synthesis.dp_gan import Settings, canaries
from idpgan.training.config import section_of

EPSILONS = (0.1, 0.3, 0.5, 1.0, 3.0, 10.0)
DELTA = 1e-5
SCALARS = [name for name in CASES if name not in ("lap", "randomized-response")]
RUNS = {
    "lap": 20_000,
    "idp-gan-published": 8000,
    "dp-gan": 5000,
    "dp-gan-zhang": 5000,
}
RUNS |= dict.fromkeys(classify.METHODS, 5000)
LAP_RUNS = {Unit.PIXEL: 40_000, Unit.COLUMN: 10_000, Unit.IMAGE: 400}  # numbers that differ: 1, 112, 10,304
USUAL_RUNS = 60_000
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"loss": "wgan-gp"},
    {"fakes": "separate"},
    {"clip_norm": 0.1},
    {"groups": 5},
)
PLANS = ((0.3, 20), (0.05, 60), (1.0, 5))  # sample rate, steps


@dataclass(frozen=True)
class Cell:
    """One audit.

    Attributes:
        method: A name of `idpgan audit`.
        request: What it is asked for.
        steps: Sample rate, steps and settings of dp-gan.
        canaries: Of an audit of one run; 0 = many runs.
    """

    method: str
    request: Request
    steps: tuple[float, int, tuple[tuple[str, Any], ...]] | None = None
    canaries: int = 0

    @property
    def spec(self) -> dict[str, Any]:
        """What decides the result, but the noise."""
        given = {key: value for key, value in vars(self.request).items() if value is not None}
        return {"method": self.method, **given, "steps": self.steps, "canaries": self.canaries}

    def case(self) -> AuditCase:
        """Make it."""
        if self.steps is None:
            return method_case(self.method, self.request)
        rate, count, settings = self.steps
        epsilon, delta = self.request.epsilon, self.request.delta or DELTA
        request = replace(self.request, delta=delta)
        steps = canaries(
            section_of(Settings, "method")(**dict(settings)), rate, least_noise(epsilon, delta, rate, count), count
        )
        return canary_case("dp-gan", steps, request)


def cells() -> Iterator[Cell]:
    """Yield all audits."""
    relations = (Relation.REPLACE_ONE, Relation.ZERO_OUT)
    for epsilon, name, relation in itertools.product(EPSILONS, SCALARS, relations):
        yield Cell(name, Request(epsilon, relation=relation, unit=Unit.PERSON if relation in relations[1:] else None))
    for epsilon in EPSILONS:
        yield Cell("randomized-response", Request(epsilon))
        for draw in ("once", "per_step"):
            yield Cell("idp-gan-published", Request(epsilon, draw=draw))
        laws = (audit_entry("lap").options or {})["law"]
        for law, unit in itertools.product(laws, (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)):
            yield Cell("lap", Request(epsilon, law=law, unit=unit))
        for name, info in publish.METHODS.items():
            if info.sound and name != "lap":
                entry = audit_entry(name)
                laws = (entry.options or {}).get("law", (None,))
                for law, unit in itertools.product(laws, entry.units):
                    yield Cell(name, Request(epsilon, law=law, unit=unit))
        for law, unit, relation in itertools.product(("gaussian", "laplace"), (Unit.IMAGE, Unit.PERSON), relations):
            yield Cell("idp-gan-aggregate", Request(epsilon, law=law, unit=unit, relation=relation))
        for unit, relation in itertools.product((Unit.IMAGE, Unit.PERSON), relations):
            yield Cell("gaussian", Request(epsilon, unit=unit, relation=relation))
            yield Cell("traits", Request(epsilon, unit=unit, relation=relation))
            yield Cell("evolution", Request(epsilon, unit=unit, relation=relation))
        for number, variant in enumerate(VARIANTS):
            rate, count = PLANS[number % len(PLANS)]
            yield Cell("dp-gan", Request(epsilon), (rate, count, tuple(variant.items())))
        yield Cell("dp-gan-zhang", Request(epsilon))
        yield Cell("diffusion", Request(epsilon))
        for name in classify.METHODS:
            if nothing_to_audit(name) is None:
                yield Cell(name, Request(epsilon))
    for epsilon in (1.0, 10.0):
        # at that confidence canaries x delta must be far below 1e-4
        yield Cell("dp-gan", Request(epsilon, 1e-8), (0.3, 20, ()), canaries=2000)
        for name in ("idp-gan-aggregate", "evolution"):  # Gaussian cells
            yield Cell(name, Request(epsilon, 1e-8, relation=Relation.ZERO_OUT, unit=Unit.IMAGE), canaries=5000)


def play(cell: Cell, each: float) -> dict[str, Any]:
    """Return the row of one audit."""
    case = cell.case()
    started = time.perf_counter()
    row: dict[str, Any] = {**cell.spec, "confidence": each}
    if cell.canaries:
        found = case.run_once(cell.canaries, confidence=each)
        row |= {"proven": case.proven.epsilon, "audited": found.epsilon_lower}
        row |= {"audited_law": found.fdp.epsilon_lower if found.fdp else None}
        row["violation"] = found.highest > case.proven.epsilon
    else:
        runs = RUNS.get(cell.method, USUAL_RUNS)
        runs = LAP_RUNS[cell.request.unit or Unit.PIXEL] if cell.method == "lap" else runs
        found_many = case.run(runs, confidence=each).to_json()
        row |= {key: found_many[key] for key in ("proven", "audited", "proven_mu", "audited_mu", "violation")}
        row["runs"] = runs
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def code() -> str:
    """Return the SHA-256 of the package's sources."""
    files = sorted(Path(idpgan.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/audits"))
    parser.add_argument("--only", default="", help="cells whose text contains this")
    parser.add_argument("--list", action="store_true", help="name the cells and stop")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    everything = list(cells())
    each, version = 1 - 0.05 / (2 * len(everything)), code()
    chosen = [cell for cell in everything if arguments.only in json.dumps(cell.spec)]
    if arguments.list:
        print("\n".join(json.dumps(cell.spec) for cell in chosen))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for cell in chosen:
        key = hashlib.sha256(json.dumps([cell.spec, each, version]).encode()).hexdigest()[:16]
        path = arguments.out / f"{key}.json"
        if not path.exists():
            path.write_text(json.dumps(play(cell, each)) + "\n")
        rows.append(json.loads(path.read_text()))
        print(json.dumps(rows[-1]), flush=True)
    above = [row for row in rows if row["violation"]]
    total = {"audits": len(rows), "above": len(above), "longest": max((row["seconds"] for row in rows), default=0.0)}
    print(json.dumps({**total, "confidence_of_each": each, "code": version[:16]}))
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
