"""The same layer over torch.distributed: exact training on a graph that one machine cannot hold.

FMP touches other nodes in two places: the product Ã·F and the gap Δ·P. So nodes are sharded, rows
of F that other ranks need are exchanged (``loading``), and the sums behind the gap are added over
ranks (``ranks``). Everything else is the code of one machine.
"""

from fairmp.distributed.checkpoints import FileCheckpoints as FileCheckpoints
from fairmp.distributed.loading import Shard as Shard
from fairmp.distributed.loading import load_shard as load_shard
from fairmp.distributed.ranks import RankLostError as RankLostError
from fairmp.distributed.ranks import Ranks as Ranks
from fairmp.distributed.ranks import SharedError as SharedError
from fairmp.distributed.shard_format import Manifest as Manifest
from fairmp.distributed.training import evaluate_shard as evaluate_shard
from fairmp.distributed.training import fit_shard as fit_shard
from fairmp.distributed.training import predict_shard as predict_shard
from fairmp.distributed.writer import shard as shard
from fairmp.distributed.writer import shard_tables as shard_tables
