"""Methods compared side by side, behind ``fairmp compare``."""
