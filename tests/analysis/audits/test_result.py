from __future__ import annotations

import json

import fairmp
import fairmp.analysis.audits.measure
import fairmp.cli.audit
from fairmp import audit
from fairmp.datasets import social_network


def test_to_dict_is_json_and_has_the_conclusions() -> None:
    result = audit(social_network(n=300, average_degree=6), steps=1)
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record["verdict"] == result.verdict()
    assert record["row"][1]["step"] == 1
    assert record["homophily"]["raw"] == result.homophily.raw


def test_audit_is_the_function_and_not_a_module() -> None:
    assert fairmp.audit is fairmp.analysis.audits.audit is audit
    assert callable(audit)
