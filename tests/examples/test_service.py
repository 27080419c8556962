"""``examples/service`` as a process of its own, with a real client."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.service import (
    connect,
    load,
    one_person,
    request,
    send_malformed,
    served,
    tables,
)
from fairmp import FMP, FairClassifier
from fairmp.datasets import from_tables
from fairmp.report.evaluations import from_evaluations


@dataclass(frozen=True)
class Service:
    """A running service, and the model it serves."""

    port: int
    model: FairClassifier
    requests: list[dict[str, Any]]
    folder: Path

    def post(self, path: str, content: Any) -> tuple[int, Any]:
        with connect(self.port) as connection:
            return request(connection, "POST", path, content)

    def get(self, path: str) -> tuple[int, Any]:
        with connect(self.port) as connection:
            return request(connection, "GET", path)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("served")
    people, edges = tables(300)
    data = from_tables(people, edges, id="person", label="hired", sensitive="region")
    model = FairClassifier(FMP(2, 1.0), backbone="logistic", graph_features=True)
    model.fit(data, bootstrap=0)
    model.save(folder / "model", graph=True)
    report = from_evaluations(model.run_.test) | {"title": "people", "assumptions": ["few people"]}
    (folder / "report.json").write_text(json.dumps(report))
    rng = np.random.default_rng(0)
    requests = [one_person(people, rng, k) for k in range(50)]
    with served(folder) as port:
        yield Service(port, model, requests, folder)


def test_several_processes_answer_as_one(service: Service) -> None:
    content = service.requests[0]
    expected = service.post("/predict", content)
    with served(service.folder, workers=2) as port:
        several = replace(service, port=port)
        assert [several.post("/predict", content) for _ in range(8)] == [expected] * 8


def test_health_and_card(service: Service) -> None:
    status, answer = service.get("/health")
    assert (status, answer) == (200, {"status": "ok", "known_people": 300})
    status, card = service.get("/card")
    assert status == 200
    assert card.startswith("# Model card")
    assert "## Limits" in card


def test_one_person_is_predicted_as_in_python(service: Service) -> None:
    content = service.requests[0]
    status, answer = service.post("/predict", content)
    assert status == 200
    [row], [expected] = answer["predictions"], service.model.predict_new(**content)
    assert list(row) == ["person", "p(no)", "p(yes)", "decision"]
    assert row["decision"] == expected["decision"]
    assert row["p(yes)"] == pytest.approx(expected["p(yes)"], abs=1e-6)


def test_many_people_are_predicted_as_in_python(service: Service) -> None:
    content = {
        name: [row for each in service.requests for row in each[name]]
        for name in ("people", "edges")
    }
    status, answer = service.post("/predict", content)
    assert status == 200
    expected = service.model.predict_new(**content)
    assert [row["person"] for row in answer["predictions"]] == [f"new{k}" for k in range(50)]
    for row, person in zip(answer["predictions"], expected, strict=True):
        assert row["p(yes)"] == pytest.approx(person["p(yes)"], abs=1e-6)


def test_explanation_adds_up(service: Service) -> None:
    content = service.requests[1]
    [person] = content["people"]
    status, answer = service.post("/explain", {"person": person, "edges": content["edges"]})
    assert status == 200
    parts = answer["own"] + answer["neighbours"] + answer["correction"]
    assert parts == pytest.approx(answer["logit"], abs=1e-6)
    assert len(answer["decisions"]) == 3


def test_errors_are_those_of_the_library(service: Service) -> None:
    content = json.loads(json.dumps(service.requests[2]))
    content["people"][0]["region"] = "east"
    status, answer = service.post("/predict", content)
    assert status == 422
    assert answer["error"].startswith("sensitive: group 'east' was not seen in training")
    del content["people"][0]["age"]
    status, answer = service.post("/predict", content)
    assert status == 422
    assert "there is no column 'age'" in answer["error"]
    assert service.post("/nowhere", {})[0] == 404
    assert service.get("/predict")[0] == 405


def test_large_requests_are_refused(service: Service) -> None:
    assert service.post("/predict", b" " * (2**20 + 1))[0] == 413
    with connect(service.port) as connection:
        connection.request("POST", "/predict", iter([b"{}"]), encode_chunked=True)
        with connection.getresponse() as response:
            assert response.status == 411


def test_malformed_requests_get_a_4xx_each(service: Service) -> None:
    statuses = send_malformed(service.port, service.requests[0], 300)
    assert sum(statuses.values()) == 300
    assert service.post("/predict", service.requests[0])[0] == 200


def test_load_is_answered_without_an_error(service: Service) -> None:
    answered = load(service.port, service.requests * 4, per_second=100)
    assert answered["statuses"] == {"200": 200}


def test_service_listens_on_this_machine_only(service: Service) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in addresses - {"127.0.0.1", "::1"}:
        with pytest.raises((ConnectionRefusedError, TimeoutError)):
            socket.create_connection((address, service.port), timeout=2).close()
