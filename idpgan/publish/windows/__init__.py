"""Sliding windows over an image's pixels: as Liu et al. (2021) publish them, and made sound."""
