"""Pages that explain one query of a finished run: why each chunk was kept or dropped.

What belongs here: the record that a run leaves behind (`record`), running one query of it again
with every step kept (`replay`), and drawing what came out as one HTML page that loads nothing
(`page`, and a file per drawing). Nothing here decides anything; stages do.
"""
