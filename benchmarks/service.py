"""How fast one person is predicted, in process and through the example service.

    python -m benchmarks.service [--people 12000] [--large 1000000] [--seconds 60]

A default model is trained on 12,000 people with text, numbers and 20 neighbours each. Measured are

- ``predict_new`` of one person with 20 edges, who is new each time;
- the same through ``examples/service``, a process of its own, over one connection;
- 200 requests per second for a minute, sent on time whether or not earlier ones were answered, to
  a service of two processes;
- 1,000 malformed requests, none of which may get anything but a 4xx;
- the first two on a graph of a million people, to whom the models of the 12,000 are carried over.
"""

from __future__ import annotations

import argparse
import copy
import http.client
import json
import os
import platform
import queue
import random
import socket
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import provenance
from fairmp import FairClassifier
from fairmp.datasets import from_tables
from fairmp.nn.models import Network
from fairmp.training.blend import Blend, Member
from fairmp.training.estimators import Estimator
from fairmp.training.graph_features import GraphInputs, fingerprint
from fairmp.training.nodes import graph_of

APP = Path(__file__).parents[1] / "examples" / "service" / "app.py"
NAMES: dict[str, Any] = {"id": "person", "label": "hired", "sensitive": "region"}
EDGES_OF_ONE = 20
JSON = {"content-type": "application/json"}

Answer = tuple[int, Any]


def tables(n: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """People of three regions who know people like them, and are hired for no simple reason."""
    rng = np.random.default_rng(seed)
    region = rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    skill = rng.normal(size=n) + 0.4 * (region == "north")
    people = pd.DataFrame({"person": [f"p{k:07}" for k in range(n)], "region": region})
    people["years"] = np.round(5 + 2 * skill + rng.normal(size=n), 1)
    people["age"] = rng.integers(18, 70, n)
    people["income"] = np.round(30_000 + 8_000 * skill + 9_000 * rng.normal(size=n))
    people["degree"] = rng.choice(["no", "first", "second"], n)
    people["town"] = rng.choice([f"t{k}" for k in range(15)], n)
    people["married"] = rng.random(n) < 0.5
    # Interactions, which linear models cannot learn.
    score = np.where(people["age"] < 40, skill, -0.8 * skill)
    score += 0.8 * (people["degree"] == "second") * people["married"]
    people["hired"] = np.where(score + 0.5 * rng.normal(size=n) > 0.3, "yes", "no")
    order = np.lexsort([score + rng.normal(size=n), region])
    place = np.argsort(order)
    near = order[np.clip(place[:, None] + rng.integers(-20, 21, (n, 10)), 0, n - 1)]
    pairs = np.column_stack([np.repeat(np.arange(n), 10), near.reshape(-1)])
    return people, pd.DataFrame(people["person"].to_numpy()[pairs], columns=["source", "target"])


def one_person(people: pd.DataFrame, rng: np.random.Generator, number: int) -> dict[str, Any]:
    """A request: someone who is new, and 20 edges."""
    row = people.iloc[int(rng.integers(len(people)))].drop("hired")
    person = {name: getattr(value, "item", lambda v=value: v)() for name, value in row.items()}
    person["person"] = f"new{number}"
    known = people["person"].to_numpy()[rng.choice(len(people), EDGES_OF_ONE, replace=False)]
    edges = [{"source": person["person"], "target": str(id)} for id in known]
    return {"people": [person], "edges": edges}


@contextmanager
def served(model: Path, workers: int = 1) -> Iterator[int]:
    """Start the example as a process of its own; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(APP), str(model), "--port", str(port)]
    words += ["--workers", str(workers)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            for _ in range(3000):
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"the service stopped: {log.read()[-2000:]}")
                try:
                    with connect(port) as connection:
                        request(connection, "GET", "/health")
                    break
                except OSError:
                    time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def connect(port: int) -> closing[http.client.HTTPConnection]:
    """A connection that is kept open between requests, and closed after them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return closing(connection)


def request(
    connection: http.client.HTTPConnection, method: str, path: str, content: Any = None
) -> Answer:
    """Send a request, JSON unless it is bytes; return the status and the answer."""
    body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
    connection.request(method, path, body, JSON)
    response = connection.getresponse()
    text = response.read().decode()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text


def malformed(valid: dict[str, Any], rng: random.Random) -> tuple[str, Any]:
    """A path and a request that has one thing wrong."""
    broken = json.loads(json.dumps(valid))
    person, edges = broken["people"][0], broken["edges"]
    column = rng.choice([name for name in person if name != "person"])
    number = next(name for name, value in person.items() if type(value) in (int, float))
    junk = rng.choice([[], {}, [1], {"a": 1}, [[]], [None]])
    text = "".join(rng.choices(string.printable, k=rng.randint(1, 30)))
    raw = json.dumps(valid).encode()

    def cut() -> bytes:
        return raw[: rng.randrange(1, len(raw))]

    def noise() -> bytes:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 200)))

    cases: list[Any] = [
        cut,
        noise,
        lambda: b"",
        lambda: rng.choice([None, 7, "people", [], True]),
        lambda: {"edges": edges},
        lambda: {**broken, "people": []},
        lambda: {**broken, "people": rng.choice([person, "p", 1, None, [1], [[]], [None]])},
        lambda: {**broken, text: 1},
        lambda: {**broken, "people": [{k: v for k, v in person.items() if k != column}]},
        lambda: {**broken, "people": [{k: v for k, v in person.items() if k != "person"}]},
        lambda: {**broken, "people": [{**person, column: junk}]},
        lambda: {**broken, "people": [{**person, number: "z" + text}]},
        lambda: {**broken, "people": [{**person, number: 10 ** rng.randint(31, 400)}]},
        lambda: {**broken, "people": [{**person, column: "x" * 2000}]},
        lambda: {**broken, "people": [person, person]},
        lambda: {**broken, "people": [{**person, "person": edges[0]["target"]}]},
        lambda: {**broken, "people": [{**person, "person": rng.choice([None, "", " ", 1.5])}]},
        lambda: {**broken, "people": [person] * 1001},
        lambda: {**broken, "edges": [{**edges[0], "target": "nobody" + text}]},
        lambda: {**broken, "edges": [{"source": person["person"]}]},
        lambda: {**broken, "edges": [{**edges[0], "target": rng.choice([None, [], 1.5, True])}]},
        lambda: {**broken, "edges": rng.choice([{}, "ab", 3, [1], [[1, 2]], [None]])},
        lambda: {**broken, "people": [{**person, "pad": "y" * 999}] * 1000, "edges": edges * 300},
    ]
    path = rng.choice(["/predict"] * 9 + ["/explain", "/nowhere"])
    return path, rng.choice(cases)()


