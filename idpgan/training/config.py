"""The [training] section, the same for every method."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from idpgan.config import Section

MOST_STEPS = 100_000_000  # more than a year at three a second


class TrainingConfig(Section):
    """How long, how large, how often, where.

    Attributes:
        steps: Critic steps of the whole run. Progress is counted in them, because they are what costs budget.
        batch_size: Real images per critic step; also the number of generated images per step.
        tick_steps: Critic steps between two ticks: save, statistics, epsilon, sample grid, metrics.
        seed: Seeds initial weights, latent vectors and batch order. Never privacy noise: a published seed would let
            anyone subtract it.
        device: "auto" is the GPU where there is one, else the CPU.
        diverged_above: A statistic whose mean over a tick is larger than this (or not finite) stops the run.
            Losses are of order 1 to 100.
    """

    steps: int = Field(10_000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(64, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)
    seed: int = Field(0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    diverged_above: float = Field(1e8, gt=0)
