"""A linear classifier on scattering features, by noisy gradient descent."""
