"""A network split between phones and a cloud: few noisy features of each image, once."""
