"""dp-GAN: DP-SGD on the critic."""
