"""Figures 5 and 6 of the IDP-GAN paper: precision of membership inference over epsilon, data size and method.

Figures 2 to 4, what is generated and how good it is, are drawn by the same command: see `sample_figures`, or
--figure 4 --help.

Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy".

How we read them (section 3.3.3; the axes are not in the text that we have). Both are on CelebA. *Figure 5*: precision
of the attack on IDP-GAN over epsilon, one curve per size of the training set; it rises with both, and at epsilon = 2 it
is at most 0.52 even with the largest set: that is the anchor. *Figure 6*: the same for IDP-GAN, dp-GAN and WGAN; we
draw it over the size of the set at one epsilon (--epsilon, 2), WGAN-GP having none. The attack (section 3.2.2) is the
confidence of a classifier that was trained on the generated images: the column `paper_attack`. The other attacks stand
beside it, since one weak attack shows little; `highest_precision` is that of the best one, so luck alone lifts it.

Faces are split by people: where one person stands on both sides, members and non-members resemble each other, and the
intervals are too narrow. The two sides may also differ by chance, the same in every seed: a reference generator that is
trained on other images calibrates the attacks (GAN-Leaks), and a leak is said only where the interval of one calibrated
attack lies above one half in each of at least three seeds.

`dp-gan-zhang` is the paper's dp-GAN, Zhang, Ji and Wang's (2018) as published; `dp-gan` is that of Xie et al. (2018),
stronger. The epsilon of idp-gan-published (eps1 + eps2 in halves) and of dp-gan-zhang is the *claimed* one; `proven` is
what our accountant proves.
Private sets are cut to size by `data.holdout_share`.

One JSON line per cell and seed, one per cell for all seeds, then a picture of all. Runs are named by the hash of their
config and attacks by that of their options too: finished ones are read back, interrupted ones continue. Everything
printed is for the curator.

python benchmarks/paper_figures.py --figure 5 --data mnist --data-root DIR --out runs/figures --sizes 500 5000
python benchmarks/paper_figures.py --figure 6 --data faces --out runs/figures --steps 2000 --threads 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sample_figures
import torch
from cells import finish

from idpgan.commands.attack import AttackOptions, attack_run
from idpgan.config import apply_overrides, load_table
from idpgan.data.load import describe
from idpgan.files import write_bytes_atomic, write_text_atomic
from idpgan.release.statement import read_privacy
from idpgan.training.config import RunConfig, build_config

CONFIGS = Path(__file__).parents[1] / "configs"
FORMS = ("idp-gan-published", "idp-gan-aggregate")
METHODS = (*FORMS, "dp-gan-zhang", "dp-gan", "wgan-gp")
EPSILONS = (0.3, 1.0, 2.0, 4.0, 8.0, 11.0)
PAPER_ATTACK, ANCHOR_EPSILON, ANCHOR = "classifier-confidence", 2.0, 0.52
LEAST_SEEDS = 3  # to say leak
PHOTOS = {"image_size": 48, "channels": 3, "split_by": "identity"}
FACES: dict[str, dict[str, Any]] = {
    "faces": {"name": "faces", "num_images": 100_000, "label": ["glasses", "smiling"], **PHOTOS},
    "celeba": {"name": "celeba", "label": ["Eyeglasses", "Smiling"], **PHOTOS},
    "mnist": {"name": "mnist"},
    "digits": {"name": "digits"},
}
SIZES = {
    "mnist": (500, 5_000, 25_000),
    "faces": (500, 5_000, 40_000),
    "celeba": (500, 10_000, 80_000),
    "digits": (500,),
}


class Cell(NamedTuple):
    """One point of a figure; epsilon None = no privacy."""

    method: str
    epsilon: float | None
    size: int
    seed: int


def main() -> None:
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--figure", type=int)
    if which.parse_known_args()[0].figure in (2, 3, 4):
        sample_figures.main()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=int, required=True, choices=(2, 3, 4, 5, 6))
    parser.add_argument("--data", default="mnist", choices=tuple(FACES))
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST or CelebA lie")
    parser.add_argument("--out", type=Path, default=Path("runs/figures"), help="runs, results and pictures")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: figure 5 the forms of IDP-GAN, 6 all")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS, help="of figure 5")
    parser.add_argument("--epsilon", type=float, default=ANCHOR_EPSILON, help="of figure 6")
    parser.add_argument("--sizes", type=int, nargs="+", help="private images; default: three sizes")
    parser.add_argument("--num-images", type=int, help="faces drawn, all parts together; default: 100,000")
    parser.add_argument("--steps", type=int, help="critic steps; default: those of each method's config")
    parser.add_argument("--width", type=int, help="feature maps of the DCGANs (all but aggregate and dp-gan)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every cell")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--attacks", nargs="+", default=["all"])
    parser.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="train a generator on other images that calibrates the attacks: twice the time",
    )
    parser.add_argument("--most", type=int, default=5_000, help="members judged at most")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="name the cells and their runs, train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for cell in cells(arguments):
        config = cell_config(cell, arguments)
        if arguments.list:
            print(*cell, arguments.out / config.identity()[:16])
            continue
        rows.append(
            {"figure": arguments.figure, "data": arguments.data, **cell._asdict(), **measured(config, arguments)}
        )
        rows[-1] |= verdict(cell, rows[-1])
        print(json.dumps(rows[-1]), flush=True)
    for cell, mine in by_cell(rows).items():
        print(json.dumps(dict(zip(("method", "epsilon", "size"), cell, strict=True)) | over_seeds(mine)), flush=True)
    if rows:
        name = f"figure{arguments.figure}-{arguments.data}.png"
        write_bytes_atomic(arguments.out / name, picture(rows, arguments.figure))


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield the points of the figure, the small sets first."""
    methods = arguments.methods or (FORMS if arguments.figure == 5 else METHODS)
    for size in arguments.sizes or SIZES[arguments.data]:
        for method in methods:
            epsilons = arguments.epsilons if arguments.figure == 5 else [arguments.epsilon]
            for epsilon in [None] if method == "wgan-gp" else epsilons:
                yield from (Cell(method, epsilon, size, seed) for seed in arguments.seeds)


