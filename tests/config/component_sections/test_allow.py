import pytest

from setpoint.config.values.user_code import VARIABLE, allow_imports, allowed_modules, is_allowed


def test_prefixes_end_at_dots() -> None:
    assert is_allowed("torch.optim.Adagrad", ("torch.optim",))
    assert is_allowed("torch.optim", ("torch.optim",))
    assert not is_allowed("torch.optimizers.X", ("torch.optim",))
    assert not is_allowed("torch", ("torch.optim",))
    assert not is_allowed("anything", ())


def test_the_environment_replaces_what_classes_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setpoint.config.values.user_code._named", set())
    monkeypatch.delenv(VARIABLE, raising=False)
    assert allowed_modules(("torch.optim",)) == ("torch.optim",)
    monkeypatch.setenv(VARIABLE, "mine, torch.nn")
    assert allowed_modules(("torch.optim",)) == ("mine", "torch.nn")
    monkeypatch.setenv(VARIABLE, "")
    assert allowed_modules(("torch.optim",)) == ()
    allow_imports("given")
    assert allowed_modules(("torch.optim",)) == ("given",)
