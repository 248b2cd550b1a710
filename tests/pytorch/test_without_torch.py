"""Without torch the public names are there, and say which extra they need."""

import sys

import pytest

import ansorlite as al


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(al.MissingExtra, match=r"ansorlite\[torch\]"):
        al.from_torch(object(), ())
    with pytest.raises(al.MissingExtra, match=r"ansorlite\[torch\]"):
        al.torch_backend(object(), ())
