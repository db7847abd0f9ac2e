"""Audits of the steps that Opacus takes inside idpgan: which part of the proven separation an attacker finds.

Gradient canaries (`idpgan.audit.gradient_canaries`) go through dp-gan's critic steps with ``engine = "opacus"``, sample
rate 0.5, with and without `secure_mode`. One JSON line an audit: `share` is the lower bound of 95 % confidence on the
separation over the proven one. All four take two minutes of one core; --scale 0.02 is for a look.

python benchmarks/engine_audits.py [--engine opacus] [--epsilon 1 10] [--scale 1]
"""

from __future__ import annotations

import argparse
import json
import time

from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.privacy.dpsgd import least_noise
from idpgan.synthesis.dp_gan.method import DpGanConfig, canaries

DELTA, SAMPLE_RATE = 1e-5, 0.5
GAMES = {1.0: (2, 200_000), 10.0: (5, 20_000)}  # epsilon: steps of a training, and runs a side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("idpgan", "opacus"), default="opacus")
    parser.add_argument("--epsilon", type=float, nargs="+", choices=tuple(GAMES), default=list(GAMES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    arguments = parser.parse_args()
    for epsilon in arguments.epsilon:
        for secure_mode in (False, True) if arguments.engine == "opacus" else (False,):
            print(json.dumps(measured(arguments.engine, epsilon, secure_mode, arguments.scale)), flush=True)


def measured(engine: str, epsilon: float, secure_mode: bool, scale: float) -> dict[str, object]:
    """Play one audit, and return what its line says."""
    steps, runs = GAMES[epsilon]
    method = DpGanConfig.model_validate({"engine": engine, "secure_mode": secure_mode})
    played = canaries(method, SAMPLE_RATE, least_noise(epsilon, DELTA, SAMPLE_RATE, steps), steps)
    start = time.perf_counter()
    found = canary_case("dp-gan", played, Request(epsilon, DELTA)).run(max(1000, round(scale * runs)))
    lower = found.result.separation.mu_lower
    return {
        "engine": engine,
        "secure_mode": secure_mode,
        "epsilon": epsilon,
        "steps": steps,
        "runs": found.result.runs,
        "proven_mu": round(found.proven_mu, 4),
        "audited_mu": round(lower, 4),
        "share": round(lower / found.proven_mu, 3),
        "violation": found.violation,
        "seconds": round(time.perf_counter() - start, 1),
    }


if __name__ == "__main__":
    main()
