"""Tensors in, tensors out: the mathematics, batched, padded and masked.

What belongs here: functions of tensors that know nothing of texts, files, models or settings
files. Each fast path stands beside a plain one that defines what it must return.
"""
