"""All cases that are recorded of a tree, by name."""

from __future__ import annotations

from pathlib import Path

from box import Case
from hostile import hostile_cases
from looking import looking_cases
from refusals import refusal_cases
from releasing import releasing_cases
from training import training_cases


def every_case(tree: Path) -> list[Case]:
    """Return all cases for a tree; their names are unique."""
    parts = (training_cases, looking_cases, releasing_cases, hostile_cases, refusal_cases)
    found = [case for part in parts for case in part(tree)]
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise ValueError(f"cases share a name: {sorted({name for name in names if names.count(name) > 1})}")
    return found
