"""Images: where they come from, how they are split, and the only place that maps uint8 to float.

`config.DataConfig` says which images, `load.load` reads them into a `load.Split`, and `images.Images` holds each part.
A new source is one file of `sources`.
"""
