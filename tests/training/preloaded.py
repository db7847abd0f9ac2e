"""Imported once by the fork server of test_resume.py, so that each child process starts in milliseconds."""

import torch

from tests.training.toy import digits

torch.set_num_threads(1)  # a thread pool would not survive the fork
digits()
