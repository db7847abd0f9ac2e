"""Settings of all tests: one torch thread, a fixed model seed, and hypothesis without a clock, fixed examples."""

import hypothesis
import pytest
import torch

# With more threads small operations wait for each other whenever the machine is busy.
torch.set_num_threads(1)
# No deadline: a busy machine is not a defect. Derandomized: a failure is the same failure everywhere.
hypothesis.settings.register_profile("idpgan", deadline=None, derandomize=True)
hypothesis.settings.load_profile("idpgan")


@pytest.fixture(autouse=True)
def _model_seed():
    """Weights that a test does not seed are the same in every run; noise has its own source and is untouched."""
    torch.manual_seed(0)
