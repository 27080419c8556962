"""Hyperparameter search behind ``fairmp tune``."""
