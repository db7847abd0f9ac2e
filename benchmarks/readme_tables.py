"""Write the measured tables of README.md and docs/ from the committed results: no number there is typed by hand.

Between ``<!-- measured:NAME -->`` and ``<!-- /measured -->`` stands what ``benchmarks/results/tables.toml`` says under
[NAME]: cells of a ``figure`` (see `sample_figures`), ``audits`` (see `three_numbers`), all ``methods`` or ``attacks``
(see `method_lines`, `attack_lines`), a ``text``, or a table, in which ``{ROW:FACT}`` is filled from
``benchmarks/results/ROW.json``, or from the figures' cells where ROW is "DATA METHOD EPSILON" (one point) or "DATA
METHOD" (all points in the order of epsilon; facts that end in "by epsilon"). A line of a table is a list of cells, or
words and a result, whose ``facts`` follow.
A line none of whose results has a file is left out; one file that is missing beside others reads "not measured". Facts:
see `FACTS`.

python benchmarks/readme_tables.py            # writes README.md and docs/**/*.md anew
python benchmarks/readme_tables.py --check    # says what is out of date, writes nothing
python benchmarks/readme_tables.py --add RUN/evaluation.json [...] --row NAME [--runs RUN ...]  # results/NAME.json
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measured import RESULTS, ROOT, commits, make_result, read_results, summary, write_result
from sample_figures import read_cells, read_table
from three_numbers import AUDITS
from three_numbers import lines as audit_lines

from idpgan.attacks.knowledge import WORDS
from idpgan.attacks.registry import ATTACKS
from idpgan.files import write_text_atomic
from idpgan.methods import METHODS

MISSING = "not measured"
BLOCK = re.compile(r"(<!-- measured:([\w.-]+) -->)(.*?)(<!-- /measured -->)", re.DOTALL)
FIELD = re.compile(r"\{([\w. =-]+):([\w. -]+)\}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say which pages are out of date; nothing is written")
    parser.add_argument("--add", type=Path, nargs="+", metavar="JSON", help="evaluations of the runs of one row")
    parser.add_argument("--row", help="its name")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="the run of each evaluation, where it moved")
    arguments = parser.parse_args()
    if (arguments.add is None) != (arguments.row is None):
        parser.error("--add and --row go together")
    if arguments.add:
        print(write_result(make_result(arguments.row, arguments.add, arguments.runs)).relative_to(ROOT))
    old = [(path, text) for path, text in rendered(ROOT) if text != path.read_text(encoding="utf-8")]
    for path, text in old:
        print(f"{path.relative_to(ROOT)}: {'out of date' if arguments.check else 'written'}")
        if not arguments.check:
            write_text_atomic(path, text)
    sys.exit(arguments.check and bool(old))


def rendered(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every page with measured blocks, and how it should read."""
    results, tables = read_results() | read_figures(), read_tables()
    for path in (root / "README.md", *sorted([*(root / "docs").rglob("*.md"), *RESULTS.glob("*.md")])):
        text = path.read_text(encoding="utf-8")
        if BLOCK.search(text):
            yield path, fill(text, tables, results)


