"""SRA's rank r against its two errors and recognition, and ESRA's score over r; called by `paper_tables.py --ranks`.

Zhang, Fu and Meng (2020) say that a large r costs Laplace error and a small r reconstruction error (section 3.2.2), and
leave r open: "far smaller than k". Reconstruction error RE: of the best approximation of rank r. Laplace error LE: of
the release against that approximation, before clipping. Both are squared, a pixel, pixels in [0, 1].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from cells import spread, write_atomic
from torch import Tensor

from idpgan.metrics.recognition import halves, recognize
from idpgan.privacy.noise import Noise
from idpgan.publish import release
from idpgan.publish.matrix import decompose, score_ranks

COMPONENTS = 50
NUMBERS = ("reconstruction", "laplace", "accuracy", "score")


def sweep(cell: dict[str, Any], images: Tensor, identities: Tensor, noise_seed: int) -> dict[str, Any]:
    """Return the errors of SRA at a rank, the share recognized on what is given away, and ESRA's score of the rank."""
    rank, epsilon = cell["options"]["rank"], cell["epsilon"]
    noise = Noise.fixed(noise_seed)
    found = release(images, "sra", epsilon=epsilon, accept_unsound=True, noise=noise, **cell["options"])
    svd = decompose(images)
    best = (svd.U[:, :, :rank] * svd.S[:, None, :rank]) @ svd.Vh[:, :rank]
    given = (found.images.clamp(0, 1) * 255).round().to(torch.uint8)
    train, test = halves(identities)
    components = min(COMPONENTS, len(train))
    seen = recognize(given[train], identities[train], given[test], identities[test], components)
    # An image of smaller rank has no score at r: left out of the mean.
    scores = score_ranks(svd, epsilon).scores[svd.kept[:, rank - 1], rank - 1]
    return {
        "reconstruction": float((best - images).square().mean()),
        "laplace": float((found.images - best).square().mean()),
        "accuracy": seen.accuracy,
        "score": float(scores.mean()) if len(scores) else None,
    }


def write(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Write the table and the picture: mean and standard deviation over seeds."""
    keys = sorted({(row["epsilon"], row["options"]["rank"]) for row in rows})
    groups = {key: [row for row in rows if (row["epsilon"], row["options"]["rank"]) == key] for key in keys}
    lines = ["| epsilon | r | seeds | RE | LE | accuracy | ESRA's score |", "|---" * 7 + "|"]
    for (epsilon, rank), group in groups.items():
        found = [spread(group, number) for number in NUMBERS]
        cells = ["" if pair is None else f"{pair[0]:.4g} ± {pair[1]:.2g}" for pair in found]
        lines.append(f"| {epsilon:g} | {rank} | {len(group)} | " + " | ".join(cells) + " |")
    write_atomic(path.with_suffix(".md"), "\n".join(lines) + "\n")
    _plot(groups, path, title)


def _plot(groups: dict[tuple[float, int], list[dict[str, Any]]], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    epsilons = sorted({epsilon for epsilon, _ in groups})
    figure = Figure(figsize=(4.2 * len(epsilons), 8), layout="constrained")
    axes = figure.subplots(2, len(epsilons), squeeze=False, sharex=True)
    for epsilon, above, below in zip(epsilons, *axes, strict=True):
        ranks = [rank for other, rank in groups if other == epsilon]
        columns = {number: [spread(groups[epsilon, rank], number) for rank in ranks] for number in NUMBERS}
        for number, label in (("reconstruction", "RE"), ("laplace", "LE")):
            above.plot(ranks, [max(pair[0], 1e-6) for pair in columns[number]], marker="o", label=label)
        seen = above.twinx()
        seen.errorbar(ranks, *zip(*columns["accuracy"], strict=True), color="black", marker="x", label="recognized")
        seen.set(ylim=(0, 1), ylabel="recognized (x)")
        above.set(xscale="log", yscale="log", title=f"epsilon {epsilon:g} (claimed)", ylabel="squared error of a pixel")
        above.legend()
        scored = [(rank, pair[0]) for rank, pair in zip(ranks, columns["score"], strict=True) if pair is not None]
        below.plot(*zip(*scored, strict=True), marker="o", color="tab:green")
        below.set(xlabel="r", ylabel="ESRA's score U (least: most likely)")
    figure.suptitle(f"SRA over r, and ESRA's score: {title}. No r is private.")
    figure.savefig(path.with_suffix(".png"), dpi=80)
