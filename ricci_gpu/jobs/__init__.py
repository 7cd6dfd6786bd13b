"""Offline jobs: a query log cut into units, each computed once, by workers that may die.

What belongs here: the plan of a job, the leases that hand out its units, the worker that computes
them, what proves that nothing is missing (`verify`), and the launchers that start workers. How a
query is ranked does not: that is `ricci_gpu.reranker`. A launcher guarantees nothing; a job is
complete because a unit is done exactly when its file exists under its final name.
"""
