"""Settings of all tests: one torch thread, and hypothesis without a clock and with fixed examples."""

import hypothesis
import torch

# With more threads small operations wait for each other whenever the machine is busy.
torch.set_num_threads(1)
# No deadline: a busy machine is not a defect. Derandomised: a failure is the same failure everywhere.
hypothesis.settings.register_profile("idpgan", deadline=None, derandomize=True)
hypothesis.settings.load_profile("idpgan")