def cell_config(cell: Cell, arguments: argparse.Namespace) -> RunConfig:
    """Return the config of one cell: the method's own, with this data and its size."""
    table = load_table(own_config(cell.method, arguments.data))
    public = {key: table["data"][key] for key in ("public_share", "confirm_public") if key in table["data"]}
    root = {} if arguments.data_root is None else {"root": str(arguments.data_root)}
    table["data"] = {**FACES[arguments.data], **public, **root}
    if arguments.data == "faces" and arguments.num_images is not None:
        table["data"]["num_images"] = arguments.num_images
    table["training"] |= {"seed": cell.seed, "device": arguments.device}
    if arguments.steps is not None:
        table["training"] |= {"steps": arguments.steps, "tick_steps": max(1, arguments.steps // 4)}
    table = apply_overrides(table, arguments.set)
    if arguments.width is not None and table.setdefault("model", {}).get("generator", "dcgan") == "dcgan":
        table["model"]["width"] = arguments.width
    table["data"]["holdout_share"] = holdout_share(table, cell.size)
    if cell.epsilon is not None:
        table["privacy"] |= budget(cell)
    if cell.method.startswith("dp-gan"):
        table["privacy"].pop("sample_rate", None)  # that of the batch
        table["training"]["batch_size"] = min(table["training"]["batch_size"], cell.size // 4)
    return build_config(table, f"the cell {cell}")


def own_config(method: str, data: str) -> Path:
    """Return a method's config for a data set, or that for MNIST; without public images, but for drawn faces."""
    aggregate = "aggregate-no-public" if data == "mnist" else "aggregate"
    name = aggregate if method == "idp-gan-aggregate" else method
    own = CONFIGS / f"{data}-{name}.toml"
    return own if own.exists() else CONFIGS / f"mnist-{name}.toml"


def holdout_share(table: dict[str, Any], size: int) -> float:
    """Return the share that leaves ``size`` private images."""
    found = describe(build_config(table, "the data of this figure").data)
    if found is None:
        raise SystemExit(f"{table['data']['name']} is not there. Name the folder of its files with --data-root.")
    public, private, holdout, _ = found.sizes
    spare = private + holdout - size
    if spare < 2:
        raise SystemExit(f"{size} private images of {private + holdout} leave no non-members. Lower --sizes.")
    return (spare + 0.5) / (public + private + holdout)


def budget(cell: Cell) -> dict[str, Any]:
    """Return the [privacy] keys that spend epsilon."""
    epsilon = cell.epsilon or math.inf
    if cell.method == "idp-gan-published":
        return {"epsilon1": epsilon / 2, "epsilon2": epsilon / 2}
    return {"epsilon": epsilon}


def measured(config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and attack a cell, or read what an earlier call found."""
    name = config.identity()[:16]
    options = AttackOptions(
        attacks=tuple(arguments.attacks),
        most=arguments.most,
        train_reference=arguments.reference,
        device=arguments.device,
    )
    asked = hashlib.sha256(repr(options).encode()).hexdigest()[:8]
    result, run = arguments.out / f"{name}-{asked}.json", arguments.out / name
    if not result.exists():
        finish(config, run, arguments.data_root)
        report = attack_run(run, options)
        report.write()
        write_text_atomic(result, json.dumps(summary(run, report.to_json())) + "\n")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def summary(run: Path, attacked: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of one cell."""
    report = read_privacy(run / "release" / "privacy.json").report.to_json()
    done = {name: row for name, row in attacked["attacks"].items() if row["skipped"] is None}
    paper = done.get(PAPER_ATTACK)
    precisions = [row["precision"] for row in done.values() if row["precision"] is not None]
    return {
        "run": str(run),
        "proven": report["proven"],
        "num_members": attacked["num_members"],
        "paper_attack": paper
        and {key: paper[key] for key in ("precision", "precision_interval", "auc", "auc_interval")},
        "highest_precision": max(precisions, default=None),
        "auc": {name: row["auc"] for name, row in done.items()},
        "auc_interval": {name: row["auc_interval"] for name, row in done.items()},
        "precision": {name: row["precision"] for name, row in done.items()},
        "skipped": {name: row["skipped"] for name, row in attacked["attacks"].items() if row["skipped"] is not None},
    }


def verdict(cell: Cell, row: dict[str, Any]) -> dict[str, Any]:
    """Compare with the paper's anchor: precision at most 0.52 at epsilon = 2."""
    paper = row["paper_attack"]
    if cell.method not in FORMS or cell.epsilon != ANCHOR_EPSILON or not paper or paper["precision"] is None:
        return {}
    low, _ = paper["precision_interval"]
    return {"anchor": ANCHOR, "anchor_met": paper["precision"] <= ANCHOR, "anchor_refuted": low > ANCHOR}


def by_cell(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows of all seeds of each method, epsilon and size."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["method"], row["epsilon"], row["size"]), []).append(row)
    return found


def over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread of the AUCs of a cell's seeds, and whether calibrated attacks say leak in all of them.

    "leak" is None where there are too few seeds or no calibrated attack: nothing can be said then.
    """
    common = set.intersection(*(set(row["auc"]) for row in rows))
    aucs = {name: torch.tensor([row["auc"][name] for row in rows], dtype=torch.float64) for name in sorted(common)}
    calibrated = [name for name in aucs if name.endswith("-calibrated")]
    leaking = [name for name in calibrated if all(row["auc_interval"][name][0] > 0.5 for row in rows)]
    return {
        "seeds": [row["seed"] for row in rows],
        "auc_mean": {name: found.mean().item() for name, found in aucs.items()},
        "auc_spread": {name: found.std().item() if len(rows) > 1 else None for name, found in aucs.items()},
        "leak": bool(leaking) if calibrated and len(rows) >= LEAST_SEEDS else None,
        "leaking": leaking,
    }


def picture(rows: list[dict[str, Any]], figure: int) -> bytes:
    """Draw precision and its 95 % interval, means of the seeds, over epsilon (figure 5) or size (figure 6)."""
    import io

    from matplotlib.figure import Figure

    sheet = Figure(figsize=(6, 4.5), layout="constrained")
    axes = sheet.add_subplot()
    across, curve = ("epsilon", ("method", "size")) if figure == 5 else ("size", ("method",))
    for key in dict.fromkeys(tuple(row[name] for name in curve) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in curve) == key and row["paper_attack"]]
        mine = [row for row in mine if row[across] is not None and row["paper_attack"]["precision"] is not None]
        if mine:
            x = sorted({row[across] for row in mine})
            found = [torch.tensor([points(row) for row in mine if row[across] == place]).mean(0) for place in x]
            low, y, high = torch.stack(found).T
            axes.errorbar(x, y, [y - low, high - y], marker="o", capsize=2, label=", ".join(map(str, key)))
    axes.axhline(0.5, color="grey", linestyle=":", label="a guess")
    axes.axhline(ANCHOR, color="grey", linestyle="--", label="the paper's 0.52 at epsilon 2")
    axes.set(
        xscale="log", xlabel=across, ylabel="precision of the attack", title=f"Yang, Zhou and Ning, figure {figure}"
    )
    axes.legend(fontsize="small")
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def points(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return the lower end, the value and the upper end of a row's precision."""
    low, high = row["paper_attack"]["precision_interval"]
    return low, row["paper_attack"]["precision"], high


if __name__ == "__main__":
    main()
