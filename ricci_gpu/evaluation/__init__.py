"""How good rankings are: metrics over judgements, controls, tables, reports.

What belongs here: everything that compares filters and rerankers on judged queries, from cached
pools to the report. What it compares are the stages of the product; clusterings and attempts that
are no stage live here too, and nothing outside the command line and training reads this room.
"""