def read_tables(path: Path = RESULTS / "tables.toml") -> dict[str, Any]:
    """Return what the blocks say, by name."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_figures() -> dict[str, dict[str, Any]]:
    """Return the points of all committed figures, and the series that they make over epsilon."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((RESULTS / "figures").glob("*.json")):
        wanted, rows = read_cells(path.stem)
        for method, epsilon in sorted(
            {(cell.method, cell.epsilon) for cell in wanted}, key=lambda point: point[1] or 0
        ):
            runs = [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
            series = f"{path.stem} {method}"
            if runs:
                found[series if epsilon is None else f"{series} {epsilon:g}"] = {"runs": runs, "summary": summary(runs)}
            if epsilon is not None:
                found.setdefault(series, {"points": []})["points"].append(summary(runs))
    return found


def fill(text: str, tables: dict[str, Any], results: dict[str, Any]) -> str:
    """Return a page with all of its measured blocks written anew."""

    def block(found: re.Match[str]) -> str:
        opening, name, _, closing = found.groups()
        if name not in tables:
            raise SystemExit(f"benchmarks/results/tables.toml has no [{name}]. Add it, or mend the marker.")
        return opening + body(tables[name], results) + closing

    return BLOCK.sub(block, text)


def body(table: dict[str, Any], results: dict[str, Any]) -> str:
    """Return what stands between two markers."""
    if "text" in table:
        return cell(table["text"], results)
    if "figure" in table:
        return "\n" + "\n".join(read_table(table["figure"])) + "\n"
    if "audits" in table:
        return "\n" + "\n".join(audit_lines(AUDITS / table["audits"], table.get("only", ()))) + "\n"
    if "methods" in table:
        return "\n" + "\n".join(method_lines()) + "\n"
    if "attacks" in table:
        return "\n" + "\n".join(attack_lines()) + "\n"
    lines = [line(table["head"]), "|" + "---|" * len(table["head"])]
    for row in table["rows"]:
        words = row
        if isinstance(row, dict):
            words = [row["words"], *(f"{{{row['result']}:{fact}}}" for fact in table["facts"])]
        named = {name for word in words for name, _ in FIELD.findall(word)}
        if not named or named & {*results}:
            lines.append(line([cell(word, results) for word in words]))
    return "\n" + "\n".join(lines) + "\n"


def method_lines() -> list[str]:
    """Return the table of all methods by the registry: those that promise the same share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for info in METHODS.values():
        proven = info.proven.replace("inf", "infinite")
        promise = info.family, ", ".join(info.units), info.relation, info.claimed or "nothing", proven
        alike.setdefault(promise, []).append(f"`{info.name}`")
    head = ["family", "methods", "unit", "relation", "claimed", "proven"]
    rows = [[family, ", ".join(names), *promise] for (family, *promise), names in alike.items()]
    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def attack_lines() -> list[str]:
    """Return the table of all attacks by the registry: what each takes, and whether it comes calibrated too."""
    head = ["attack", "paper", "what the attacker has", "calibrated too"]
    rows = []
    for row in ATTACKS.values():
        if not row.calibrated:
            names = [name for name in row.needs if name != "samples" or "sample_labels" not in row.needs]
            needs = [WORDS[name] for name in (*names, *["people"] * row.by_person)]
            calibrated = "yes" if len(row.with_calibrated()) > 1 else ""
            rows.append([f"`{row.name}`", row.paper, "; ".join(needs), calibrated])
    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def line(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def cell(words: str, results: dict[str, Any]) -> str:
    """Return words with every ``{ROW:FACT}`` filled in."""

    def field(found: re.Match[str]) -> str:
        name, asked = found.groups()
        if name not in results:
            return MISSING
        if asked in FACTS:
            return FACTS[asked](results[name])
        raise SystemExit(f"{{{name}:{asked}}} asks for an unknown fact. Known: {', '.join(FACTS)}.")

    return FIELD.sub(field, words)


def percent(score: str) -> Callable[[dict[str, Any]], str]:
    """Return the fact "mean +- spread %" of a score that is a share; the first kind of it that was measured."""

    def fact(row: dict[str, Any]) -> str:
        found = [value for name, value in row["summary"].items() if name.split(" ")[:-1] == score.split(" ")]
        if not found:
            return MISSING
        spread = "" if found[0]["std"] is None else f" +- {100 * found[0]['std']:.1f}"
        return f"{100 * found[0]['mean']:.1f}{spread} %"

    return fact


def number(score: str, digits: int) -> Callable[[dict[str, Any]], str]:
    """Return the fact "mean +- spread over runs" of any other score."""

    def fact(row: dict[str, Any]) -> str:
        if score not in row["summary"]:
            return MISSING
        found = row["summary"][score]
        return f"{found['mean']:.{digits}f}" + ("" if found["std"] is None else f" +- {found['std']:.{digits}f}")

    return fact


def by_epsilon(score: str, unit: float, digits: int) -> Callable[[dict[str, Any]], str]:
    """Return the fact that lists the means of a score in the order of epsilon; their spreads stand in the table."""

    def fact(row: dict[str, Any]) -> str:
        points = [point.get(score) for point in row["points"]]
        return ", ".join(MISSING if point is None else f"{unit * point['mean']:.{digits}f}" for point in points)

    return fact


def each(row: dict[str, Any]) -> str:
    """Return the accuracy of every run."""
    found = [value for name, value in row["summary"].items() if name.startswith("accuracy ")]
    return ", ".join(f"{100 * value:.1f}" for value in found[0]["values"]) + " %" if found else MISSING


def majority(row: dict[str, Any]) -> str:
    """Return what one constant answer gets."""
    return f"{100 * row['summary']['majority']['mean']:.1f} %"


def judges(row: dict[str, Any]) -> str:
    """Return how many classifiers judged each run."""
    return f"{len(row['runs'][0]['utility']['seeds'])}" if "utility" in row["runs"][0] else "1"


def minutes(row: dict[str, Any]) -> str:
    """Return the time of training, a mean over runs."""
    known = [run["train_seconds"] for run in row["runs"] if run["train_seconds"] is not None]
    seconds = sum(known) / len(known) if known else 0
    return f"{seconds / 60:.0f} min" if seconds >= 60 else "under 1 min"


def how(row: dict[str, Any]) -> str:
    """Return the config and the settings that differ from it."""
    return f"`{' '.join([row['config'], *row['overrides']])}`"


def epsilon(which: str) -> Callable[[dict[str, Any]], str]:
    """Return the epsilon that is claimed or proven."""

    def fact(row: dict[str, Any]) -> str:
        guarantee = row["privacy"][which]
        value = guarantee and guarantee["epsilon"]
        return "none" if value is None else value if isinstance(value, str) else f"{value:.4g}"

    return fact


FACTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "accuracy": percent("accuracy"),  # +- spread of the runs, or of the judges of the only run
    "each": each,
    "ceiling": percent("ceiling accuracy"),
    "majority": majority,
    "inception": number("inception", 2),
    "fid": number("fid", 2),
    "kid": number("kid", 3),
    "ceiling fid": number("ceiling fid", 2),
    "inception by epsilon": by_epsilon("inception", 1, 2),
    "accuracy by epsilon": by_epsilon("accuracy cnn", 100, 1),
    "fid by epsilon": by_epsilon("fid", 1, 1),
    "recall by epsilon": by_epsilon("recall", 100, 0),
    "epsilon": epsilon("claimed"),
    "proven": epsilon("proven"),
    "runs": lambda row: str(len(row["runs"])),
    "judges": judges,
    "steps": lambda row: f"{row['steps']:,}",
    "time": minutes,
    "images": lambda row: f"{row['num_images']:,}",
    "N": lambda row: f"{row['num_private']:,}",
    "how": how,
    "commit": lambda row: ", ".join(commits([row])),
    "date": lambda row: max(run["evaluation"]["date"] for run in row["runs"]),
}

if __name__ == "__main__":
    main()
