"""Defaults that the command line shows: nothing heavy is imported for its help."""

UNIT_ROWS = 1024  # what is lost when a worker dies
BATCH_TOKENS = 1 << 18  # of passages per batch; times their width and 4 bytes, the largest tensor
LEASE_SECONDS = 60.0
CALIBRATION_SECONDS = 120.0
