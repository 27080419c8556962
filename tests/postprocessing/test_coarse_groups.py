"""Gaps that are closed to one node, where one node is a large share of a group."""

from __future__ import annotations

import numpy as np
import pytest

from fairmp import debias


@pytest.mark.parametrize("criterion", ["equalized_odds", "equal_opportunity"])
def test_gap_left_by_few_labels_is_said(criterion: str) -> None:
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1, 2], 12)
    y = (rng.random(36) < 0.25 + 0.2 * group).astype(int)
    scores = np.clip(0.3 + 0.2 * y + 0.2 * group - 0.2 + rng.normal(0, 0.2, 36), 0, 1)
    result = debias(scores, group, y=y, criterion=criterion, full_output=True)
    assert result.criteria[0].decisions_after > 0.05
    assert [text for text in result.warnings if "one node of the smallest group is" in text]
    with pytest.warns(UserWarning, match=r"points, above the target of 0; one node"):
        debias(scores, group, y=y, criterion=criterion)
    many = [np.tile(each, 200) for each in (scores, group, y)]
    rested = debias(*many[:2], y=many[2], criterion=criterion, full_output=True)
    assert not [text for text in rested.warnings if "one node of the smallest" in text]
