"""Passwords in addresses are hidden wherever text is shown."""

from __future__ import annotations

import pytest

from fairmp import InputError
from fairmp.secrets import without_password

SECRET = "s3cr3t"


def test_without_password_hides_it() -> None:
    text = "train --nodes postgresql://me:se:cret@host/db --storage redis://u:p@h"
    assert without_password(text) == (
        "train --nodes postgresql://me:***@host/db --storage redis://u:***@h"
    )


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me@company:{}@host/db",
        "postgresql://me:{} and more@host/db",
        "postgresql://me:12@{} more@host/db",
        "postgresql:/me:{}@host/db",  # as a path writes it
        "postgresql:/host/db?user=me&password={}",
        "sqlite:///a.db?pw={}",
        "blob://host/db?sig={}",
        "elastic://host/db?auth={}",
        "mssql+pyodbc:///?odbc_connect=DRIVER={{ODBC 17}};PWD={{a {};b}};UID=me",
    ],
)
def test_every_form_of_an_address_hides_its_password(address: str) -> None:
    url = address.format(SECRET)
    for text in (url, f"there is no file '{url}'; check the path"):
        shown = without_password(text)
        assert SECRET not in shown
        assert "more" not in shown
        assert ";b}" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:///people.db",
        "postgresql://me@host/db?sslmode=require",
        "https://x/y?a=b",
        "open http://localhost:8000/docs, or write to me@example.org",
        "C:/people/me:2@home.csv",
        "a/b:c@d",
    ],
)
def test_texts_without_passwords_stay_as_they_are(text: str) -> None:
    assert without_password(text) == text


def test_errors_show_no_password() -> None:
    url = f"postgresql://me:{SECRET}@host/db"
    error = InputError("predictions", f"there is no file {url!r}", f"not {url}")
    assert SECRET not in str(error)
    elided = InputError("predictions", "x" * 196 + url + "y" * 300)  # cut within the address
    assert SECRET[:4] not in str(elided)
