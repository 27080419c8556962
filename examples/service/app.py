r"""A service that predicts people who join a graph, one or many at a time.

    pip install 'fairmp[service]'
    fairmp train --nodes people.csv --edges edges.csv --id person --label hired --sensitive sex \
        --out run
    python examples/service/app.py run                 # listens on 127.0.0.1:8000

    curl -s 127.0.0.1:8000/predict -H 'content-type: application/json' -d '{
      "people": [{"person": "new-1", "sex": "f", "age": 34}],
      "edges": [{"source": "new-1", "target": "p00017"}]}'

It keeps nothing between requests, and logs paths and errors of its own, never what was sent:
neither a person's group nor an answer.
"""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fairmp import FairClassifier, InputError
from fairmp.report.from_results import card_texts

MAX_BYTES = 2**20  # of a request
MAX_PEOPLE, MAX_EDGES = 1000, 20_000
MAX_AT_ONCE = 20  # people who are predicted without leaving the loop that answers requests

Text = Annotated[StrictStr, Field(max_length=1000)]
Number = Annotated[StrictInt | StrictFloat, Field(gt=-1e30, lt=1e30)]
Row = dict[Text, StrictBool | Number | Text | None]
Edges = Annotated[list[Row], Field(max_length=MAX_EDGES)]

RESULTS = "FAIRMP_SERVICE_RESULTS"  # environment variable that tells workers what to load

log = logging.getLogger("uvicorn.error")


class People(BaseModel):
    """People, and their edges to each other and to the people of the training table."""

    model_config = ConfigDict(extra="forbid")
    people: Annotated[list[Row], Field(min_length=1, max_length=MAX_PEOPLE)]
    edges: Edges = []


class Person(BaseModel):
    """One person to explain."""

    model_config = ConfigDict(extra="forbid")
    person: Row
    edges: Edges = []


def create(model: FairClassifier, card: str | None = None) -> FastAPI:
    """Make the service of a model; ``card`` is its model card, in Markdown."""
    model.new_people()  # prepares the graph before the first request
    service = FastAPI(title="fairmp", docs_url="/docs", redoc_url=None)

    @service.get("/health")
    async def health() -> dict[str, Any]:
        """Say that the model is loaded, and how many people it knows."""
        index = model.new_people().index
        return {"status": "ok", "known_people": 0 if index is None else len(index)}

    @service.get("/card", response_class=PlainTextResponse)
    async def model_card() -> Response:
        """Return the model card."""
        if card is None:
            return _error(404, "the model has no card: serve the results of 'fairmp train'")
        return PlainTextResponse(card, media_type="text/markdown")

    @service.post("/predict")
    async def predict(request: People) -> dict[str, Any]:
        """Predict each person alone: id, probabilities and decision."""
        if len(request.people) <= MAX_AT_ONCE:
            return {"predictions": model.predict_new(request.people, request.edges)}
        rows = await run_in_threadpool(model.predict_new, request.people, request.edges)
        return {"predictions": rows}

    @service.post("/explain")
    async def explain(request: Person) -> dict[str, Any]:
        """Say what own data, neighbours and correction contribute to a person's logit."""
        return model.explain(request.person, request.edges).to_dict()

    service.add_middleware(LimitSize)
    service.exception_handler(InputError)(wrong_input)
    service.exception_handler(RequestValidationError)(wrong_request)
    service.exception_handler(Exception)(failure)
    return service


class LimitSize:
    """Middleware that refuses large bodies before they are read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        answer = refusal(Headers(scope=scope)) if scope.get("method") == "POST" else None
        await (answer or self.app)(scope, receive, send)


def refusal(headers: Headers) -> Response | None:
    """The answer to a request whose length is unknown or too large."""
    length = headers.get("content-length", "")
    if not length.isdigit():
        return _error(411, "give the length of the request")
    if int(length) > MAX_BYTES:
        return _error(413, f"a request may have {MAX_BYTES:,} bytes")
    return None


async def wrong_input(_: Request, error: InputError) -> Response:
    """Answer in the words of the library."""
    return _error(422, str(error))


async def wrong_request(_: Request, error: RequestValidationError) -> Response:
    """Name the place, without what was found there, which may be a group."""
    first = error.errors()[0]
    return _error(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


async def failure(request: Request, error: Exception) -> Response:
    """Log the kind of an error, without its text."""
    log.error("%s failed: %s", request.url.path, type(error).__name__)
    return _error(500, "the prediction failed")


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def load(results: Path) -> FastAPI:
    """Make the service of results of ``fairmp train``, or of the folder of a model."""
    warnings.simplefilter("ignore")  # one could quote what was sent
    torch.set_num_threads(1)  # a single person is too little work to share
    has_results = (results / "model").is_dir()
    model = FairClassifier.load(results / "model" if has_results else results)
    return create(model, card_texts(results)[1] if has_results else None)


def load_in_worker() -> FastAPI:
    """Make the service in one of several processes."""
    return load(Path(os.environ[RESULTS]))


def main() -> None:
    """Serve a model that ``fairmp train`` saved."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="of 'fairmp train', or the folder of a model")
    parser.add_argument("--host", default="127.0.0.1", help="by default this machine only")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1, help="processes, each with the model")
    arguments = parser.parse_args()
    address = {"host": arguments.host, "port": arguments.port}
    try:
        service = load(arguments.results)  # a model that cannot be loaded ends it here
    except InputError as error:
        parser.error(str(error))
    if arguments.workers <= 1:
        uvicorn.run(service, **address)
        return
    os.environ[RESULTS] = str(arguments.results)
    here = Path(__file__)
    uvicorn.run(
        f"{here.stem}:{load_in_worker.__name__}",
        factory=True,
        app_dir=str(here.parent),
        workers=arguments.workers,
        timeout_worker_healthcheck=300,  # a worker answers when its model is loaded
        **address,
    )


if __name__ == "__main__":
    main()
