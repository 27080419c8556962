"""Hyperparameter search for fair classifiers, behind ``fairmp tune``; needs optuna."""

from fairmp.errors import InputError

try:
    import optuna  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise InputError("optuna", "not installed", "pip install 'fairmp[tune]'") from None
