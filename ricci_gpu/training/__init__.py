"""Training small models on judged queries, with Lightning.

What belongs here: which questions may be trained on, hard negatives and batches, the Lightning
modules, and what is written at the end: the model, its card, its curve, and what it gains on
questions that it never saw. How a trained model is loaded and used is `ricci_gpu.models`.
"""
