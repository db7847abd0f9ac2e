"""IDP-GAN, aggregate form: one noisy release of sums of features."""
