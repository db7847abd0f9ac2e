"""One short case a family, all in one process on a stand-in GPU: what tests/test_standin.py looks at.

quick.py OUT prints one JSON line for each case: its name, exit code, last words and seconds; for a method of steps also
what one further step waits for, copies between host and device, and launches.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import standin

from idpgan.commands import main
from idpgan.metrics import features
from idpgan.training.distributed import Leader

FEW, MANY = 2, 4
WAITS, COPIES = ("item", "wait"), ("to device", "to host")
ATTACKS = "nearest-in-features copies density-ratio gen-lra latent-reconstruction trace"  # `evaluate` fits a network
STEPS = {  # what a step does is the difference of what its run had done at two of them
    "dp-gan": "digits-dp-gan model.width=8 method.critic_steps_per_generator_step=9",
    "dp-sgd": "digits-dp-sgd method.width=4",
    "diffusion": "digits-diffusion model.width=8 method.draws=2 training.batch_size=300",
}
CASES = {
    "wgan-gp": "train digits-wgan-gp training.steps=2 training.batch_size=16 model.width=8 --out {out}/wgan-gp",
    "gaussian": "train digits-gaussian model.latent_dim=20 --out {out}/gaussian",
    "verify": "verify {out}/gaussian",
    "sample": "sample {out}/gaussian --num 20 --out {out}/sample.npz",
    "evaluate": "evaluate {out}/gaussian --num 60 --seeds 1 --only fidelity",
    "attack": " ".join(["attack {out}/gaussian", *(f"--attack {name}" for name in ATTACKS.split())]),
    "publish": "publish {out}/plain --method dct --epsilon 8 --unit image --delta 1e-4 --accept-unsound "
    "--ledger {out}/publish.json --out {out}/publish",
    "obfuscate": "publish {out}/faces --method blur --keep smiling --hide person --accept-unsound "
    "--ledger {out}/obfuscate.json --out {out}/obfuscate",
    "audit": "audit laplace --epsilon 1 --runs 300",
    "audit-steps": "audit dp-sgd --epsilon 3 --runs 100",
}


def called(command: str) -> tuple[int, str]:
    """Run a command, on the GPU where it computes; return its exit code, 70 for a traceback, and its last words."""
    printed, code = io.StringIO(), 0
    where = [] if command.startswith("verify") else ["--device", "cuda"]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main([*command.split(), *where])
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:  # noqa: BLE001  # a traceback is what is looked for
            code = 70
            traceback.print_exc(file=printed)
    return code, printed.getvalue().strip()[-2000:]


def counts() -> Counter[str]:
    """Return how many waits, copies and operators there were so far."""
    found: Counter[str] = Counter(operators=standin.native.launched())
    for (kind, _, place), count in standin.events.items():
        if "training/state.py" not in place and "training/stats.py" not in place:  # once a tick, not once a step
            found["waits"] += count * (kind in WAITS)
            found["copies"] += count * (kind in COPIES)
    return found


def stepped(name: str, command: str, out: Path) -> dict[str, object]:
    """Train a few steps, and look at what was done until one of the first and until the last."""
    seen, step = {}, Leader.step

    def watched(leader: Leader, method: object, number: int) -> object:
        done = step(leader, method, number)
        seen[number] = counts()
        return done

    Leader.step = watched
    code, said = called(f"train {command} training.steps={MANY} --out {out}/{name}")
    Leader.step = step
    if code:
        return {"code": code, "said": said}
    return {"code": 0, "said": "", **{kind: (seen[MANY][kind] - seen[FEW][kind]) / (MANY - FEW) for kind in seen[MANY]}}


def show(out: Path) -> None:
    """Run everything, and print a line for each case."""
    features.MIN_STEPS_PER_EPOCH = 10  # of the network that judges: it is run here, and not believed
    for arguments in (["faces"], ["plain", "plain"]):
        sys.argv = ["make_faces.py", str(out / arguments[0]), *arguments[1:]]
        runpy.run_path(str(Path(__file__).with_name("make_faces.py")))
    for name, command in {**CASES, **STEPS}.items():
        began = time.monotonic()
        if name in STEPS:
            found = stepped(name, command, out)
        else:
            found = dict(zip(("code", "said"), called(command.format(out=out)), strict=True))
        print(json.dumps({"name": name, **found, "seconds": round(time.monotonic() - began, 2)}), flush=True)


if __name__ == "__main__":
    show(Path(sys.argv[1]))
