"""One file per question; each prints what it measures and ends with one JSON line."""
