from __future__ import annotations

import pytest

from fairmp.progress import bar


@pytest.mark.parametrize("show", [True, False, None])
def test_bar_writes_to_standard_error_if_shown(
    show: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with bar(2, "counting", show=show) as advance:
        advance("one")
        advance("two")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert bool(captured.err) is bool(show)
