from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import APPNP
from torch_geometric.utils import k_hop_subgraph

import fairmp
from fairmp import FMP, PPR, InputError
from fairmp.datasets import social_network
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.nn import fmp
from fairmp.nn import solvers as functional
from fairmp.nn.fmp import SOLVERS

RING = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
EDGES = torch.cat([RING, RING.flip(0)], 1)
SENS = torch.tensor([0, 0, 0, 1, 1, -1])


def logits(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_it_says_what_it_is() -> None:
    assert repr(PPR(2, 3)) == "PPR(K=2, lambda_s=3.0)"
    assert repr(FMP()) == (
        "FMP(K=5, lambda_s=1.0, lambda_f=1.0, solver='projection', target=0.0, temperature=1.0)"
    )
    for layer in (FMP(3, 2.0, target=0.1), FMP(solver="papc")):
        assert FMP(**layer.config()).config() == layer.config()  # type: ignore[arg-type]


def test_it_has_no_parameters_and_no_state() -> None:
    layer = FMP()
    layer(logits(), EDGES, SENS)
    assert not list(layer.parameters())
    assert not layer.state_dict()
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_form_of_a_graph_gives_the_same(solver: str) -> None:
    x, layer = logits(), FMP(3, 2.0, solver=solver)
    expected = layer(x, EDGES, SENS)
    matrix = torch.sparse_coo_tensor(EDGES, torch.ones(12, dtype=x.dtype), (6, 6)).coalesce()
    for graph in (matrix, matrix.to_sparse_csr(), normalise(EDGES, 6, dtype=x.dtype)):
        torch.testing.assert_close(layer(x, graph, SENS), expected)
    weighted = layer(x, EDGES, SENS, edge_weight=torch.ones(12, dtype=x.dtype))
    torch.testing.assert_close(weighted, expected)


def test_weights_count() -> None:
    x, weight = logits(), torch.rand(6, dtype=torch.float64).repeat(2) + 0.1
    expected = APPNP(4, alpha=0.5)(x, EDGES, weight)
    torch.testing.assert_close(PPR(4, 1.0)(x, EDGES, edge_weight=weight), expected)


def test_a_graph_changed_in_place_is_another_graph() -> None:
    x, layer, edges = logits(), PPR(2, 1.0), EDGES.clone()
    layer(x, edges)
    edges[:, 0] = torch.tensor([0, 3])
    torch.testing.assert_close(layer(x, edges), PPR(2, 1.0)(x, edges))


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_and_double_precision_agree(solver: str) -> None:
    layer = FMP(3, 2.0, 0.5, solver, 0.01)
    single = layer(logits(torch.float64).float(), EDGES, SENS)
    assert single.dtype == torch.float32
    double = layer(logits(torch.float64), EDGES, SENS)
    torch.testing.assert_close(single.double(), double, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_compiled_it_gives_the_same(solver: str) -> None:
    layer = FMP(3, 2.0, 0.5, solver)
    compiled = torch.compile(layer, backend="aot_eager")
    x, y = logits().requires_grad_(), logits().requires_grad_()
    torch.testing.assert_close(compiled(x, EDGES, SENS), layer(y, EDGES, SENS))
    weights = torch.randn(6, 2, dtype=torch.float64)
    (compiled(x, EDGES, SENS) * weights).sum().backward()
    (layer(y, EDGES, SENS) * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("solver", SOLVERS)
def test_frozen_duals_give_back_the_solution(solver: str) -> None:
    x, layer = logits(), FMP(4, 2.0, 0.5, solver)
    solution = layer.solve(x, EDGES, SENS)
    again = layer.frozen(x, EDGES, SENS, solution.group_duals)
    torch.testing.assert_close(again, solution.f)
    with pytest.raises(InputError, match="sens: group 2"):
        layer.frozen(x, EDGES, SENS + 1, solution.group_duals)


def test_a_population_is_what_is_measured() -> None:
    x = logits()
    inside = torch.tensor([True, False, True, True, True, True])
    f = FMP(3, 2.0)(x, EDGES, SENS, inside)
    assert float(group_operator(SENS, inside, dtype=x.dtype).gap(f.softmax(1)).abs().max()) < 1e-9
    assert float(group_operator(SENS, dtype=x.dtype).gap(f.softmax(1)).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("K", 0),
        ("K", 2.5),
        ("lambda_s", -1),
        ("lambda_f", float("nan")),
        ("target", 1.5),
        ("target", -0.1),
        ("target", "little"),
        ("temperature", 0),
        ("solver", "magic"),
    ],
)
def test_wrong_arguments_are_named(argument: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        FMP(**{argument: value})  # type: ignore[arg-type]
    assert error.value.argument == argument
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("x", "sens", "argument", "word"),
    [
        (torch.randn(6, 1), SENS, "x", "(6, 1)"),
        (torch.ones(6, 2, dtype=torch.long), SENS, "x", "int64"),
        (torch.tensor([[0.0, float("nan")]] * 6), SENS, "x", "node 0"),
        (torch.randn(6, 2), SENS[:4], "sens", "(4,)"),
        (torch.randn(6, 2), torch.zeros(6, dtype=torch.long), "sens", "1 group"),
        (torch.randn(6, 2), None, "sens", "PPR"),
    ],
)
def test_wrong_inputs_are_named(
    x: torch.Tensor, sens: torch.Tensor | None, argument: str, word: str
) -> None:
    with pytest.raises(InputError) as error:
        FMP().eval()(x, EDGES, sens)
    assert error.value.argument == argument
    assert word in str(error.value)


def test_an_adjacency_of_another_graph_is_named() -> None:
    with pytest.raises(InputError, match="adjacency of 6 nodes for 4 rows"):
        PPR()(torch.randn(4, 2), normalise(EDGES, 6))


def test_the_top_level_is_lazy_and_complete() -> None:
    assert set(fairmp.__all__) <= set(dir(fairmp))
    for name in fairmp.__all__:
        assert getattr(fairmp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fairmp.nothing


@pytest.mark.gpu
@pytest.mark.parametrize("solver", SOLVERS)
def test_compiled_on_cuda_it_gives_the_same(solver: str) -> None:
    layer = FMP(3, 2.0, 0.5, solver)
    x = logits(torch.float32).cuda().requires_grad_()
    y = x.detach().clone().requires_grad_()
    weights = torch.randn(6, 2, device="cuda")
    for leaf, run in ((x, torch.compile(layer)), (y, layer)):
        (run(leaf, EDGES.cuda(), SENS.cuda()) * weights).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
def test_cuda_gives_the_same(classes: int, groups: int, solver: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 5000
    half = torch.randint(0, n, (2, 40_000), generator=generator)
    edges = torch.cat([half, half.flip(0)], 1)
    sens = torch.randint(-1, groups, (n,), generator=generator)
    x = torch.randn(n, classes, generator=generator, dtype=dtype)
    x[:, 1] += sens.to(dtype)
    layer, weights = FMP(5, 3.0, 0.5, solver, 0.01), torch.randn(n, classes, dtype=dtype)
    devices = {name: (edges.to(name), sens.to(name)) for name in ("cpu", "cuda")}
    for _ in range(3):  # the third call replays a recording, where there is one
        results = []
        for device, (there, of_each) in devices.items():
            leaf = x.to(device).detach().requires_grad_()
            f = layer(leaf, there, of_each)
            (f * weights.to(device)).sum().backward()
            assert leaf.grad is not None
            results.append((f.detach().cpu(), leaf.grad.cpu()))
        tolerance = 1e-3 if dtype == torch.float32 else 1e-8
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
def test_plain_steps_recorded_on_cuda_are_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 500, (2, 4000), generator=generator)  # one way: their gradient differs
    here, there = normalise(edges, 500), normalise(edges, 500).to("cuda")
    layer = PPR(4, 3.0)
    xs = [torch.randn(500, 2, generator=generator) for _ in range(4)]
    leaves = [x.cuda().requires_grad_() for x in xs]
    # The first call is run, the others are replayed; gradients are asked for out of turn.
    results = [layer(leaf, there) for leaf in leaves]
    for x, leaf, f in list(zip(xs, leaves, results, strict=True))[::-1]:
        plain = x.clone().requires_grad_()
        wanted = layer(plain, here)
        torch.testing.assert_close(f.cpu(), wanted)
        wanted.square().sum().backward()
        f.square().sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad.cpu(), plain.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", [*SOLVERS, "plain"])
def test_half_precision_is_computed_in_single(solver: str, dtype: torch.dtype) -> None:
    layer = PPR(3) if solver == "plain" else FMP(3, solver=solver)
    x = logits(torch.float32).to(dtype).requires_grad_()
    found = layer(x, EDGES, SENS)
    assert found.dtype == dtype
    torch.testing.assert_close(found, layer(x.float(), EDGES, SENS).to(dtype))
    found.float().square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert torch.equal(
        normalise(EDGES, 6, dtype=dtype) @ x, (normalise(EDGES, 6) @ x.float()).to(dtype)
    )


@pytest.mark.parametrize("solver", ["papc", "paper"])
def test_a_temperature_without_meaning_is_refused(solver: str) -> None:
    with pytest.raises(InputError) as error:
        FMP(solver=solver, temperature=0.5)  # type: ignore[arg-type]
    assert error.value.argument == "temperature"
    layer = FMP(solver=solver)  # type: ignore[arg-type]
    for temperature in (0.5, 1.0):
        with pytest.raises(InputError) as error:
            layer(logits(), EDGES, SENS, temperature=temperature)
        assert error.value.argument == "temperature"


@pytest.mark.parametrize("temperature", ["decision", -1.0, 0.0, float("inf")])
def test_another_temperature_is_checked(temperature: object) -> None:
    with pytest.raises(InputError, match="temperature"):
        FMP()(logits(), EDGES, SENS, temperature=temperature)


@pytest.mark.parametrize(
    ("sens", "words"),
    [
        (torch.tensor([0]), "one group per node"),
        (torch.tensor([0, 1, 0, 1, 0, -5]), "-5 is not a group"),
        (torch.full((6, 3), 1 / 3), "3 groups"),
    ],
)
def test_frozen_checks_its_groups(sens: torch.Tensor, words: str) -> None:
    layer, x = FMP(2), logits()
    duals = layer.solve(x, EDGES, SENS).group_duals
    with pytest.raises(InputError, match=words):
        layer.frozen(x, EDGES, sens, duals)


def test_arrays_are_named() -> None:
    with pytest.raises(InputError, match="x: ndarray is no tensor"):
        FMP()(logits().numpy(), EDGES, SENS)
    with pytest.raises(InputError, match="edge_index: ndarray is no tensor"):
        PPR()(logits(), EDGES.numpy())
    with pytest.raises(InputError, match="sens: no numbers; give groups as 0"):
        FMP()(logits(), EDGES, ["a", "b", "a", "b", "a", "b"])


def test_without_smoothing_the_result_is_its_own() -> None:
    x = logits()
    found = PPR(lambda_s=0.0)(x, EDGES)
    found += 1
    torch.testing.assert_close(found, x + 1)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_an_input_changed_in_place_before_its_gradient_is_noticed(
    solver: str, classes: int
) -> None:
    x = torch.randn(6, classes, requires_grad=True)
    features = 2 * x  # not a leaf: torch allows an in-place change
    loss = FMP(2, 0.0, solver=solver)(features, EDGES, SENS).square().sum()
    features.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_strengths_per_step_are_learned() -> None:
    graph = normalise(EDGES, 6, dtype=torch.float64)
    groups = group_operator(SENS, dtype=torch.float64)
    strength = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def run(solver: str, lambda_s: object) -> torch.Tensor:
        options = {"K": 3, "lambda_s": lambda_s}
        if solver == "propagate":
            return functional.propagate(logits(), graph, **options)  # type: ignore[arg-type]
        if solver != "projection":
            options["lambda_f"] = 0.5
        return getattr(functional, solver)(logits(), graph, groups, **options).f

    for solver in ("propagate", *SOLVERS):
        assert torch.autograd.gradcheck(lambda s, solver=solver: run(solver, s), (strength,))
        torch.testing.assert_close(run(solver, strength), run(solver, [0.5, 1.0, 2.0]))
        torch.testing.assert_close(run(solver, torch.tensor(2.0).double()), run(solver, 2.0))


def test_a_call_runs_through_few_files() -> None:
    """The method can be read where it runs."""
    x = logits(torch.float32)
    FMP()(x, EDGES, SENS)  # imports, and compiles
    seen: set[str] = set()
    root = os.path.dirname(fairmp.__file__)
    layer = FMP()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
    try:
        layer(x, EDGES, SENS)
        layer(x, EDGES, SENS)
    finally:
        sys.setprofile(None)
    ours = {name for name in seen if name.startswith(root)}
    assert len(ours) <= 8, ours


def test_groups_and_graph_of_the_same_tensors_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("normalise", "group_operator"):
        function = getattr(fmp, name)
        monkeypatch.setattr(
            fmp, name, lambda *a, f=function, n=name, **k: (calls.append(n), f(*a, **k))[1]
        )
    layer, x, sens = FMP(1), logits(), SENS.clone()
    for _ in range(3):
        layer(x, EDGES, sens)
    assert calls == ["normalise", "group_operator"]
    before = layer(x, EDGES, sens)
    sens[0] = 1
    assert not torch.equal(layer(x, EDGES, sens), before)
    assert calls == ["normalise", "group_operator", "group_operator"]


def test_a_one_directional_graph_is_used_as_given_with_a_warning() -> None:
    x, edge_index = logits(), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    with pytest.warns(UserWarning, match="to_undirected"):
        found = PPR(2)(x, edge_index)
    torch.testing.assert_close(found, APPNP(2, 0.5)(x, edge_index))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPR(2)(x, torch.cat([edge_index, edge_index.flip(0)], 1))
        PPR(2)(x, torch.cat([edge_index, edge_index[:, :1].flip(0)], 1))  # directed, on purpose
        PPR(2)(x, edge_index[:, :0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_batch_without_a_group_is_an_error_at_prediction_only(solver: str, classes: int) -> None:
    x = torch.randn(6, classes, dtype=torch.float64)
    layer, plain = FMP(3, 2.0, 0.5, solver), PPR(3, 2.0)(x, EDGES)
    for sens in ([0] * 6, [1] * 6, [-1] * 6):
        with pytest.warns(UserWarning, match="no node in the population"):
            found = layer(x, EDGES, torch.tensor(sens))
        torch.testing.assert_close(found, plain)
        with pytest.raises(InputError) as error:
            layer.eval()(x, EDGES, torch.tensor(sens))
        assert error.value.argument == "sens"
        layer.train()
    # Of three groups, the two that are there are compared.
    sens = torch.tensor([0, 2, 0, 2, 0, -1])
    with pytest.warns(UserWarning, match="no node in the population"):
        found = layer(x, EDGES, sens)
    torch.testing.assert_close(found, layer(x, EDGES, sens.clamp_max(1)))


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


@pytest.mark.filterwarnings("ignore:.*no node in the population:UserWarning")
@pytest.mark.parametrize("kind", ["random", "k-hop", "neighbour"])
def test_batches_of_a_graph_train(kind: str) -> None:
    data = social_network(n=300, seed=0)
    network, layer = torch.nn.Linear(data.num_features, 2), FMP(2, "learned")
    optimizer = torch.optim.Adam([*network.parameters(), *layer.parameters()])
    for batch in _batches(kind, data):
        optimizer.zero_grad()
        f = layer(network(batch.x), batch.edge_index, batch.sens)
        torch.nn.functional.cross_entropy(f, batch.y).backward()
        optimizer.step()
    assert all(bool(p.grad.isfinite().all()) for p in (*network.parameters(), layer.theta))


class _Compiled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = torch.nn.Linear(3, 2), FMP(3, "learned")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x).relu(), EDGES, SENS)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own
def test_compiled_around_the_layer() -> None:
    """The layer is one graph break; with fullgraph=True torch refuses it."""
    network, x = _Compiled(), torch.randn(6, 3)
    compiled = torch.compile(network, backend="aot_eager")
    torch.testing.assert_close(compiled(x), network(x))
    (plain,) = torch.autograd.grad(network(x)[:, 0].sum(), [network.first.weight])
    (found,) = torch.autograd.grad(compiled(x)[:, 0].sum(), [network.first.weight])
    torch.testing.assert_close(found, plain)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        torch.compile(network, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("seed", range(3))
def test_soft_groups_in_double_precision_hold_the_target_of_single_logits(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = 10 * torch.randn(60, 3, generator=rng)
    edge_index = torch.randint(60, (2, 90), generator=rng)
    sens = (4 * torch.rand(60, 4, generator=rng, dtype=torch.float64)).softmax(1)
    f = FMP(target=0.0)(x, torch.cat([edge_index, edge_index.flip(0)], 1), sens)
    means = sens.T @ f.double().softmax(1) / sens.sum(0)[:, None]
    assert float((means.amax(0) - means.amin(0)).max()) <= 1e-4
