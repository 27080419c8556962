"""Fairness corrections for the predictions of any model."""
