"""Linear algebra for the other packages, without privacy, images or noise."""
