"""The scripts of benchmarks/ import each other by their names: their folder is on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
