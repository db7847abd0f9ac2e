"""What was measured of a run, from its result files: evaluation.json, attack.json, audit.json and stats.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idpgan.attacks.evaluate import TOO_SMALL
from idpgan.audit.bounds import SHARE, SHARE_MEANS, share_text
from idpgan.metrics.evaluation import metric_notes, metric_tables
from idpgan.privacy.guarantee import number_from_json
from idpgan.privacy.tradeoff import percent
from idpgan.report.epsilons import Proven, epsilon_text
from idpgan.report.page import Content, line_chart, number, roc_chart, table

_NOT_LOSSES = ("step", "seconds", "steps_per_second", "images_per_second", "epsilon", "delta")
_MARKED_RATE = "0.01"  # false-positive rate at which the interval is drawn
_MOST_CURVES = 12
_ONE_CURVE = 400  # most points of a curve


def curves_part(rows: Sequence[Content], target: float | None) -> Content:
    """Return the curves of stats.jsonl: epsilon first, then every average over a tick.

    Args:
        rows: One per tick.
        target: Epsilon that the run may spend; None = no limit.
    """
    charts, epsilons = [], _series(rows, "epsilon")
    if epsilons:
        words = f"spent up to each step; {epsilon_text(epsilons[-1][1])} at the end"
        svg = line_chart(epsilons, title="Proven epsilon", description=words, limit=target, from_zero=True)
        of_target = "" if target is None else f" of {epsilon_text(target)} (dotted)"
        charts.append({"title": "Proven epsilon", "svg": svg, "caption": words + of_target})
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in _NOT_LOSSES]
    for name in names[:_MOST_CURVES]:
        points, title = _series(rows, name), name.replace("_", " ").capitalize()  # "Critic loss" of critic_loss
        if points:
            low, high = min(y for _, y in points), max(y for _, y in points)
            over = f" at the end, {number(low)} to {number(high)} in all" if low < high else " throughout"
            words = number(points[-1][1]) + over
            charts.append({"title": title, "svg": line_chart(points, title=title, description=words), "caption": words})
    notes = ["Averages over the steps of a tick, some of them on private images without noise: no epsilon covers them."]
    if rows and not epsilons:
        notes.insert(0, "The proven epsilon is infinite from the first read on, so there is no curve of it.")
    seconds, text = rows[-1].get("seconds") if rows else None, []
    if isinstance(seconds, int | float):
        minutes = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
        text = [f"{rows[-1]['step']:,} steps in {f'{seconds:.3g} seconds' if seconds < 120 else minutes}."]
    return {"name": "curves", "heading": "Training curves", "text": text, "charts": charts, "notes": notes}


def _series(rows: Sequence[Content], name: str) -> list[tuple[float, float]]:
    points = [(float(row["step"]), float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
    points = [point for point in points if math.isfinite(point[1])]
    stride = -(-len(points) // _ONE_CURVE) or 1
    return points[::stride] if not points or points[::stride][-1] == points[-1] else [*points[::stride], points[-1]]


def evaluation_part(evaluation: Content) -> Content:
    """Return the metrics of an evaluation.json, each with its uncertainty.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    num = evaluation.get("num_images")
    judged = f"Judged by the real {evaluation['part']} images"
    return {
        "text": [judged + (f"; {num:,} images under test." if isinstance(num, int) else ".")],
        "tables": metric_tables(evaluation),
        "notes": metric_notes(evaluation),
    }


