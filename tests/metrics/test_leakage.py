import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from fairmp.metrics.leakage import group_leakage


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 2), (2, 3), (4, 3)])
def test_best_guess_equals_a_balanced_tree(groups: int, classes: int) -> None:
    rng = np.random.default_rng(groups * classes)
    sens = rng.integers(-1, groups, size=500)
    logits = rng.normal(size=(500, classes)) + 0.5 * sens[:, None] * np.arange(classes)
    leakage = group_leakage(logits, sens, groups)
    known = sens >= 0
    decided = np.eye(classes)[logits.argmax(1)]
    tree = DecisionTreeClassifier(class_weight="balanced").fit(decided[known], sens[known])
    expected = balanced_accuracy_score(sens[known], tree.predict(decided[known]))
    assert leakage.balanced_accuracy == pytest.approx(expected)
    if (groups, classes) == (2, 2):
        margin = logits[:, 1] - logits[:, 0]
        assert leakage.auc == pytest.approx(roc_auc_score(sens[known], margin[known]))
    assert np.isnan(leakage.auc) == (classes > 2)


def test_groups_of_equal_predictions_cannot_be_guessed() -> None:
    leakage = group_leakage(np.zeros((6, 2)), np.array([0, 0, 0, 1, 1, 2]), 3)
    assert leakage.balanced_accuracy == pytest.approx(1 / 3)
    assert leakage.auc == 0.5
