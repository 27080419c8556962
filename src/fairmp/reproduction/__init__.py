"""One file per table or figure of the paper, behind ``fairmp reproduce``."""
