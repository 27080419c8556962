from __future__ import annotations

import csv
import functools
import html
import itertools
import json
import logging
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import optuna
import pytest
import torch
from hypothesis import given
from torch_geometric.data import Data

from fairmp import FMP, FairClassifier
from fairmp.datasets import social_network
from fairmp.errors import InputError
from fairmp.nn.fmp import PPR
from fairmp.report.from_results import document_of
from fairmp.search import page as tune_page
from fairmp.search import space as tune_space
from fairmp.search import study as tune_study
from fairmp.search.space import BACKBONES, STRATEGIES, Method
from fairmp.search.study import Search, TrialResult, open_study, shown
from fairmp.search.tune import _fingerprint, _parts, choose, pareto, tune
from fairmp.training.penalties import Adversary, Regulariser

SHORT = Method(epochs=3)
SMALL = ["hidden=8", "K=1..3"]


def small(**changes: Any) -> Data:
    return social_network(**({"n": 240, "average_degree": 6} | changes))


def look(**changes: Any) -> Any:
    given: dict[str, Any] = {"method": SHORT, "space": SMALL, "goal": 0.05, "trials": 6}
    return tune(changes.pop("data", small()), **(given | changes))


def stored(place: Path, name: str = "fairmp") -> list[optuna.trial.FrozenTrial]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{place}")
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_a_search_in_postgresql_is_resumed(postgres: str) -> None:
    name = "a study in a server"
    look(storage=postgres, study_name=name, trials=3)
    tuned = look(storage=postgres, study_name=name, trials=6)
    assert [trial.number for trial in tuned.done] == list(range(6))
    with pytest.raises(InputError, match="was made with"):
        look(storage=postgres, study_name=name, trials=6, goal=0.1)


def named(trials: Any) -> list[tuple[dict[str, Any], Any]]:
    return [(trial.settings, trial.figures) for trial in trials]


def test_the_chosen_one_is_the_best_within_the_limit(tmp_path: Path) -> None:
    tuned = look(storage=str(tmp_path / "study.db"), splits=2, trials=7)
    kept = [t.user_attrs["figures"] | {"n": t.number} for t in stored(tmp_path / "study.db")]
    assert len(kept) == 7
    within = [row for row in kept if row["dp"] <= 0.05]
    assert 0 < len(within) < 7
    best = max(row["accuracy"] for row in within)
    chosen = next(row for row in kept if row["n"] == tuned.chosen.number)
    assert (chosen["accuracy"], tuned.met) == (best, True)

    # Its figures are what a classifier made by hand finds, on the validation nodes alone.
    model = tune_space.classifier(SHORT, tuned.chosen.settings)
    parts = _parts(small(), 2, 0)
    by_hand = [model.fit(part, bootstrap=0, progress=False).run_.val.accuracy for part in parts]
    assert chosen["accuracy"] == pytest.approx(sum(by_hand) / 2)
    run = tuned.checked[tuned.chosen.number][0]
    assert set(tuned.checked) == {tuned.chosen.number}
    assert run.val.accuracy == by_hand[0]
    assert tuned.model.evaluate(parts[0], bootstrap=0).accuracy == run.test.accuracy
    low, high = run.test.intervals["accuracy"]
    assert low < run.test.accuracy < high


def test_the_test_nodes_take_no_part() -> None:
    data = small()
    parts = _parts(data, 3, 0)
    for part in parts:
        assert torch.equal(part.test_mask, data.test_mask)
        seen = part.train_mask.int() + part.val_mask.int() + part.test_mask.int()
        assert int(seen.max()) == 1
        assert torch.equal(seen > 0, parts[0].train_mask | parts[0].val_mask | data.test_mask)
        assert abs(int(part.train_mask.sum()) - int(data.train_mask.sum())) <= 1
    assert len({tuple(part.val_mask.tolist()) for part in parts}) == 3

    def figures(trial_data: Data) -> list[Any]:
        # The first split is the data's own, so that other labels do not deal out other splits.
        return named(look(data=trial_data, trials=3).trials)

    other = small()
    other.y[other.test_mask] = 1 - other.y[other.test_mask]
    assert figures(other) == figures(data)


