"""The layers FMP and PPR: their arguments, inputs, caches and what torch does with them."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP
from torch_geometric.utils import k_hop_subgraph

import fairmp
from fairmp import FMP, PPR, InputError
from fairmp.datasets import social_network
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.nn import fmp
from fairmp.nn.fmp import SOLVERS
from tests.nn.problems import random_problem

RING = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
EDGES = torch.cat([RING, RING.flip(0)], 1)
SENS = torch.tensor([0, 0, 0, 1, 1, -1])
EACH_SOLVER: list[dict[str, Any]] = [
    {"target": 0.02},
    {"solver": "papc", "lambda_f": 2.0},
    {"solver": "paper", "lambda_f": 2.0},
]


def logits(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize(
    ("classes", "groups", "most"),
    [(2, 2, 8), (3, 3, 10)],  # Newton's method is two more
)
def test_a_call_runs_through_few_files(classes: int, groups: int, most: int) -> None:
    """The method can be read where it runs."""
    problem, layer = random_problem(40, classes, groups), FMP(target=0.01)
    FMP(target=0.01)(problem.x, problem.edge_index, problem.sens)  # imports, and compiles
    seen: set[str] = set()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
    try:
        layer(problem.x, problem.edge_index, problem.sens)
        layer(problem.x, problem.edge_index, problem.sens)
    finally:
        sys.setprofile(None)
    ours = {name for name in seen if name.startswith(os.path.dirname(fairmp.__file__))}
    assert len(ours) <= most, ours


class TestArguments:
    def test_repr_lists_arguments(self) -> None:
        assert repr(PPR(2, 3)) == "PPR(K=2, lambda_s=3.0)"
        assert repr(FMP()) == (
            "FMP(K=5, lambda_s=1.0, lambda_f=1.0, solver='projection', target=0.0, temperature=1.0)"
        )
        learned = FMP(2, "learned", initial_lambda_s=3.0)
        assert repr(learned).startswith("FMP(K=2, lambda_s='learned', initial_lambda_s=3.0, ")

    def test_config_makes_an_equal_layer(self) -> None:
        for layer in (FMP(3, 2.0, target=0.1), FMP(solver="papc"), FMP(2, "learned")):
            assert FMP(**layer.config()).config() == layer.config()  # type: ignore[arg-type]
        assert "initial_lambda_s" not in FMP().config()

    def test_a_layer_has_no_parameters_and_no_state(self) -> None:
        layer = FMP()
        layer(logits(), EDGES, SENS)
        assert not list(layer.parameters())
        assert not layer.state_dict()
        assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("K", 0),
            ("K", 2.5),
            ("lambda_s", -1),
            ("lambda_s", "learn"),
            ("lambda_s", None),
            ("initial_lambda_s", 0.0),
            ("lambda_f", float("nan")),
            ("target", 1.5),
            ("target", -0.1),
            ("target", "little"),
            ("temperature", 0),
            ("solver", "magic"),
        ],
    )
    def test_wrong_arguments_are_named(self, argument: str, value: object) -> None:
        with pytest.raises(InputError) as error:
            FMP(**{argument: value})  # type: ignore[arg-type]
        assert error.value.argument == argument
        assert repr(value) in str(error.value)

    @pytest.mark.parametrize("solver", ["papc", "paper"])
    def test_a_temperature_is_refused_by_solvers_without_one(self, solver: str) -> None:
        with pytest.raises(InputError) as error:
            FMP(solver=solver, temperature=0.5)  # type: ignore[arg-type]
        assert error.value.argument == "temperature"
        layer = FMP(solver=solver)  # type: ignore[arg-type]
        for temperature in (0.5, 1.0):
            with pytest.raises(InputError) as error:
                layer(logits(), EDGES, SENS, temperature=temperature)
            assert error.value.argument == "temperature"

    @pytest.mark.parametrize("temperature", ["decision", -1.0, 0.0, float("inf")])
    def test_the_temperature_of_a_call_is_checked(self, temperature: object) -> None:
        with pytest.raises(InputError) as error:
            FMP()(logits(), EDGES, SENS, temperature=temperature)
        assert error.value.argument == "temperature"


class TestInputs:
    @pytest.mark.parametrize(
        ("x", "sens", "argument", "word"),
        [
            (torch.randn(6, 1), SENS, "x", "(6, 1)"),
            (torch.ones(6, 2, dtype=torch.long), SENS, "x", "int64"),
            (torch.tensor([[0.0, float("nan")]] * 6), SENS, "x", "node 0"),
            (torch.full((6, 2), float("inf")), SENS, "x", "node 0"),
            (logits().numpy(), SENS, "x", "ndarray"),
            (torch.randn(6, 2), SENS[:4], "sens", "(4,)"),
            (torch.randn(6, 2), torch.zeros(6, dtype=torch.long), "sens", "1 group"),
            (torch.randn(6, 2), None, "sens", "PPR"),
            (torch.randn(6, 2), ["a", "b", "a", "b", "a", "b"], "sens", "numbers"),
            (torch.randn(6, 2), group_operator(SENS[:5]), "sens", "5 nodes"),
        ],
    )
    def test_wrong_inputs_are_named(self, x: Any, sens: Any, argument: str, word: str) -> None:
        with pytest.raises(InputError) as error:
            FMP().eval()(x, EDGES, sens)
        assert error.value.argument == argument
        assert word in str(error.value)

    @pytest.mark.parametrize(
        ("edges", "options", "argument"),
        [
            (EDGES.numpy(), {}, "edge_index"),
            (normalise(EDGES, 7), {}, "edge_index"),
            (normalise(EDGES, 6), {"edge_weight": torch.ones(12)}, "edge_weight"),
        ],
    )
    def test_wrong_graphs_are_named(
        self, edges: Any, options: dict[str, Tensor], argument: str
    ) -> None:
        with pytest.raises(InputError) as error:
            PPR()(logits(), edges, **options)
        assert error.value.argument == argument

    def test_a_group_operator_has_its_own_population(self) -> None:
        with pytest.raises(InputError) as error:
            FMP()(logits(), EDGES, group_operator(SENS), torch.ones(6, dtype=torch.bool))
        assert error.value.argument == "population"

    def test_large_finite_logits_are_accepted(self) -> None:
        x = torch.full((6, 2), 1e38)  # their sum is not finite
        assert FMP()(x, EDGES, SENS).isfinite().all()

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_edge_index_sparse_tensor_and_adjacency_agree(self, solver: str) -> None:
        x, layer = logits(), FMP(3, 2.0, solver=solver)
        expected = layer(x, EDGES, SENS)
        matrix = torch.sparse_coo_tensor(EDGES, torch.ones(12, dtype=x.dtype), (6, 6)).coalesce()
        for graph in (matrix, matrix.to_sparse_csr(), normalise(EDGES, 6, dtype=x.dtype)):
            torch.testing.assert_close(layer(x, graph, SENS), expected)
        weighted = layer(x, EDGES, SENS, edge_weight=torch.ones(12, dtype=x.dtype))
        torch.testing.assert_close(weighted, expected)

    def test_edge_weights_are_those_of_appnp(self) -> None:
        x, weight = logits(), torch.rand(6, dtype=torch.float64).repeat(2) + 0.1
        expected = APPNP(4, alpha=0.5)(x, EDGES, weight)
        torch.testing.assert_close(PPR(4, 1.0)(x, EDGES, edge_weight=weight), expected)

    def test_a_graph_of_one_direction_is_used_as_given_with_a_warning(self) -> None:
        x, edge_index = logits(), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        with pytest.warns(UserWarning, match="to_undirected"):
            f = PPR(2)(x, edge_index)
        torch.testing.assert_close(f, APPNP(2, 0.5)(x, edge_index))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            PPR(2)(x, torch.cat([edge_index, edge_index.flip(0)], 1))
            PPR(2)(x, edge_index[:, :0])

    def test_the_gap_is_that_of_the_population(self) -> None:
        x = logits()
        inside = torch.tensor([True, False, True, True, True, True])
        p = FMP(3, 2.0)(x, EDGES, SENS, inside).softmax(1)
        assert float(group_operator(SENS, inside, dtype=x.dtype).gap(p).abs().max()) < 1e-9
        assert float(group_operator(SENS, dtype=x.dtype).gap(p).abs().max()) > 1e-4

    @pytest.mark.parametrize(
        ("sens", "word"),
        [
            (torch.tensor([0]), "one group per node"),
            (torch.tensor([0, 1, 0, 1, 0, -5]), "-5"),
            (torch.tensor([0, 1, 0, 1, 0, 2]), "group 2"),
            (torch.full((6, 3), 1 / 3), "3 groups"),
        ],
    )
    def test_frozen_checks_its_groups(self, sens: Tensor, word: str) -> None:
        layer, x = FMP(2), logits()
        duals = layer.solve(x, EDGES, SENS).group_duals
        with pytest.raises(InputError) as error:
            layer.frozen(x, EDGES, sens, duals)
        assert error.value.argument == "sens"
        assert word in str(error.value)


class TestPrecision:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_single_and_double_precision_agree(self, solver: str) -> None:
        layer = FMP(3, 2.0, 0.5, solver, 0.01)
        single = layer(logits().float(), EDGES, SENS)
        assert single.dtype == torch.float32
        torch.testing.assert_close(
            single.double(), layer(logits(), EDGES, SENS), atol=1e-4, rtol=1e-4
        )

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("solver", [*SOLVERS, "plain"])
    def test_half_precision_is_computed_in_single(self, solver: str, dtype: torch.dtype) -> None:
        layer = PPR(3) if solver == "plain" else FMP(3, solver=solver)
        x = logits(torch.float32).to(dtype).requires_grad_()
        f = layer(x, EDGES, SENS)
        assert f.dtype == dtype
        torch.testing.assert_close(f, layer(x.float(), EDGES, SENS).to(dtype))
        (grad,) = torch.autograd.grad(f.float().square().sum(), x)
        assert grad.isfinite().all()


class TestCaches:
    def test_graph_and_groups_of_the_same_tensors_are_computed_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        for name in ("normalise", "group_operator"):
            function = getattr(fmp, name)
            monkeypatch.setattr(
                fmp, name, lambda *a, f=function, n=name, **k: (calls.append(n), f(*a, **k))[1]
            )
        layer, x, sens = FMP(1), logits(), SENS.clone()
        for _ in range(3):
            before = layer(x, EDGES, sens)
        assert calls == ["normalise", "group_operator"]
        sens[0] = 1
        assert not torch.equal(layer(x, EDGES, sens), before)
        assert calls == ["normalise", "group_operator", "group_operator"]

    def test_a_graph_modified_in_place_is_another_graph(self) -> None:
        x, layer, edges = logits(), PPR(2, 1.0), EDGES.clone()
        layer(x, edges)
        edges[:, 0] = torch.tensor([0, 3])
        torch.testing.assert_close(layer(x, edges), PPR(2, 1.0)(x, edges))


class TestBatches:
    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("classes", [2, 3])
    def test_a_missing_group_is_a_warning_in_training_and_an_error_in_eval_mode(
        self, solver: str, classes: int
    ) -> None:
        x = torch.randn(6, classes, dtype=torch.float64)
        layer, plain = FMP(3, 2.0, 0.5, solver), PPR(3, 2.0)(x, EDGES)
        for sens in ([0] * 6, [1] * 6, [-1] * 6):
            with pytest.warns(UserWarning, match="no node in the population"):
                f = layer.train()(x, EDGES, torch.tensor(sens))
            torch.testing.assert_close(f, plain)
            with pytest.raises(InputError) as error:
                layer.eval()(x, EDGES, torch.tensor(sens))
            assert error.value.argument == "sens"

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_groups_that_are_there_are_compared(self, solver: str) -> None:
        layer, sens = FMP(3, 2.0, 0.5, solver), torch.tensor([0, 2, 0, 2, 0, -1])
        with pytest.warns(UserWarning, match="no node in the population"):
            f = layer(logits(), EDGES, sens)
        torch.testing.assert_close(f, layer(logits(), EDGES, sens.clamp_max(1)))

    @pytest.mark.filterwarnings("ignore:.*no node in the population:UserWarning")
    @pytest.mark.parametrize("kind", ["random", "k-hop", "neighbour"])
    def test_batches_of_a_graph_train(self, kind: str) -> None:
        data = social_network(n=300, seed=0)
        network, layer = nn.Linear(data.num_features, 2), FMP(2, "learned")
        optimizer = torch.optim.Adam([*network.parameters(), *layer.parameters()])
        for batch in _batches(kind, data):
            optimizer.zero_grad()
            f = layer(network(batch.x), batch.edge_index, batch.sens)
            nn.functional.cross_entropy(f, batch.y).backward()
            optimizer.step()
        for parameter in (*network.parameters(), *layer.parameters()):
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()


def _batches(kind: str, data: Data) -> Iterator[Data]:
    """Batches of a graph as PyG's loaders make them."""
    if kind == "k-hop":
        for seeds in torch.arange(300).split(10):
            subset, edges, *_ = k_hop_subgraph(seeds, 2, data.edge_index, relabel_nodes=True)
            parts = {name: data[name][subset] for name in ("x", "y", "sens")}
            yield Data(**parts, edge_index=edges)
        return
    loader = pytest.importorskip("torch_geometric.loader")
    if kind == "neighbour":
        pytest.importorskip("pyg_lib", reason="NeighborLoader needs pyg-lib")
        yield from loader.NeighborLoader(data, [5, 5], batch_size=10)
    else:
        yield from loader.RandomNodeLoader(data, num_parts=10)