def send_malformed(port: int, valid: dict[str, Any], count: int, seed: int = 0) -> Counter[int]:
    """Send malformed requests; return how often each status came back."""
    rng, statuses = random.Random(seed), Counter[int]()
    for _ in range(count):
        path, content = malformed(valid, rng)
        with connect(port) as connection:
            status, answer = request(connection, "POST", path, content)
        statuses[status] += 1
        if not 400 <= status < 500:
            raise AssertionError(f"{status} for {path} {str(content)[:300]!r}: {answer!r}")
    return statuses


def load(port: int, requests: list[dict[str, Any]], per_second: float) -> dict[str, Any]:
    """Send requests on time, over a few connections; latencies count from when one was due."""
    due: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
    latencies: list[float] = []
    statuses: Counter[int | str] = Counter()
    lock = threading.Lock()

    def client() -> None:
        with connect(port) as connection:
            while True:
                when, content = due.get()
                if not content:
                    return
                try:
                    status: int | str = request(connection, "POST", "/predict", content)[0]
                except (OSError, http.client.HTTPException) as error:
                    status = type(error).__name__
                    connection.close()  # the next request opens it again
                with lock:
                    statuses[status] += 1
                    latencies.append(time.perf_counter() - when)

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for k, content in enumerate(requests):
        when = start + k / per_second
        time.sleep(max(0.0, when - time.perf_counter()))
        due.put((when, content))
    for _ in threads:
        due.put((0.0, {}))
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    return {
        "requests": len(requests),
        "seconds": round(seconds, 1),
        "per_second": round(len(requests) / seconds, 1),
        "statuses": {str(status): count for status, count in statuses.items()},
        **milliseconds(latencies),
    }


def milliseconds(seconds: list[float]) -> dict[str, float]:
    low, middle, high = np.quantile(1000 * np.array(seconds), [0.05, 0.5, 0.99])
    return {"p5_ms": round(low, 2), "median_ms": round(middle, 2), "p99_ms": round(high, 2)}


def in_process(model: FairClassifier, requests: list[dict[str, Any]]) -> dict[str, float]:
    """Latency and processor time of ``predict_new``."""
    model.predict_new(**requests[0])
    latencies, before = [], time.process_time()
    for content in requests:
        start = time.perf_counter()
        model.predict_new(**content)
        latencies.append(time.perf_counter() - start)
    processor = 1000 * (time.process_time() - before) / len(requests)
    return {**milliseconds(latencies), "processor_ms": round(processor, 2)}


