"""The model card: what a released generator is, and what its epsilon does and does not cover."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.privacy.guarantee import Guarantee, PrivacyReport
from idpgan.run import write_text_atomic

_AUDITED_LINE = "| audited (lower bound found by attack) |"  # of the template


def write_card(
    path: Path,
    report: PrivacyReport,
    config: Mapping[str, Any],
    generator: Generator,
    *,
    num_private: int,
    num_public: int,
) -> None:
    """Write MODEL_CARD.md from the template beside this file.

    Args:
        path: Where to write.
        report: The three numbers.
        config: The released part of the run's config.
        generator: For shape and classes.
        num_private: Declared number of private images.
        num_public: Number of public images, which nothing protects.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.report"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template("MODEL_CARD.md").render(
        report=report,
        epsilon=_epsilon,
        config=config,
        shape=generator.image_shape,
        classes=generator.classes,
        num_private=num_private,
        num_public=num_public,
        version=importlib.metadata.version("idpgan"),
    )
    write_text_atomic(path, text)


def _epsilon(guarantee: Guarantee | None, missing: str) -> str:
    """Write one of the three numbers with all that belongs to it."""
    if guarantee is None:
        return missing
    epsilon = f"{guarantee.epsilon:.4g}" if guarantee.finite else "**infinite**"
    delta = f", delta = {guarantee.delta:.3g}" if guarantee.delta else ""
    return f"epsilon = {epsilon}{delta}; unit: {guarantee.unit}; {guarantee.relation} ({guarantee.basis})"


def replace_audited(card: str, audited: Guarantee) -> str:
    """Return the text of a written card with another audited value.

    Raises:
        InputError: If the card has no such line.
    """
    found = [line for line in card.splitlines() if line.startswith(_AUDITED_LINE)]
    if len(found) != 1:
        raise InputError(f"the model card has {len(found)} lines that start with '{_AUDITED_LINE}', not 1.")
    return card.replace(found[0], f"{_AUDITED_LINE} {_epsilon(audited, '')} |")
