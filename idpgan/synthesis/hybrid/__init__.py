"""The aggregate's release first, then steps of dp-gan."""
