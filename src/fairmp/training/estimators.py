"""scikit-learn classifiers as transforms: fitted on the training nodes, and saved with skops.

skops stores a classifier as data and names of types. Types that neither skops nor this module knows
to be harmless are loaded only if the user trusts the file.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fairmp.errors import InputError, check_choice, shortlist
from fairmp.graph import to_scipy
from fairmp.nn.models import ESTIMATORS
from fairmp.training.graph_features import FeatureView

MIN_PROBABILITY = 1e-6
WIDE = 512  # columns that boosted trees read
SCHEMA = "schema.json"  # the file of a skops archive that says what the others are
NEVER = float(np.log(MIN_PROBABILITY))  # logit of a class that no training node has


class Classifier(Protocol):
    """A scikit-learn classifier, with ``predict_proba`` or ``decision_function``."""

    classes_: np.ndarray

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit to rows and their labels."""


def make(
    backbone: str | Classifier,
    view: FeatureView,
    seed: int,
    *,
    sparse: bool,
    columns: int = 0,
    max_columns: int = WIDE,
) -> Classifier:
    """Return an unfitted classifier: a copy of the user's, or a named one with our settings.

    Of more than ``max_columns``, boosted trees read those that vary most between the classes.
    """
    from sklearn.base import clone
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_selection import SelectKBest
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not isinstance(backbone, str):
        copied: Classifier = clone(backbone)
        return copied
    check_choice("backbone", backbone, ESTIMATORS)
    classifier: Classifier
    if backbone == "logistic" and view == "edges":
        classifier = LogisticRegression(C=0.02, max_iter=1000)
    elif backbone == "logistic":
        scaler = StandardScaler(with_mean=not sparse)
        classifier = make_pipeline(scaler, LogisticRegression(C=0.1, max_iter=1000))
    elif backbone == "forest":
        classifier = RandomForestClassifier(200, min_samples_leaf=5, random_state=seed)
    else:
        classifier = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_iter=150,
            max_leaf_nodes=15,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=seed,
        )
        if columns > max_columns:
            classifier = make_pipeline(SelectKBest(k=max_columns), classifier)
    return classifier


class Estimator(nn.Module):
    """A fitted scikit-learn classifier as a module; it never predicts a class it has not seen."""

    def __init__(self, classifier: Classifier, num_classes: int) -> None:
        super().__init__()
        self.classifier, self.num_classes = classifier, num_classes

    def forward(self, rows: Tensor | sp.csr_array) -> Tensor:
        """Return the logarithm of the probabilities, or the scores if it has none (n×C)."""
        array = self.rows(rows)
        if hasattr(self.classifier, "predict_proba"):
            scores = np.log(np.maximum(self.classifier.predict_proba(array), MIN_PROBABILITY))
        else:
            scores = np.asarray(self.classifier.decision_function(array))  # type: ignore[attr-defined]
            scores = scores if scores.ndim == 2 else np.stack([-scores / 2, scores / 2], 1)
        logits = np.full((len(scores), self.num_classes), scores.min(initial=0) + NEVER)
        logits[:, self.classifier.classes_] = scores
        return torch.from_numpy(logits)

    def rows(self, rows: Tensor | sp.csr_array) -> np.ndarray | sp.csr_array:
        """Rows as the classifier takes them."""
        return as_array(rows, self.classifier)


def as_array(rows: Tensor | sp.csr_array, classifier: Classifier) -> np.ndarray | sp.csr_array:
    """Rows as a classifier takes them: sparse ones stay sparse if it can read them."""
    from sklearn.utils import get_tags

    if not isinstance(rows, Tensor):
        return rows
    rows = rows.float()
    if rows.is_sparse and get_tags(classifier).input_tags.sparse:
        return to_scipy(rows)
    dense: np.ndarray = rows.to_dense().cpu().numpy()
    return dense


