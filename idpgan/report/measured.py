"""What was measured of a run, from its result files: evaluation.json, attack.json, audit.json and stats.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idpgan.attacks.evaluate import TOO_SMALL
from idpgan.audit.bounds import SHARE, SHARE_MEANS, share_text
from idpgan.metrics.evaluation import metric_notes, metric_tables
from idpgan.privacy.risk import percent
from idpgan.report.charts import line_chart, number, roc_chart
from idpgan.report.epsilons import epsilon_text
from idpgan.report.page import Chart, Part, Table
from idpgan.report.risk import Proven

_NOT_LOSSES = ("step", "seconds", "steps_per_second", "images_per_second", "epsilon", "delta")
_MARKED_RATE = "0.01"  # false-positive rate at which the interval is drawn
_MOST_CURVES = 12
_ONE_CURVE = 400  # most points of a curve


def curves_part(rows: Sequence[Mapping[str, Any]], target: float | None) -> Part:
    """Return the curves of stats.jsonl: epsilon first, then every average over a tick.

    Args:
        rows: One per tick.
        target: Epsilon that the run may spend; None = no limit.
    """
    charts, title, epsilons = [], "Proven epsilon", _series(rows, "epsilon")
    if epsilons:
        last = epsilon_text(epsilons[-1][1])
        described = f"spent up to each step; {last} at the end"
        drawn = line_chart(epsilons, title=title, description=described, limit=target, from_zero=True)
        of_target = "" if target is None else f" of {epsilon_text(target)} (dotted)"
        charts.append(Chart(title, drawn, f"{described}{of_target}"))
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in _NOT_LOSSES]
    for name in names[:_MOST_CURVES]:
        points = _series(rows, name)
        if points:
            low, high = min(y for _, y in points), max(y for _, y in points)
            over = f", {number(low)} to {number(high)} in all" if low < high else " throughout"
            described, title = f"{number(points[-1][1])}{' at the end' * (low < high)}{over}", in_words(name)
            charts.append(Chart(title, line_chart(points, title=title, description=described), described))
    notes = ["Averages over the steps of a tick, some of them on private images without noise: no epsilon covers them."]
    if rows and not epsilons:
        notes.insert(0, "The proven epsilon is infinite from the first read on, so there is no curve of it.")
    seconds, text = rows[-1].get("seconds") if rows else None, []
    if isinstance(seconds, int | float):
        minutes = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
        text = [f"{rows[-1]['step']:,} steps in {f'{seconds:.3g} seconds' if seconds < 120 else minutes}."]
    return Part("curves", "Training curves", text=text, charts=charts, notes=notes)


def in_words(name: str) -> str:
    """Return the name of a value as a title: "Critic loss" of critic_loss."""
    return name.replace("_", " ").capitalize()


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    points = [(float(row["step"]), float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
    points = [point for point in points if math.isfinite(point[1])]
    stride = -(-len(points) // _ONE_CURVE) or 1
    return points[::stride] if not points or points[::stride][-1] == points[-1] else [*points[::stride], points[-1]]


def evaluation_part(found: Mapping[str, Any]) -> Part:
    """Return the metrics of an evaluation.json, each with its uncertainty.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    part, num = found["part"], found.get("num_images")
    text = f"Judged by the real {part} images" + (f"; {num:,} images under test." if isinstance(num, int) else ".")
    tables = [Table(table.caption, table.head, table.rows) for table in metric_tables(found)]
    return Part("metrics", "Metrics", text=(text,), tables=tables, notes=metric_notes(found))


def _gate(gate: Mapping[str, Any]) -> str:
    """Say what a gate said."""
    return (
        f"Gate {gate['verdict']} (exit code {gate['exit_code']}), limit {gate['limit']}: {'; '.join(gate['reasons'])}. "
        "That is a fact about private images without noise, and no evidence of privacy."
    )


