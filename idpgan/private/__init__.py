"""What methods read private images by: steps of DP-SGD, and the split of one budget between several releases."""
