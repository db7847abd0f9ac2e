"""The curator's report: all that is known of a run or a publication as one HTML page that needs nothing else."""
