"""A picture of how well attacks tell members from non-members."""

from __future__ import annotations

import io
from collections.abc import Sequence

from idpgan.attacks.attack import Outcome
from idpgan.attacks.evaluate import roc_curve


def roc_png(outcomes: Sequence[Outcome]) -> bytes:
    """Draw the ROC curves of all attacks that were run, both axes logarithmic: the left end is what matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    run = [(found.attack.name, found.result, found.scores) for found in outcomes if found.result and found.scores]
    floor = 0.5 / max([result.num_members for _, result, _ in run] or [50])
    for name, result, scores in run:
        false, true = roc_curve(*scores)
        axes.step(false.clip(floor), true.clip(floor), where="post", label=f"{name} {result.auc:.3f}")
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="a guess 0.500")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="Membership inference: AUC")
    axes.legend(fontsize="small", loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
