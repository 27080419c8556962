"""Methods of others, written from their papers' equations, to be compared with ours.

    fairmp compare --data nba --method experiments.rivals:FairGNN --method experiments.rivals:NIFTY

Each has a class without its fairness part (``FairGNNBackbone``, ``NIFTYBackbone``), so that what
the intervention adds is separated from what the network has. ``python -m experiments external``
tunes and runs all of them.
"""

from experiments.rivals.fairgnn import FairGNN as FairGNN
from experiments.rivals.fairgnn import FairGNNBackbone as FairGNNBackbone
from experiments.rivals.nifty import NIFTY as NIFTY
from experiments.rivals.nifty import NIFTYBackbone as NIFTYBackbone
