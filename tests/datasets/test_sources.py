from __future__ import annotations

import pytest

from fairmp.datasets.sources import POKEC_N, POKEC_Z, SOURCES, source_named
from fairmp.errors import InputError


def test_known_checksums():
    checksums = {s.key: [f.checksum for c in s.files.values() for f in c] for s in SOURCES}
    assert checksums["nba"] == ["known", "known"]
    assert checksums["pokec-z"] == checksums["pokec-n"] == ["partial", "unknown"]
    assert checksums["credit"] == ["known", "known", "unknown"]
    assert POKEC_Z.files["nodes"][0].sha256 == "62f299e6"
    assert POKEC_N.files["nodes"][0].sha256 == "2b236a69"


def test_source_named_by_key_title_or_class():
    assert source_named("pokec_n").key == "pokec-n"
    assert source_named("Pokec-n, 3 features").class_name == "PokecNGraph"
    with pytest.raises(InputError, match="did you mean 'german'"):
        source_named("germany")
    with pytest.raises(InputError, match=r"did you mean 'mine'.*There are mine, nba"):
        source_named("mime", others=["mine"])
