"""IDP-GAN, local form: every image perturbed by itself, once."""
