"""Diffusion that starts at a release of moments."""
