"""How far the statistics of tests are from their thresholds, in standard deviations over shifted seeds, least first.

    python tools/margins.py [--shifts 20] [options of pytest, such as paths; without any: the tests marked `trained`]

Each comparison of numbers that a test asserts, say `assert accuracy > 0.9`, is a statistic: pytest reports its values,
so that tests need no extra code. This script runs pytest once for each shift, and is a plugin of these runs.
"""

import argparse
import ast
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ENOUGH = 4.0
RECORD = "MARGINS_FILE"


class Recorder:
    """Pytest plugin: writes (test, line, earlier occurrences, text, values) for each asserted comparison."""

    def __init__(self, path):
        self.path, self.seen = path, collections.Counter()

    def pytest_assertion_pass(self, item, lineno, orig, expl):
        """Record a passed assertion."""
        self._record(item, lineno, orig, expl)

    def pytest_exception_interact(self, node, call):
        """Record a failed assertion; pytest has no other hook for it."""
        if call.excinfo.errisinstance(AssertionError):
            explained = str(call.excinfo.value).partition("assert ")[2]
            self._record(node, call.excinfo.traceback[-1].lineno + 1, None, explained)

    def _record(self, item, line, text, explained):
        for part, (value, threshold, gap) in enumerate(compared(explained.partition("\n")[0])):
            place = (item.nodeid, line, part)
            found = {"place": [*place, self.seen[place]], "text": text}
            self.seen[place] += 1
            with open(self.path, "a") as file:
                file.write(json.dumps({**found, "value": value, "threshold": threshold, "gap": gap}) + "\n")


def compared(explained):
    """Return value, threshold and signed margin (negative: failed) of each comparison of two numbers."""
    try:
        bare = re.sub(r"tensor\(([^,()]+)[^()]*\)", r"\1", explained)  # unwraps `tensor(0.5, dtype=torch.float64)`
        tree = ast.parse(bare.replace(" ± ", " @ "), mode="eval").body
    except SyntaxError:  # the explanation is not about numbers
        return
    for part in tree.values if isinstance(tree, ast.BoolOp) else [tree]:
        if not isinstance(part, ast.Compare):
            continue
        for left, operation, right in zip([part.left, *part.comparators], part.ops, part.comparators, strict=False):
            try:
                yield from compared_pair(left, operation, right)
            except (AttributeError, NameError, SyntaxError, TypeError, ValueError):  # not two numbers
                continue


def compared_pair(left, operation, right):
    """Return value, threshold and margin of one comparison; nothing if it does not compare sizes."""
    if isinstance(operation, ast.Lt | ast.LtE):
        yield number(left), number(right), number(right) - number(left)
    elif isinstance(operation, ast.Gt | ast.GtE):
        yield number(left), number(right), number(left) - number(right)
    elif isinstance(operation, ast.Eq) and isinstance(right, ast.BinOp) and isinstance(right.op, ast.MatMult):
        value, tolerance = number(left), number(right.right)  # pytest.approx
        yield value, number(right.left), tolerance - abs(value - number(right.left))


def number(node):
    """Convert a number printed by pytest: `0.5`, `(0.75 * 0.5)`, `tensor(0.5)`, `np.float64(0.5)`."""
    names = {"__builtins__": {}, "np": np, "inf": float("inf"), "nan": float("nan")}
    return float(eval(compile(ast.Expression(node), "explained", "eval"), names))


def pytest_configure(config):
    """Record when this file runs as a plugin."""
    config.pluginmanager.register(Recorder(os.environ[RECORD]))


def run_shifted(shift, options, folder):
    """Run pytest with shifted seeds; return the compared numbers, and whether all tests passed."""
    record = folder / f"{shift}.jsonl"
    paths = [str(Path(__file__).parent), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    # Uses a separate bytecode cache, since test modules compiled without the hook would not call it.
    own = {RECORD: str(record), "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "margins", "-p", "no:cacheprovider"]
    command += ["-o", "enable_assertion_pass_hook=true", "--seed-shift", str(shift), *options]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    print(f"shift {shift}: {done.stdout.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    lines = record.read_text().splitlines() if record.exists() else []
    return [json.loads(line) for line in lines], failed


def table(found):
    """Return one row for each statistic: distance, mean, deviation, mean threshold, failures, runs, place, text."""
    rows = {}
    for place, group in found.items():
        gaps, values = [one["gap"] for one in group], [one["value"] for one in group]
        spread = statistics.pstdev(gaps)
        if spread == 0 or len(group) < 2:
            continue
        mean, deviation = statistics.mean(values), statistics.pstdev(values)
        threshold = statistics.mean(one["threshold"] for one in group)
        text = next((one["text"] for one in group if one["text"]), "")
        failed = sum(gap < 0 for gap in gaps)
        row = (statistics.mean(gaps) / spread, mean, deviation, threshold, failed, len(group), place, text)
        rows[place[:3]] = min(row, rows.get(place[:3], row))  # in a loop, the repetition with the least distance
    return sorted(rows.values())


def main():
    """Run the tests under each shift and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shifts", type=int, default=20)
    shifts, options = (found := parser.parse_known_args())[0].shifts, found[1]
    if not options:
        marked = [str(path) for path in Path("tests").rglob("test_*.py") if "mark.trained" in path.read_text()]
        options = ["-m", "trained and not (gpu or data)", *sorted(marked)]
    found, failures = collections.defaultdict(list), []
    with tempfile.TemporaryDirectory() as folder:
        for shift in range(shifts):
            lines, failed = run_shifted(shift, options, Path(folder))
            failures += [f"shift {shift}: {line}" for line in failed]
            for line in lines:
                found[tuple(line["place"])].append(line)
    rows = table(found)
    print("distance       mean  deviation  threshold  failed  test, line, comparison")
    for distance, mean, deviation, threshold, failed, runs, (test, line, *_), text in rows:
        numbers = f"{distance:8.1f} {mean:10.4g} {deviation:10.2g} {threshold:10.4g} {failed:4}/{runs:<2}"
        print(f"{numbers}  {test}:{line}  {text}")
    print(*failures, sep="\n")
    return 1 if failures or (rows and rows[0][0] < ENOUGH) else 0


if __name__ == "__main__":
    sys.exit(main())
