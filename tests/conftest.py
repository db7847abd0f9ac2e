"""One torch thread for tests: with more, small operations wait for each other whenever the machine is busy."""

import torch

torch.set_num_threads(1)
