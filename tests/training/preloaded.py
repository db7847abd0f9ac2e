"""Imported once by the fork server of test_resume.py, so that each child process starts in milliseconds.

It does no work that starts threads: they would not survive the fork.
"""

import torch

from idpgan.privacy.accounting import compose_epsilon
from tests.training.toy import DELTA, digits, gaussian

torch.set_num_threads(1)
compose_epsilon([gaussian()], DELTA)
digits()
