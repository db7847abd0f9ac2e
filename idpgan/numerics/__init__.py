"""Linear algebra that the other rooms share: no privacy, no images, no noise."""
