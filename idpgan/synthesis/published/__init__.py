"""IDP-GAN as published: a perturbed first layer and a noisy Taylor loss."""
