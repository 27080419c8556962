"""Temporary alias of :mod:`fairmp.report.formats`."""

from fairmp.report.formats import COLUMNS, Line, cells

__all__ = ["COLUMNS", "Line", "cells"]
