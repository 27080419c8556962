"""The rooms behind :func:`fairmp.debias` and :func:`fairmp.mend`."""