def fit(
    classifier: Classifier,
    rows: Tensor | sp.csr_array,
    y: Tensor,
    train_mask: Tensor,
    num_classes: int,
    sample_weight: Tensor | None = None,
) -> Estimator:
    """Fit a classifier on the training rows, and return it as a module."""
    mask = train_mask.cpu().numpy()
    fit_params = {}
    if sample_weight is not None:
        weight = sample_weight.cpu().double().numpy()[mask]
        fit_params[_weight_argument(classifier)] = weight
    with warnings.catch_warnings():
        # Columns that are constant among the training nodes are never selected.
        module = r"sklearn\.feature_selection"
        warnings.filterwarnings("ignore", category=UserWarning, module=module)
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=module)
        classifier.fit(as_array(rows, classifier)[mask], y.cpu().numpy()[mask], **fit_params)
    return Estimator(classifier, num_classes)


def _weight_argument(classifier: Classifier) -> str:
    """The name of the sample weights in ``fit``, of a pipeline those of its last step."""
    from sklearn.utils.validation import has_fit_parameter

    step, last = getattr(classifier, "steps", [("", classifier)])[-1]
    if not has_fit_parameter(last, "sample_weight"):
        value = f"{type(last).__name__} takes no sample weights"
        raise InputError("sample_weight", value, "leave them out, or choose another backbone")
    return f"{step}__sample_weight" if step else "sample_weight"


def to_bytes(classifiers: Mapping[int, Classifier]) -> Tensor:
    """Serialise fitted classifiers with skops (uint8)."""
    import skops.io

    named = {str(place): classifier for place, classifier in classifiers.items()}
    try:
        content = skops.io.dumps(named)
    except Exception as error:  # the exceptions of skops have no common base
        value = f"skops cannot save it: {error}"
        raise InputError("backbone", value, "choose another backbone") from error
    return torch.frombuffer(bytearray(_reproducible(content)), dtype=torch.uint8)


def _reproducible(archive: bytes) -> bytes:
    """Number the objects of an archive from 0, and drop its times.

    skops names objects and their files by address, so that equal classifiers would have different
    bytes.
    """
    numbers: dict[int, int] = {}
    names: dict[str, str] = {}

    def renumber(node: dict[str, Any]) -> dict[str, Any]:
        if "__id__" in node:
            address = node["__id__"]
            node["__id__"] = numbers.setdefault(address, len(numbers))
            if "file" in node:
                name = f"{node['__id__']}{Path(node['file']).suffix}"
                names[node["file"]] = name
                node["file"] = name
        return node

    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(result, "w") as new:
        schema = json.loads(old.read(SCHEMA), object_hook=renumber)
        for name in sorted(old.namelist(), key=lambda name: names.get(name, name)):
            content = json.dumps(schema).encode() if name == SCHEMA else old.read(name)
            info = zipfile.ZipInfo(names.get(name, name))  # dated 1980
            new.writestr(info, content, compress_type=zipfile.ZIP_DEFLATED)
    return result.getvalue()


def from_bytes(content: Tensor, path: str, *, trust: bool) -> dict[int, Classifier]:
    """Read what :func:`to_bytes` returned; types that are not known are an error unless trusted."""
    import skops.io

    with _damage_reported(path):
        data = content.numpy().tobytes()
        types = skops.io.get_untrusted_types(data=data)
    unknown = set(types) - known_types() if types and not trust else None
    if unknown:
        value = f"the classifier in {path} has types that could run code: {shortlist([*unknown])}"
        raise InputError("path", value, "if you trust its origin, set {trust=True}")
    with _damage_reported(path):
        classifiers = skops.io.loads(data, trusted=types)
        return {int(place): classifier for place, classifier in classifiers.items()}


@contextmanager
def _damage_reported(path: str) -> Iterator[None]:
    """Turn whatever reading a damaged archive raises into one line."""
    try:
        yield
    except Exception as error:
        value = f"the classifier in {path} is damaged"
        raise InputError("path", value, "save the model again") from error


@cache
def known_types() -> frozenset[str]:
    """The types that trees and forests consist of, which skops leaves to its users to trust."""
    import skops.io
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_selection import SelectKBest

    x, y = np.arange(8.0)[:, None], np.arange(8) % 2
    examples = [
        RandomForestClassifier(1, random_state=0).fit(x, y),
        HistGradientBoostingClassifier(max_iter=1, random_state=0).fit(x, y),
        SelectKBest(k=1).fit(x, y),
    ]
    return frozenset(skops.io.get_untrusted_types(data=skops.io.dumps(examples)))