def attack_part(found: Mapping[str, Any], proven: Proven | None = None) -> Part:
    """Return the results of an attack.json: ROC curves, and numbers with their intervals.

    Args:
        found: Its content.
        proven: What any attack finds at most, which is drawn beside; None where nothing is proven.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    run = {name: result for name, result in found["attacks"].items() if result["skipped"] is None}
    charts = [_roc(name, result, proven) for name, result in run.items() if result.get("roc")]
    rows = [
        (
            name,
            _with_interval(result["auc"], result["auc_interval"], ".3f"),
            *(_rate(result, rate) for rate in result["tpr_at_fpr"]),
            "-" if result["precision"] is None else f"{result['precision']:.1%}",
            f"{result['num_members']:,}",
        )
        for name, result in run.items()
    ]
    any_result: Mapping[str, Any] = next(iter(run.values()), {"tpr_at_fpr": (), "confidence": 0.95})
    rates = [f"TPR at {float(rate):.1%} FPR" for rate in any_result["tpr_at_fpr"]]
    caption = (
        f"Members against as many non-members; in brackets the {any_result['confidence']:.0%} interval. A guess has "
        "AUC 0.5."
    )
    bounded = proven is not None and any(map(proven.bounds, run))
    if proven is not None and bounded:
        most = (percent(proven.curve.found(float(rate))) for rate in any_result["tpr_at_fpr"])
        rows.append(("any attack, at most: proven", "", *most, "", ""))
    tables = [Table(caption, ("attack", "AUC", *rates, "precision", "members"), rows)] if rows else []
    if skipped := [(name, each["skipped"]) for name, each in found["attacks"].items() if name not in run]:
        tables.append(Table("Attacks that were not run", ("attack", "why"), skipped))
    if risky := found.get("riskiest"):
        names, caption = (
            list(risky[0]["levels"]),
            "Members that are found most easily; a run without them proves nothing",
        )
        records = [
            (
                ", ".join(each["names"]),
                f"{each['distances'][0]:.1f}",
                *(f"{each['levels'][name]:.2%}" for name in names),
            )
            for each in risky
        ]
        tables.append(Table(f"{caption} for those who were in", ("member", "distance", *names), records))
    notes = list(dict.fromkeys([*found["notes"], *(note for result in run.values() for note in result["notes"])]))
    if bounded:
        notes.append(
            "a curve above the dashed line refutes nothing where few images make it: only an interval that lies above "
            "the line as a whole does, and is said first"
        )
    if run and not charts:
        notes.insert(0, "This attack.json holds no curves, since an older version wrote it: run the attack again.")
    above = [said for name, result in run.items() for said in (proven.exceeded(name, result) if proven else ())]
    text = (
        *above,
        f"{found['num_members']:,} images that it was trained on against {found['num_non_members']:,} that it never "
        "saw. The left end of a curve is what matters: members that are found while hardly anybody is accused falsely.",
        *([f"The {best['in_words']}."] if (best := found.get("best")) else []),
        *([_gate(gate)] if (gate := found.get("gate")) else []),
    )
    return Part("attacks", "Membership inference", text=text, charts=charts, tables=tables, notes=notes)


def _roc(name: str, result: Mapping[str, Any], proven: Proven | None) -> Chart:
    low, high = result["auc_interval"]
    interval = (result.get("tpr_intervals") or {}).get(_MARKED_RATE)
    described, found = f"AUC {result['auc']:.3f} ({low:.3f} to {high:.3f})", _rate(result, _MARKED_RATE)
    limit = proven.points if proven is not None and proven.bounds(name) else ()
    svg = roc_chart(
        [(float(x), float(y)) for x, y in result["roc"]],
        title=f"ROC curve of {name}",
        description=f"{described}; at 1 % false positives it finds {found} of the members; dotted: a guess"
        + "; dashed: the most that any attack finds" * bool(limit),
        at=float(_MARKED_RATE) if interval else None,
        interval=(float(interval[0]), float(interval[1])) if interval else None,
        proven=limit,
    )
    return Chart(name, svg, described)


def _rate(result: Mapping[str, Any], rate: str) -> str:
    value, interval = result["tpr_at_fpr"].get(rate), result["tpr_intervals"].get(rate)
    if value is None or value == TOO_SMALL:
        return TOO_SMALL
    return f"{value:.2%}" if interval is None else _with_interval(value, interval, ".2%")


def _with_interval(value: float, interval: Sequence[float], form: str) -> str:
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def audit_part(found: Mapping[str, Any], released: bool, command: str) -> Part:
    """Return the result of an audit.json.

    Args:
        found: Its content.
        released: Whether the audited value stands in the release too.
        command: That writes it there.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    result = found["result"]
    sign = "at least" if result["direction"] == 1 else "below"
    proven = "infinite" if found["proven"] == "inf" else f"{float(found['proven']):.4g}"
    rows = [
        ("audited epsilon, a lower bound", f"{result['epsilon_lower']:.4g}"),
        ("most that so many runs can show (cap)", f"{result['cap']:.4g}"),
        ("proven epsilon of the audited case", proven),
        ("confidence", f"{result['confidence']:g}"),
        ("runs per side", f"{result['runs']:,}, half of them held out"),
        ("rule", f"{result['statistic']} {sign} {result['threshold']:.4g}"),
        ("right", f"{result['true_positives']:,} of {result['held_out']:,}"),
        ("wrong", f"{result['false_positives']:,} of {result['held_out']:,}"),
    ]
    if isinstance(found.get("proven_mu"), int | float):
        mus = f"{found['audited_mu']:.4g} of {found['proven_mu']:.4g} standard deviations"
        rows.insert(3, (SHARE, f"{share_text(found['audited_mu'], found['proven_mu'])} ({mus})"))
    notes = list(found["notes"])
    if not released and not found["violation"]:
        notes.append(f"The release does not state this value yet: {command} writes it there.")
    return Part(
        "audit",
        "Audit",
        text=(
            found["verdict"],
            f"Neighbors: {found['neighbors']}. No private image was read for it. About the share: {SHARE_MEANS}.",
        ),
        tables=(Table("What the audit rests on", ("", "value"), rows),),
        notes=notes,
    )
