"""What training and sharding over several processes takes: memory, bytes, time, and kills.

    python -m benchmarks.distributed memory   # 10^7 edges, 1, 2 and 4 ranks
    python -m benchmarks.distributed bytes    # sent in an epoch: formula, count, and the kernel's
    python -m benchmarks.distributed shard    # a table of 10^8 edges
    python -m benchmarks.distributed kills    # SIGKILL at ten random moments
    python -m benchmarks.distributed orders   # rows exchanged, by order, on real graphs

Each writes benchmarks/results/distributed-NAME.json. ``memory`` and ``shard`` need about 3 GB and
10 GB of disk under --scratch; ``bytes`` asks the kernel where it may make a network namespace.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import provenance

K, CLASSES, FEATURES, HIDDEN = 5, 2, 32, 64
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    import torch

    return {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": [round(x, 1) for x in os.getloadavg()],
    }


def save(name: str, record: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"distributed-{name}.json"
    content = {**provenance("distributed"), "machine": machine(), **record}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def ends(nodes: int, edges: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Most edges join nodes whose numbers are close, every twentieth any two."""
    source = rng.integers(0, nodes, edges)
    reach = np.maximum(rng.pareto(1.5, edges) * 20, 1).clip(max=nodes / 4).astype(np.int64)
    target = (source + reach) % nodes
    far = rng.random(edges) < 0.05
    target[far] = rng.integers(0, nodes, int(far.sum()))
    return source, target


def tables(folder: Path, nodes: int, edges: int, features: int) -> tuple[Path, Path]:
    """Write a node table and an edge table, a piece at a time."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    rng = np.random.default_rng(0)
    quick = arrow.WriteOptions(quoting_style="none", batch_size=1 << 16)
    paths = folder / "nodes.csv", folder / "edges.csv"
    names = ["id", "label", "group", *(f"x{k}" for k in range(features))]
    schema = pa.schema(
        [(n, pa.int64()) for n in names[:3]] + [(n, pa.float32()) for n in names[3:]]
    )
    with arrow.CSVWriter(paths[0], schema, write_options=quick) as writer:
        for start in range(0, nodes, 1 << 18):
            count = min(1 << 18, nodes - start)
            group, label = rng.integers(0, 2, count), rng.integers(0, 2, count)
            x = (rng.normal(size=(features, count)) + 0.5 * label).round(3).astype(np.float32)
            ids = np.arange(start, start + count)
            writer.write(pa.record_batch([ids, label, group, *x], schema=schema))
    schema = pa.schema([("one", pa.int64()), ("other", pa.int64())])
    with arrow.CSVWriter(paths[1], schema, write_options=quick) as writer:
        for start in range(0, edges, 1 << 20):
            pair = ends(nodes, min(1 << 20, edges - start), rng)
            writer.write(pa.record_batch(list(pair), schema=schema))
    return paths


def environment() -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **threads, "PYTHONWARNINGS": "ignore"}


def torchrun(size: int, *words: str, restarts: int = 0) -> list[str]:
    options = ["--nnodes=1", f"--nproc-per-node={size}", f"--max-restarts={restarts}"]
    options += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return [sys.executable, "-m", "torch.distributed.run", *options, *words]


def status(key: str) -> int:
    """A figure of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def rank(folder: str, epochs: str, out: str) -> None:
    """One of the ranks of ``memory`` and ``bytes``; writes what it measured."""
    import torch

    from fairmp import FMP, FairClassifier
    from fairmp.datasets import social_network
    from fairmp.distributed import fit_shard, load_shard, shard
    from fairmp.distributed.ranks import joined

    def model(count: int) -> FairClassifier:
        layer = FMP(K, lambda_s=3.0, solver="papc")
        return FairClassifier(
            layer, hidden=HIDDEN, epochs=count, on="probabilities", backbone="mlp"
        )

    with joined() as ranks:
        with tempfile.TemporaryDirectory() as place:  # what is compiled once is not counted
            small = social_network(400, average_degree=8, features=FEATURES)
            shard(small, f"{place}/s", parts=ranks.size)
            fit_shard(model(1), load_shard(f"{place}/s", ranks), bootstrap=0)
        ranks.objects(None)
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
        before = status("VmRSS")
        start = time.perf_counter()
        mine = load_shard(folder, ranks)
        loaded = time.perf_counter() - start
        after_load = status("VmHWM")
        graph = mine.graph.adjacency(torch.float32)
        f = torch.randn(mine.data.x.size(0), CLASSES)
        busy = time.process_time()
        for _ in range(3):
            graph.aggregate(f, f, 0.2)
        busy = (time.process_time() - busy) / 3
        ranks.sent.clear()
        run = fit_shard(model(int(epochs)), mine, bootstrap=0)
        record = {
            "rank": ranks.rank,
            "nodes": mine.data.x.size(0),
            "entries": mine.graph.exact.forward.col.numel() + mine.graph.exact.border.col.numel(),
            "halo": mine.graph.exact.halo.size,
            "rows_sent": sum(mine.graph.exact.halo.sent),
            "before_mb": before / 1e6,
            "load_peak_mb": after_load / 1e6,
            "peak_mb": status("VmHWM") / 1e6,
            "sent": dict(ranks.sent),
            "load_seconds": loaded,
            "product_cpu_seconds": busy,
            "epoch_seconds": run.history.seconds / int(epochs),
        }
        Path(out, f"{ranks.size}-{epochs}-{ranks.rank}.json").write_text(json.dumps(record))


