"""Draw docs/curve.png: accuracy against epsilon, ours beside what peers without public data have published.

Points and their sources stand in benchmarks/results/curve.toml, those of the small CNN in benchmarks/results/*.json.

python benchmarks/curve.py
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from typing import Any

from matplotlib.figure import Figure
from measured import RESULTS, ROOT, read_results
from sample_figures import png

from idpgan.files import write_bytes_atomic

MEASURED = "mnist-aggregate-teacher-eps"  # rows of one CNN, and what they are called in the picture
OURS = "idpgan"


def main() -> None:
    sets = defaultdict[str, list[dict[str, Any]]](list)
    for point in (*tomllib.loads((RESULTS / "curve.toml").read_text(encoding="utf-8"))["points"], small_cnn()):
        sets[point["set"]].append(point)
    write_bytes_atomic(ROOT / "docs" / "curve.png", png(drawn(sets)))


def small_cnn() -> dict[str, Any]:
    """Return the rows of one small CNN on MNIST as points."""
    rows = [row for name, row in read_results().items() if name.startswith(MEASURED)]
    rows.sort(key=lambda row: float(row["privacy"]["claimed"]["epsilon"]))
    epsilon = [row["privacy"]["claimed"]["epsilon"] for row in rows]
    accuracy = [100 * row["summary"]["accuracy cnn"]["mean"] for row in rows]
    return {"set": "MNIST", "who": f"{OURS}, one small CNN", "epsilon": epsilon, "accuracy": accuracy}


def drawn(sets: dict[str, list[dict[str, Any]]]) -> Figure:
    """Draw a chart for each set of images, epsilon logarithmic."""
    sheet = Figure(figsize=(4.2 * len(sets), 3.8), layout="constrained")
    for axes, (name, points) in zip(sheet.subplots(1, len(sets)), sets.items(), strict=True):
        for point in sorted(points, key=lambda point: OURS in point["who"]):
            mine = OURS in point["who"]
            style: Any = (
                {"linewidth": 2.2, "marker": "o"} if mine else {"linewidth": 1, "marker": "s", "linestyle": "--"}
            )
            axes.plot(point["epsilon"], point["accuracy"], label=point["who"], **style)
        axes.set(xscale="log", xlabel="epsilon", title=name, ylabel="accuracy, %")
        axes.set_xticks([0.2, 1, 10], ["0.2", "1", "10"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small", loc="lower right")
    sheet.supxlabel(
        "No public images but drawn digits; unit one image. Ours: delta 1e-5 (MNIST), 1e-6. "
        "Peers in DPImageBench's protocol, delta 1 / (n ln n), with their networks' weights.",
        fontsize="small",
    )
    return sheet


if __name__ == "__main__":
    main()
