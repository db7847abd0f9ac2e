"""Sliding windows over an image's pixels: the methods of Liu et al. (2021) as published, and sound versions of them."""