class TestLearnedSmoothing:
    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("options", EACH_SOLVER)
    @pytest.mark.parametrize("start", [1.0, 3.0])
    def test_a_layer_starts_as_one_of_fixed_strength(
        self, classes: int, options: dict[str, Any], start: float
    ) -> None:
        problem = random_problem(40, classes)
        learned = FMP(4, "learned", initial_lambda_s=start, **options)
        fixed = FMP(4, start, **options)
        f, expected = (
            layer(problem.x, problem.edge_index, problem.sens) for layer in (learned, fixed)
        )
        torch.testing.assert_close(f, expected, rtol=1e-5, atol=1e-5)
        assert learned.gamma == pytest.approx(fixed.gamma)

    def test_learned_strength_ignores_an_uninformative_graph(self) -> None:
        n = 200
        x = torch.randn(n, 2)
        y, edge_index = x.argmax(1), torch.randint(n, (2, 10 * n))
        layer = PPR(2, "learned")
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x, edge_index), y).backward()
            optimizer.step()
        assert min(layer.gamma) > 0.8

    def test_strengths_are_in_the_state_and_in_copies(self) -> None:
        layer = FMP(2, "learned", initial_lambda_s=3.0)
        assert layer.gamma == pytest.approx((0.25, 0.25))
        with torch.no_grad():
            layer.theta.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[union-attr]
        again = FMP(**layer.config())  # type: ignore[arg-type]
        again.load_state_dict(layer.state_dict())
        assert again.gamma == layer.gamma == copy.deepcopy(layer).gamma


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(3, 2), FMP(3, "learned")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x).relu(), EDGES, SENS)


