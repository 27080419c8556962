from __future__ import annotations

import json
import time
from dataclasses import replace

from tests.tuning.helpers import search


def test_identity_is_json_and_leaves_out_where_and_how_long() -> None:
    one = search()
    identity = one.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert identity["method"] == "fmp"
    assert identity["space of hidden"] == "8"
    same = replace(one, trials=9, storage="x.db", deadline=1.0, device="cuda", study_name="other")
    assert same.identity() == identity
    for change in ({"seed": 1}, {"limit": None}, {"criterion": "eo"}, {"splits": 2}):
        assert replace(one, **change).identity() != identity


def test_search_expires_at_its_deadline() -> None:
    assert not search().expired
    assert replace(search(), deadline=time.time() - 1).expired
    assert not replace(search(), deadline=time.time() + 60).expired