def through_service(port: int, requests: list[dict[str, Any]]) -> dict[str, float]:
    """Latency over one connection."""
    latencies = []
    with connect(port) as connection:
        for content in requests:
            start = time.perf_counter()
            status, answer = request(connection, "POST", "/predict", content)
            latencies.append(time.perf_counter() - start)
            assert status == 200, answer
    return milliseconds(latencies[1:])


def carried_over(model: FairClassifier, n: int) -> tuple[FairClassifier, pd.DataFrame]:
    """The models of one graph on a larger one, as if they had been trained there."""
    people, edges = tables(n, seed=1)
    encoding = model.encoding_
    assert encoding is not None
    graph = from_tables(people, edges, encoding=encoding)
    blend = model.network_.transform
    assert isinstance(blend, Blend)
    known = blend.inputs.labels.numel()
    rng = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(n, generator=rng) < 0.5, graph.y, -1)
    folds = torch.where(labels >= 0, torch.randint(5, (n,), generator=rng), -1)
    edges_of = fingerprint(graph_of(graph))
    inputs = GraphInputs(labels, edges_of, blend.inputs.num_classes, folds)
    parts = zip(blend.names, blend.views, blend.members, blend.folds, strict=True)
    members = [
        Member(name, view, _widened(part, n - known) if view == "edges" else part, fold)
        for name, view, part, fold in parts
    ]
    network = Network(Blend(inputs, members, blend.weights.tolist()), model.network_.propagation)
    network.calibration = model.network_.calibration
    larger = FairClassifier(model.propagation)
    larger.adopt(replace(model.fitted_, network=network.eval()))
    larger.encoding_, larger._graph = encoding, graph
    larger._transform_logits = torch.randn(n, 2, generator=rng)
    return larger, people


def _widened(member: Any, columns: int) -> Estimator:
    """A logistic regression on edges, with coefficients of 0 for further people."""
    member = copy.deepcopy(member)
    weights = member.classifier.coef_
    member.classifier.coef_ = np.hstack([np.zeros((len(weights), columns)), weights])
    member.classifier.n_features_in_ += columns
    return member


def members_of(model: FairClassifier) -> dict[str, int]:
    blend = model.network_.transform
    assert isinstance(blend, Blend)
    return dict(Counter(f"{n} on {v}" for n, v in zip(blend.names, blend.views, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=12_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60, help="of load")
    parser.add_argument("--rate", type=float, default=200, help="requests per second")
    parser.add_argument("--workers", type=int, default=2, help="processes of the service, of load")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/service.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(2)
    record: dict[str, Any] = provenance("serving")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        people, edges = tables(arguments.people)
        data = from_tables(people, edges, **NAMES)
        model = FairClassifier().fit(data, bootstrap=0, progress=False)
        model.save(folder / "small", graph=True)
        requests = [one_person(people, rng, k) for k in range(400)]
        small: dict[str, Any] = {"people": len(people), "members": members_of(model)}
        small["in_process"] = in_process(FairClassifier.load(folder / "small"), requests)
        with served(folder / "small") as port:
            small["service"] = through_service(port, requests)
            statuses = send_malformed(port, requests[0], 1000)
            record["malformed"] = {str(status): count for status, count in statuses.items()}
        with served(folder / "small", arguments.workers) as port:
            through_service(port, requests[:50])  # each process has answered before it counts
            total = round(arguments.rate * arguments.seconds)
            record["load"] = load(port, (requests * (total // 400 + 1))[:total], arguments.rate)
            record["load"]["workers"] = arguments.workers
        record["small"] = small
        print(json.dumps(record, indent=2), flush=True)
        larger, people = carried_over(model, arguments.large)
        larger.save(folder / "large", graph=True)
        requests = [one_person(people, rng, k) for k in range(400)]
        large: dict[str, Any] = {"people": len(people)}
        start = time.perf_counter()
        loaded = FairClassifier.load(folder / "large")
        loaded.new_people()
        large["ready_after_s"] = round(time.perf_counter() - start, 1)
        large["in_process"] = in_process(loaded, requests)
        del loaded, larger
        with served(folder / "large") as port:
            large["service"] = through_service(port, requests)
        record["large"] = large
    for way in ("in_process", "service"):
        ratio = large[way]["median_ms"] / small[way]["median_ms"]
        record[f"large_to_small_{way}"] = round(ratio, 2)
    record |= {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0]}
    record["python"] = platform.python_version()
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