def test_a_search_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    started: list[tuple[int, int]] = []
    # More than the ten that are drawn at random.
    whole = look(trials=12)
    for trials in (3, 12):
        parts = look(
            trials=trials,
            storage=str(tmp_path / "study.db"),
            on_start=lambda done, left: started.append((done, left)),
        )
    assert started == [(0, 3), (3, 9)]
    assert named(parts.trials) == named(whole.trials)
    assert len({str(trial.settings) for trial in whole.trials}) == 12
    assert named(look(seed=1, data=small()).trials) != named(whole.trials[:6])


KILLED = """
import os, signal, sys
from fairmp.datasets import social_network
from fairmp.search import study as tune_study
from fairmp.search.tune import Method, tune
calls, train = [], tune_study.train
def dying(*arguments):
    calls.append(1)
    if len(calls) == 3:
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return train(*arguments)
tune_study.train = dying
tune(social_network(n=240, average_degree=6), method=Method(epochs=3), goal=0.05, trials=6,
     space=["hidden=8", "K=1..3"], storage=sys.argv[1])
"""


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead trial is noticed in two seconds instead of half a minute."""
    monkeypatch.setattr(tune_study, "HEARTBEAT_S", 1)
    monkeypatch.setattr(tune_study, "GRACE_S", 1)


@functools.cache
def dead(file: str) -> bytes:
    """A storage whose third trial was killed."""
    with tempfile.TemporaryDirectory() as folder:
        _die(Path(folder), file)
        return (Path(folder) / file).read_bytes()


def killed(folder: Path, file: str) -> str:
    (folder / file).write_bytes(dead(file))
    return str(folder / file)


def _die(folder: Path, file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, file],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "killed\n"), done.stderr


@pytest.mark.parametrize("file", ["study.db", "study.log"])
def test_alone_a_killed_search_goes_on_as_if_nothing_had_happened(
    file: str, tmp_path: Path
) -> None:
    tuned = look(storage=killed(tmp_path, file), exclusive=True)
    assert named(tuned.trials) == named(look().trials)


def test_a_trial_that_ends_every_process_is_given_up(tmp_path: Path) -> None:
    storage = killed(tmp_path, "study.db")
    with open_study(_search(storage)) as study:
        for _ in range(tune_study.MAX_RESTARTS):
            tune_study.restart(study)
            assert study.trials[2].state.name == "WAITING"
            assert study.ask().number == 2
    tuned = look(storage=storage, exclusive=True)
    assert [trial.failed for trial in tuned.trials] == [None] * 2 + ["ended 4 processes"] + [
        None
    ] * 3


@pytest.mark.parametrize("file", ["study.db", "study.log"])
def test_the_trial_of_a_killed_process_is_repeated(
    file: str, tmp_path: Path, quick_heartbeat: None
) -> None:
    storage = killed(tmp_path, file)
    before = trials_of(storage)
    assert [trial.state.name for trial in before] == ["COMPLETE", "COMPLETE", "RUNNING"]

    tuned = look(storage=storage)
    after = trials_of(storage)
    assert [t.state.name for t in after].count("COMPLETE") == 6
    assert not [t for t in after if t.state.name in ("RUNNING", "WAITING")]
    assert after[2].state.name == "FAIL"
    again = next(t for t in after if t.system_attrs.get("failed_trial") == 2)
    assert again.params == before[2].params
    assert len(tuned.trials) == 6
    assert [t.settings for t in tuned.trials[:2]] == [t.user_attrs["settings"] for t in before[:2]]


def trials_of(storage: str) -> list[optuna.trial.FrozenTrial]:
    with open_study(_search(storage)) as study:
        return study.trials


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_trials_of_other_machines(tmp_path: Path, quick_heartbeat: None) -> None:
    storage = str(tmp_path / "study.db")
    look(storage=storage, trials=1)

    def begin(study: optuna.Study) -> int:
        trial = study.ask()
        trial.suggest_int("K", 1, 3)
        study._storage.record_heartbeat(trial._trial_id)
        return trial.number

    with open_study(_search(storage)) as study:
        silent = begin(study)
        time.sleep(2.5)
        alive = begin(study)
        optuna.storages.fail_stale_trials(study)
        waiting = [t for t in study.trials if t.state.name == "WAITING"]
        assert [t.system_attrs["failed_trial"] for t in waiting] == [silent]
        # Silent a second time, it is not tried a third.
        assert begin(study) == waiting[0].number
        stop = threading.Event()
        heart = threading.Thread(target=_beat, args=(study, alive, stop))
        heart.start()
        try:
            time.sleep(2.5)
            optuna.storages.fail_stale_trials(study)
            assert not [t for t in study.trials if t.state.name == "WAITING"]
            assert tune_study.running(study) == 1
            tuned = look(storage=storage, trials=3)
        finally:
            stop.set()
            heart.join()
    assert (len(tuned.trials), tuned.running) == (2, 1)


def _beat(study: optuna.Study, number: int, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        study._storage.record_heartbeat(study.trials[number]._trial_id)


def _search(storage: str) -> Search:
    space = tune_space.narrowed(tune_space.default_space(SHORT, 0.05), SMALL, SHORT)
    graph = _fingerprint(_parts(small(), 1, 0)[0])
    return Search(SHORT, space, 0.05, "dp", 3, 1, 0, "cpu", storage, "fairmp", graph)


def test_two_workers_make_as_many_trials_as_asked_for(tmp_path: Path) -> None:
    seen: list[int] = []
    place = tmp_path / "a folder with {braces}" / "study.db"
    tuned = look(
        goal="front", storage=str(place), workers=2, trials=5, on_trial=lambda t: seen.append(1)
    )
    assert len(tuned.trials) == len(seen) == 5
    assert tuned.running == 0
    assert {trial.figures["accuracy"] is not None for trial in tuned.trials} == {True}
    assert len({str(trial.settings) for trial in tuned.trials}) == 5
    assert set(tuned.checked) == {trial.number for trial in tuned.front}
    # Whoever made it: the chosen one's figures are those of this process.
    run = tuned.checked[tuned.chosen.number][0]
    assert run.val.accuracy == tuned.chosen.figures["accuracy"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": 0.1}, "goal = 0.05, this run has 0.1"),
        ({"goal": "front"}, "goal = 0.05, this run has front"),
        ({"criterion": "eo"}, "criterion = dp, this run has eo"),
        ({"space": ["hidden=16", "K=1..3"]}, "space of hidden = 8, this run has 16"),
        ({"method": Method(epochs=6)}, "epochs = 3, this run has 6"),
        ({"method": Method("ppr", epochs=3)}, "backbone = fmp, this run has ppr"),
        ({"splits": 2}, "splits = 1, this run has 2"),
        ({"seed": 1}, "seed = 0, this run has 1"),
        ({"data": small(n=260)}, "nodes = 240, this run has 260"),
        ({"data": small(seed=3)}, "= "),
    ],
)
def test_another_search_is_refused(
    changes: dict[str, Any], words: str, study: Path, tmp_path: Path
) -> None:
    before = study.read_bytes()
    with pytest.raises(InputError, match=r"study: 'fairmp' in .* was made with") as refused:
        look(storage=str(study), trials=1, **changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert study.read_bytes() == before


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study") / "study.db"
    look(storage=str(place), trials=1)
    return place


def test_a_study_of_someone_else_is_refused(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'mine.db'}"
    storage = optuna.storages.RDBStorage(place)
    optuna.create_study(study_name="fairmp", storage=storage).ask()
    storage.remove_session()
    storage.engine.dispose()
    with pytest.raises(InputError, match="was not made by fairmp tune"):
        look(storage=place)
    assert len(look(storage=place, study_name="another", trials=2).trials) == 2


def test_a_journal_file_is_a_storage(tmp_path: Path) -> None:
    for trials in (1, 3):
        tuned = look(storage=str(tmp_path / "study.log"), trials=trials)
    assert [trial.number for trial in tuned.trials] == [0, 1, 2]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for name, content in (("thesis.tex", b"all my work"), ("study.db", b"no data base")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="storage: ") as error:
            look(storage=str(tmp_path / name))
        assert "\n" not in str(error.value)
        assert (tmp_path / name).read_bytes() == content


def test_where_nothing_is_within_the_limit_the_closest_is_chosen() -> None:
    tuned = look(goal=0.0, method=Method("gcn", "regulariser", epochs=3), space=["hidden=8"])
    gaps = [trial.figures["dp"] for trial in tuned.trials]
    assert not tuned.met
    assert tuned.gap(tuned.chosen) == min(gaps) > 0
    assert "None of 6 trials has ΔDP ≤ 0 points" in tune_page.not_met(tuned)
    assert {trial.settings["h"] for trial in tuned.trials} != {5.0}


def test_trials_that_fail_say_why() -> None:
    diverging = [*SMALL, "lr=1e30", "solver=projection"]
    with pytest.raises(InputError, match="none of 2 has any figures; the first failed: "):
        look(space=diverging, trials=2)
    tuned = look(space=[*SMALL, "lr=1e30,0.02"], trials=6)
    failed = [trial for trial in tuned.trials if trial.failed is not None]
    assert 0 < len(failed) < 6
    assert {trial.settings["lr"] for trial in failed} == {1e30}
    assert len(tuned.trials) == 6
    assert tuned.chosen.settings["lr"] == 0.02


def test_optuna_is_as_loud_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    level = optuna.logging.get_verbosity()
    root = logging.getLogger().level
    look(trials=2)
    assert (optuna.logging.get_verbosity(), logging.getLogger().level) == (level, root)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": 2.0}, "goal: 2.0"),
        ({"goal": "fair"}, "goal: 'fair'"),
        ({"goal": math.nan}, "goal: nan"),
        ({"criterion": "odds"}, "criterion: 'odds'"),
        ({"trials": 0}, "trials: 0"),
        ({"splits": 0}, "splits: 0"),
        ({"workers": 0}, "workers: 0"),
        ({"workers": 2}, "workers: 2 need a storage"),
        ({"seed": -1}, "seed: -1"),
        ({"timeout": 0}, "timeout: 0"),
        ({"timeout": 1e-9}, "the time was up before"),
        ({"device": "abacus"}, "device: 'abacus'"),
        ({"space": ["hidden"]}, "space: 'hidden'"),
        ({"space": ["speed=3"]}, "space: 'speed' is not searched"),
        ({"space": ["h=3"]}, "space: 'h' is not searched"),
        ({"space": ["K=1.5"]}, "space: K='1.5' is not a whole number"),
        ({"space": ["lr=fast"]}, "space: lr='fast' is not a number"),
        ({"space": ["lr=0"]}, r"space: lr=0 is outside \(0, inf\)"),
        ({"space": ["lr=nan"]}, "space: lr=nan is outside"),
        ({"space": ["target=0..2"]}, r"space: target=2 is outside \[0, 1\]"),
        ({"space": ["dropout=0.1,1"]}, r"space: dropout=1 is outside \[0, 1\)"),
        ({"space": ["lr=0.1..0.01"]}, "smaller number first"),
        ({"space": ["solver=papc..paper"]}, "give words with commas"),
        ({"space": ["solver=newton"]}, "solver='newton' is unknown"),
        ({"space": ["on=luck"]}, "on='luck' is unknown"),
        ({"method": Method("gat"), "space": ["hidden=6"]}, "4 heads of 'gat'"),
        ({"storage": "nosuch://x:secret@y/z"}, r"storage: nosuch://x:\*\*\*@y/z cannot be used"),
    ],
)
def test_wrong_input_is_told_before_anything_is_trained(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairClassifier, "fit", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(InputError, match=message) as error:
        look(**({"space": SMALL} | changes))
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "rnn"}, "backbone: 'rnn'"),
        ({"strategy": "hope"}, "strategy: 'hope'"),
        ({"epochs": 0}, "epochs: 0"),
        ({"patience": 0}, "patience: 0"),
        ({"strategy": "adversary", "epochs": 60}, "epochs: 60 end before the adversary"),
    ],
)
def test_a_wrong_method_is_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Method(**arguments)


def test_a_password_is_not_shown() -> None:
    assert shown("mysql://me:my@word@host/db") == "mysql://me:***@host/db"
    assert shown("sqlite:///a.db") == "sqlite:///a.db"
    assert shown(None) == "memory"


@pytest.mark.parametrize(("backbone", "strategy"), list(itertools.product(BACKBONES, STRATEGIES)))
def test_every_method_has_a_space_whose_settings_make_a_classifier(
    backbone: str, strategy: str
) -> None:
    method = Method(backbone, strategy, patience=7)
    space = tune_space.default_space(method, 0.02)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for first in tune_space.first_settings(space, 0.02):
        study.enqueue_trial(first)
    names = {"FMP": FMP, "PPR": PPR, "Regulariser": Regulariser, "Adversary": Adversary}
    solvers = set()
    for number in range(8):
        settings = tune_space.suggest(study.ask(), space)
        model = tune_space.classifier(method, settings)
        config = model.config()
        written = eval(tune_space.python_code(model), {"FairClassifier": FairClassifier, **names})
        assert written.config() == config
        assert config["lr"] == settings["lr"]
        assert config["strategy"]["name"] == strategy
        if backbone == "fmp":
            solvers.add(settings["solver"])
            assert ("target" in settings) == (settings["solver"] == "projection")
            assert ("lambda_f" in settings) == (settings["solver"] == "papc")
            assert config["propagation"]["K"] == settings["K"]
            if number < 2:
                assert settings["target"] == (0.0, 0.02)[number]
    assert backbone != "fmp" or solvers == {"projection", "papc"}


def _made(rows: list[tuple[float, float]]) -> list[TrialResult]:
    return [
        TrialResult(number, {}, {"accuracy": accuracy, "dp": gap}, [], 0.0)
        for number, (accuracy, gap) in enumerate(rows)
    ]


# Few values, so that ties are common.
share = st.integers(0, 6).map(lambda k: k / 6)


@given(st.lists(st.tuples(share, share), min_size=1, max_size=12), share)
def test_choosing_agrees_with_brute_force(rows: list[tuple[float, float]], limit: float) -> None:
    trials = _made(rows)
    beaten = {
        number
        for number, (accuracy, gap) in enumerate(rows)
        for other in rows
        if other != (accuracy, gap) and other[0] >= accuracy and other[1] <= gap
    }
    front = pareto(trials, "dp")
    unbeaten = [rows[n] for n in range(len(rows)) if n not in beaten]
    assert [rows[t.number] for t in front] == sorted(set(unbeaten), key=lambda row: row[1])
    assert all(trial.number == rows.index(rows[trial.number]) for trial in front)

    chosen, met = choose(trials, limit, "dp")
    within = [row for row in rows if row[1] <= limit]
    assert met == bool(within)
    if within:
        best = max(row[0] for row in within)
        assert rows[chosen.number] == (best, min(g for a, g in within if a == best))
    else:
        least = min(row[1] for row in rows)
        assert rows[chosen.number] == (max(a for a, g in rows if g == least), least)
    assert choose(trials, None, "dp")[0] in front


def test_files_can_be_read_again(tmp_path: Path) -> None:
    tuned = look(goal="front", splits=2)
    commands = {"train": "fairmp train", "panel_command": "", "command": "fairmp tune"}
    found = tune_page.write(tuned, tmp_path, small(), **commands)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"best.json", "front.csv", "trials.csv", "tradeoff.png", "tradeoff.svg"} | {
        "model",
        "report.html",
        "report.json",
    }
    assert json.loads((tmp_path / "best.json").read_text(encoding="utf-8")) == found
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in tuned.front]
    accuracies = [float(row["validation_accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies)
    assert sum(int(row["chosen"]) for row in rows) == 1
    assert all(row["test_accuracy"] for row in rows)
    model = FairClassifier.load(tmp_path / "model")
    test = model.evaluate(small(), nodes=small().test_mask, bootstrap=0)
    assert test.accuracy == found["chosen"]["model_test"]["accuracy"]
    page = html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert found["chosen"]["python"] in page
    document = document_of(tmp_path)
    assert document["metrics"][0]["after"] == found["chosen"]["model_test"]["accuracy"]
    assert document["lines"].rows == tune_page.figures_table(tuned)
    header, shown = tune_page.front_table(tuned, 2)
    assert len(shown) == min(2, len(tuned.front))
    assert len(header) == len(shown[0])
