"""Runs the suite as other machines would: older processors, more threads, newer dependencies, newer Pythons.

    python tools/everywhere.py [--workers 2] [names of variants]

Prints one line for each variant, with the names of failed tests below it. The suite runs on a copy of the last commit,
so that work can go on; logs and results are in runs/everywhere/COMMIT, and a variant with a result is not run again.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINED = "trained and not (slow or gpu or data)"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A machine: its environment variables, threads and Python, and whether constraints.txt applies."""

    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    threads: int = 1
    python: str = ""  # e.g. "python3.12"; empty: the current interpreter
    pinned: bool = True

    @property
    def own_packages(self) -> bool:
        """Whether the variant needs its own environment."""
        return bool(self.python) or not self.pinned


OLD = {
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl-sse4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "onednn-sse4.1": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
}
VARIANTS = {name: Variant(environment) for name, environment in OLD.items()}
VARIANTS["sse4"] = Variant({**OLD["aten-default"], **OLD["mkl-sse4.2"], **OLD["onednn-sse4.1"]})
VARIANTS |= {f"threads-{count}": Variant(threads=count) for count in (1, 2, 4)}
VARIANTS["newest"] = Variant(pinned=False)
VARIANTS |= {python: Variant(python=python) for python in ("python3.12", "python3.13")}


def find_python(name: str) -> str | None:
    """Return a working interpreter of that name, from the path or from pyenv, whose shims may be broken."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(name), *map(str, sorted(home.glob(f"versions/*/bin/{name}")))]
    runs = (path for path in found if path and subprocess.run([path, "-V"], capture_output=True).returncode == 0)
    return next(runs, None)


def interpreter(name: str, variant: Variant, tree: Path, log: Path) -> str | None:
    """Return the Python with the variant's packages, installed under .venvs/; None if it is unavailable."""
    if not variant.own_packages:
        return sys.executable
    base = find_python(variant.python) if variant.python else sys.executable
    if base is None:
        return None
    python = ROOT / ".venvs" / name / "bin" / "python"
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--upgrade",
        "--upgrade-strategy",
        "eager",
    ]
    pip += [*(["-c", "constraints.txt"] if variant.pinned else []), "-e", ".[test,dev]"]
    with log.open("w") as file:
        fits = [python, "-c", "import torchvision"]  # mismatched torch and torchvision install but do not load
        for command in ([base, "-m", "venv", python.parent.parent], pip, fits):
            if subprocess.run(command, cwd=tree, stdout=file, stderr=subprocess.STDOUT).returncode:
                return None
    return str(python)


def run_tests(python: str, variant: Variant, tree: Path, log: Path, options: list[str]) -> tuple[str, list[str]]:
    """Return the last line of pytest, and the failed tests."""
    environment = {
        **os.environ,
        **variant.environment,
        "OMP_NUM_THREADS": str(variant.threads),
        "PYTHONPATH": str(tree),
    }
    command = [python, "-m", "pytest", "-q", "--dist", "worksteal", "--threads", str(variant.threads), *options]
    with log.open("w") as file:
        code = subprocess.run(command, cwd=tree, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    lines = log.read_text().splitlines() or ["said nothing"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return lines[-1].strip("= "), failed or ([f"pytest ended with {code}, see {log}"] if code else [])


def run_variant(name: str, number: int, tree: Path, folder: Path, workers: int) -> tuple[str, list[str]]:
    """Run the suite once and the trained tests twice, with seed shifts that no other variant uses."""
    variant, started = VARIANTS[name], time.monotonic()
    python = interpreter(name, variant, tree, folder / f"{name}.install.log")
    if python is None:
        return f"{name}: left out, its packages or its Python cannot be had here, see {name}.install.log", []
    plain, failed = run_tests(python, variant, tree, folder / f"{name}.log", ["-n", str(workers)])
    said = [plain]
    for shift in (2 * number + 1, 2 * number + 2):
        options = ["-n", str(workers), "-m", TRAINED, "--seed-shift", str(shift)]
        text, more = run_tests(python, variant, tree, folder / f"{name}.shift{shift}.log", options)
        said, failed = [*said, f"trained, shift {shift}: {text}"], failed + [f"shift {shift}: {line}" for line in more]
    verdict = "FAILED" if failed else "passed"
    return f"{name}: {verdict} in {time.monotonic() - started:.0f} s ({'; '.join(said)})", failed


def main() -> int:
    """Run the variants that have no result for this commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("names", nargs="*", choices=[*VARIANTS, []], metavar="name", help=", ".join(VARIANTS))
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    folder = ROOT / "runs" / "everywhere" / commit
    tree = folder / "tree"
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
    worst = 0
    for number, name in enumerate(VARIANTS):
        result = folder / f"{name}.txt"
        if options.names and name not in options.names:
            continue
        if not result.exists():
            line, failed = run_variant(name, number, tree, folder, options.workers)
            result.write_text("\n  ".join([line, *failed]) + "\n")
        print(result.read_text(), end="", flush=True)
        worst |= len(result.read_text().splitlines()) > 1
    return worst


if __name__ == "__main__":
    sys.exit(main())
