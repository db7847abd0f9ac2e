"""A small convolutional classifier by DP-SGD."""
