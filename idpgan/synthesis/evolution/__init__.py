"""Private Evolution: a simulator proposes, noisy votes of the private records choose; no network is trained."""
