"""Audits of real graphs and the theory of topology bias."""