class TestCompile:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_compiled_layer_gives_the_same(self, solver: str) -> None:
        layer = FMP(3, 2.0, 0.5, solver)
        compiled = torch.compile(layer, backend="aot_eager")
        weights = torch.randn(6, 2, dtype=torch.float64)
        results = []
        for run in (compiled, layer):
            x = logits().requires_grad_()
            f = run(x, EDGES, SENS)
            results.append((f, *torch.autograd.grad((f * weights).sum(), x)))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own
    def test_the_layer_is_one_graph_break_of_a_network(self) -> None:
        network, x = _Network(), torch.randn(6, 3)
        compiled = torch.compile(network, backend="aot_eager")
        torch.testing.assert_close(compiled(x), network(x))
        gradients = [
            torch.autograd.grad(run(x)[:, 0].sum(), network.first.weight)[0]
            for run in (compiled, network)
        ]
        torch.testing.assert_close(*gradients)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
            torch.compile(network, backend="aot_eager", fullgraph=True)(x)


def test_the_top_level_is_lazy_and_complete() -> None:
    assert set(fairmp.__all__) <= set(dir(fairmp))
    for name in fairmp.__all__:
        assert getattr(fairmp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fairmp.nothing


@pytest.mark.gpu
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_compiled_layer_on_cuda_gives_the_same(solver: str) -> None:
    layer = FMP(3, 2.0, 0.5, solver)
    weights = torch.randn(6, 2, device="cuda")
    results = []
    for run in (torch.compile(layer), layer):
        x = logits(torch.float32).cuda().requires_grad_()
        f = run(x, EDGES.cuda(), SENS.cuda())
        results.append(torch.autograd.grad((f * weights).sum(), x)[0])
    torch.testing.assert_close(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("options", EACH_SOLVER)
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
@pytest.mark.parametrize("softmax_only", [False, True])
def test_layers_on_cuda_equal_those_on_the_cpu(
    classes: int,
    groups: int,
    options: dict[str, Any],
    learned: bool,
    dtype: torch.dtype,
    softmax_only: bool,
) -> None:
    problem = random_problem(5000, classes, groups)
    weights = torch.randn(5000, classes, dtype=dtype)
    layer = FMP(5, "learned" if learned else 3.0, **options).to(dtype)
    layers = {"cpu": layer, "cuda": copy.deepcopy(layer).cuda()}
    inputs = {d: (problem.edge_index.to(d), problem.sens.to(d)) for d in layers}
    for _ in range(4):  # the second call makes a recording, where there is one
        results = []
        for device, module in layers.items():
            x = problem.x.to(device, dtype).requires_grad_()
            p = module(x, *inputs[device], softmax_only=softmax_only).softmax(1)
            leaves = [x, *module.parameters()]
            gradients = torch.autograd.grad((p * weights.to(device)).sum(), leaves)
            results.append([part.detach().cpu() for part in (p, *gradients)])
        tolerance = 1e-3 if dtype == torch.float32 else 1e-6
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
        with torch.no_grad():
            for module in layers.values():
                for parameter in module.parameters():
                    parameter.add_(0.1)


@pytest.mark.gpu
def test_recorded_plain_steps_equal_those_on_the_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 500, (2, 4000), generator=generator)  # one way: their gradient differs
    here, there = normalise(edges, 500), normalise(edges, 500).to("cuda")
    layer = PPR(4, 3.0)
    inputs = [torch.randn(500, 2, generator=generator) for _ in range(4)]
    leaves = [x.cuda().requires_grad_() for x in inputs]
    # The first call is run, the others are replayed; gradients are asked for out of turn.
    results = [layer(leaf, there) for leaf in leaves]
    for x, leaf, f in list(zip(inputs, leaves, results, strict=True))[::-1]:
        plain = x.clone().requires_grad_()
        expected = layer(plain, here)
        torch.testing.assert_close(f.cpu(), expected)
        (one,) = torch.autograd.grad(f.square().sum(), leaf)
        (other,) = torch.autograd.grad(expected.square().sum(), plain)
        torch.testing.assert_close(one.cpu(), other)