def ranks_of(folder: Path, size: int, epochs: int, out: Path, prefix: Sequence[str] = ()) -> Any:
    words = [__file__, "rank", str(folder), str(epochs), str(out)]
    command = [*prefix, *torchrun(size, *words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return [json.loads((out / f"{size}-{epochs}-{k}.json").read_text()) for k in range(size)]


def memory(scratch: Path, nodes: int, edges: int) -> None:
    from fairmp.distributed import shard_tables

    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder = Path(place)
        paths = tables(folder, nodes, edges, FEATURES)
        manifest = shard_tables(
            *paths, folder / "s", id="id", label="label", sensitive="group", parts=4, order="given"
        )
        record: dict[str, Any] = {"nodes": nodes, "edges": manifest.edges, "ranks": {}}
        whole = 0.0
        for size in (1, 2, 4):
            parts = ranks_of(folder / "s", size, 2, folder)
            used = [part["peak_mb"] - part["before_mb"] for part in parts]
            whole = whole or used[0]
            # What a row of another rank takes: C numbers to receive and as many to send, its
            # scale in two precisions, its number.
            halo = [
                p["halo"] * (CLASSES * 4 + 20) + p["rows_sent"] * (CLASSES * 4 + 8) for p in parts
            ]
            record["ranks"][size] = {
                "parts": parts,
                "used_mb": used,
                "allowed_mb": [1.3 / size * whole + bytes_ / 1e6 for bytes_ in halo],
                "share_of_one": [u / whole for u in used],
                "within": all(
                    u <= 1.3 / size * whole + b / 1e6 for u, b in zip(used, halo, strict=True)
                ),
            }
    save("memory", record)


def sent_on_lo(host: str) -> int:
    path = "/sys/class/net/lo/statistics/tx_bytes"
    return int(subprocess.check_output(["ip", "netns", "exec", host, "cat", path]))


def count_bytes(scratch: Path) -> None:
    from fairmp.datasets import social_network
    from fairmp.distributed import shard

    host = f"fairmp{os.getpid() % 10_000}"
    alone = subprocess.run(["ip", "netns", "add", host], capture_output=True).returncode == 0
    record: dict[str, Any] = {"K": K, "classes": CLASSES, "bytes_a_number": 4, "ranks": {}}
    try:
        prefix = ["ip", "netns", "exec", host] if alone else []
        if alone:
            subprocess.run(["ip", "-n", host, "link", "set", "lo", "up"], check=True)
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            folder = Path(place)
            shard(social_network(20_000, features=FEATURES), folder / "s", parts=4, order="metis")
            for size in (2, 3, 4):
                counted, wire = [], []
                for epochs in (2, 12):
                    before = sent_on_lo(host) if alone else 0
                    counted.append(ranks_of(folder / "s", size, epochs, folder, prefix))
                    wire.append(sent_on_lo(host) - before if alone else 0)
                per = {
                    kind: sum(
                        b["sent"][kind] - a["sent"][kind] for a, b in zip(*counted, strict=True)
                    )
                    / 10
                    for kind in ("halo", "total", "gradient")
                }
                halo = sum(part["halo"] for part in counted[0])
                formula = 3 * K * CLASSES * 4 * halo
                record["ranks"][size] = {
                    "halo_rows": halo,
                    "formula_halo": formula,
                    "counted_an_epoch": per,
                    "equal": per["halo"] == formula,
                    "kernel_an_epoch": (wire[1] - wire[0]) / 10 if alone else None,
                }
    finally:
        if alone:
            subprocess.run(["ip", "netns", "del", host], check=False)
    save("bytes", record)


def shard_large(scratch: Path, nodes: int, edges: int, orders: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder = Path(place)
        start = time.perf_counter()
        paths = tables(folder, nodes, edges, 2)
        record: dict[str, Any] = {
            "nodes": nodes,
            "rows": edges,
            "table_gb": sum(path.stat().st_size for path in paths) / 1e9,
            "seconds_to_make_tables": time.perf_counter() - start,
            "orders": {},
        }
        for order in orders:
            words = [
                sys.executable,
                __file__,
                "shard-once",
                *map(str, paths),
                str(folder / order),
                order,
            ]
            start = time.perf_counter()
            done = subprocess.run(words, env=environment(), capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr[-3000:])
            seconds = time.perf_counter() - start
            told = json.loads(done.stdout.splitlines()[-1])
            record["orders"][order] = {
                **told,
                "seconds": seconds,
                "rows_a_second": edges / seconds,
                "within_4_gb": told["peak_gb"] <= 4,
            }
            subprocess.run(["rm", "-r", str(folder / order)], check=True)
    save("shard", record)


def shard_once(nodes: str, edges: str, out: str, order: str) -> None:
    from fairmp.distributed import shard_tables

    manifest = shard_tables(
        nodes,
        edges,
        out,
        id="id",
        label="label",
        sensitive="group",
        parts=8,
        order=order,  # type: ignore[arg-type]
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(file.bytes for part in manifest.parts for file in part.files.values())
    halo = sum(part.halo for part in manifest.parts)
    print(
        json.dumps(
            {
                "edges": manifest.edges,
                "peak_gb": peak / 1e9,
                "shards_gb": size / 1e9,
                "halo_rows": halo,
            }
        )
    )


def kills(scratch: Path, count: int) -> None:
    from fairmp.datasets import social_network
    from fairmp.distributed import shard

    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder = Path(place)
        shard(social_network(20_000), folder / "s", parts=2, split_seeds=(0,))
        train = ["-m", "fairmp", "train", "--shards", "s", "--splits", "1", "--epochs", "60"]
        train += ["--dropout", "0.3", "--checkpoint-every", "5", "--out"]

        def digest(out: str) -> str:
            content = (folder / out / "model" / "model.safetensors").read_bytes()
            return hashlib.sha256(content).hexdigest()

        start = time.perf_counter()
        command = torchrun(2, *train, "quiet")
        subprocess.run(command, cwd=folder, env=environment(), capture_output=True, check=True)
        whole, expected, runs = time.perf_counter() - start, digest("quiet"), []
        k = 0
        while sum(run["killed"] for run in runs) < count:
            k += 1
            command = torchrun(2, *train, f"hit{k}", restarts=3)
            start = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(random.uniform(0.1, 0.9) * whole)
            path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            victims = path.read_text().split() if path.exists() else []
            checkpoint = folder / f"hit{k}" / "checkpoint"
            moment = {
                "second": time.perf_counter() - start,
                "checkpoint": checkpoint.exists() and any(checkpoint.iterdir()),
            }
            if victims:
                os.kill(int(random.choice(victims)), signal.SIGKILL)
            code = process.wait()
            is_same = code == 0 and digest(f"hit{k}") == expected
            seconds = time.perf_counter() - start
            runs.append({**moment, "killed": bool(victims), "same": is_same, "seconds": seconds})
            print(runs[-1], flush=True)
    save("kills", {"quiet_seconds": whole, "runs": runs, "all_same": all(r["same"] for r in runs)})


def orders(parts: Sequence[int] = (4, 16)) -> None:
    from fairmp.datasets import load, social_network
    from fairmp.distributed import shard

    record: dict[str, Any] = {}
    for name in ("embedded", "bail", "credit", "pokec-province", "pokec-n-graph"):
        data = social_network() if name == "embedded" else load(name)
        record[name] = {"nodes": data.num_nodes, "edges": data.edge_index.size(1) // 2}
        for order in ("given", "locality", "metis"):
            for count in parts:
                with tempfile.TemporaryDirectory() as place:
                    start = time.perf_counter()
                    manifest = shard(data, Path(place, "s"), parts=count, order=order)
                    record[name][f"{order}, {count} parts"] = {
                        "halo_a_node": sum(p.halo for p in manifest.parts) / manifest.nodes,
                        "seconds": time.perf_counter() - start,
                    }
    save("orders", record)


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        return rank(*sys.argv[2:])
    if sys.argv[1:2] == ["shard-once"]:
        return shard_once(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["memory", "bytes", "shard", "kills", "orders"])
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--nodes", type=int, help="of memory (10^6) and shard (10^7)")
    parser.add_argument(
        "--edges",
        type=int,
        help="rows of the table: memory 1.18·10^7, of which 10^7 differ; shard 10^8",
    )
    parser.add_argument("--orders", default="given,locality", help="of shard")
    parser.add_argument("--count", type=int, default=10, help="of kills")
    options = parser.parse_args()
    match options.what:
        case "memory":
            memory(options.scratch, options.nodes or 10**6, options.edges or 11_800_000)
        case "bytes":
            count_bytes(options.scratch)
        case "shard":
            wanted = options.orders.split(",")
            shard_large(options.scratch, options.nodes or 10**7, options.edges or 10**8, wanted)
        case "kills":
            kills(options.scratch, options.count)
        case _:
            orders()
    return None


if __name__ == "__main__":
    main()