def attack_part(attack: Content, proven: Proven | None = None) -> Content:
    """Return the results of an attack.json: ROC curves, and numbers with their intervals.

    Args:
        attack: Its content.
        proven: What any attack finds at most, which is drawn beside; None where nothing is proven.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    results = {name: result for name, result in attack["attacks"].items() if result["skipped"] is None}
    charts = [_roc(name, result, proven) for name, result in results.items() if result.get("roc")]
    notes = list(dict.fromkeys([*attack["notes"], *(note for result in results.values() for note in result["notes"])]))
    if proven is not None and any(map(proven.bounds, results)):
        notes.append(
            "a curve above the dashed line refutes nothing where few images make it: only an interval that lies above "
            "the line as a whole does, and is said first"
        )
    if results and not charts:
        notes.insert(0, "This attack.json holds no curves, since an older version wrote it: run the attack again.")
    text = [above for name, result in results.items() if proven for above in proven.exceeded(name, result)]
    text.append(
        f"{attack['num_members']:,} images that it was trained on against {attack['num_non_members']:,} that it never "
        "saw. The left end of a curve is what matters: members that are found while hardly anybody is accused falsely."
    )
    if best := attack.get("best"):
        text.append(f"The {best['in_words']}.")
    if gate := attack.get("gate"):
        text.append(
            f"Gate {gate['verdict']} (exit code {gate['exit_code']}), limit {gate['limit']}: "
            f"{'; '.join(gate['reasons'])}. That is a fact about private images without noise, and no evidence of "
            "privacy."
        )
    return {"text": text, "charts": charts, "tables": _attack_tables(attack, results, proven), "notes": notes}


def _attack_tables(attack: Content, results: Mapping[str, Any], proven: Proven | None) -> list[Content]:
    """Return the rates of each attack, why others were not run, and the members that are found most easily."""
    tables = []
    if results:
        first = next(iter(results.values()))
        rows = [
            (
                name,
                _with_interval(result["auc"], result["auc_interval"], ".3f"),
                *(_rate(result, rate) for rate in result["tpr_at_fpr"]),
                "-" if result["precision"] is None else f"{result['precision']:.1%}",
                f"{result['num_members']:,}",
            )
            for name, result in results.items()
        ]
        if proven is not None and any(map(proven.bounds, results)):
            most = (percent(proven.curve.found(float(rate))) for rate in first["tpr_at_fpr"])
            rows.append(("any attack, at most: proven", "", *most, "", ""))
        rates = [f"TPR at {float(rate):.1%} FPR" for rate in first["tpr_at_fpr"]]
        interval = f"in brackets the {first['confidence']:.0%} interval"
        caption = f"Members against as many non-members; {interval}. A guess has AUC 0.5."
        tables.append(table(caption, ("attack", "AUC", *rates, "precision", "members"), rows))
    if skipped := [(name, result["skipped"]) for name, result in attack["attacks"].items() if name not in results]:
        tables.append(table("Attacks that were not run", ("attack", "why"), skipped))
    if records := attack.get("riskiest"):
        names = list(records[0]["levels"])
        caption = "Members that are found most easily; a run without them proves nothing for those who were in"
        lines = [
            (
                ", ".join(member["names"]),
                f"{member['distances'][0]:.1f}",
                *(f"{member['levels'][name]:.2%}" for name in names),
            )
            for member in records
        ]
        tables.append(table(caption, ("member", "distance", *names), lines))
    return tables


def _roc(name: str, result: Content, proven: Proven | None) -> Content:
    low, high = result["auc_interval"]
    interval = (result.get("tpr_intervals") or {}).get(_MARKED_RATE)
    words, rate = f"AUC {result['auc']:.3f} ({low:.3f} to {high:.3f})", _rate(result, _MARKED_RATE)
    limit = proven.points if proven is not None and proven.bounds(name) else ()
    svg = roc_chart(
        [(float(x), float(y)) for x, y in result["roc"]],
        title=f"ROC curve of {name}",
        description=f"{words}; at 1 % false positives it finds {rate} of the members; dotted: a guess"
        + "; dashed: the most that any attack finds" * bool(limit),
        at=float(_MARKED_RATE) if interval else None,
        interval=(float(interval[0]), float(interval[1])) if interval else None,
        proven=limit,
    )
    return {"title": name, "svg": svg, "caption": words}


def _rate(result: Content, rate: str) -> str:
    value, interval = result["tpr_at_fpr"].get(rate), result["tpr_intervals"].get(rate)
    if value is None or value == TOO_SMALL:
        return TOO_SMALL
    return f"{value:.2%}" if interval is None else _with_interval(value, interval, ".2%")


def _with_interval(value: float, interval: Sequence[float], form: str) -> str:
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def audit_part(audit: Content, released: bool, command: str) -> Content:
    """Return the result of an audit.json.

    Args:
        audit: Its content.
        released: Whether the audited value stands in the release too.
        command: That writes it there.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    result = audit["result"]
    sign = "at least" if result["direction"] == 1 else "below"
    rows = [
        ("audited epsilon, a lower bound", f"{result['epsilon_lower']:.4g}"),
        ("most that so many runs can show (cap)", f"{result['cap']:.4g}"),
        ("proven epsilon of the audited case", epsilon_text(number_from_json(audit["proven"]))),
        ("confidence", f"{result['confidence']:g}"),
        ("runs per side", f"{result['runs']:,}, half of them held out"),
        ("rule", f"{result['statistic']} {sign} {result['threshold']:.4g}"),
        ("right", f"{result['true_positives']:,} of {result['held_out']:,}"),
        ("wrong", f"{result['false_positives']:,} of {result['held_out']:,}"),
    ]
    if isinstance(audit.get("proven_mu"), int | float):
        mus = f"{audit['audited_mu']:.4g} of {audit['proven_mu']:.4g} standard deviations"
        rows.insert(3, (SHARE, f"{share_text(audit['audited_mu'], audit['proven_mu'])} ({mus})"))
    unstated = f"The release does not state this value yet: {command} writes it there."
    return {
        "text": [
            audit["verdict"],
            f"Neighbors: {audit['neighbors']}. No private image was read for it. About the share: {SHARE_MEANS}.",
        ],
        "tables": [table("What the audit rests on", ("", "value"), rows)],
        "notes": [*audit["notes"], *([] if released or audit["violation"] else [unstated])],
    }
