"""The providers that need no configuration."""

from __future__ import annotations

import pytest

from refold.runtime.stream.failures import LlmFailure
from refold.runtime.wire.providers import (
    BUILT_IN,
    InvalidProvider,
    Provider,
    UnknownProvider,
    find_provider,
    read_key,
)


def test_the_built_in_providers_are_these() -> None:
    assert {name: (p.base_url, p.key_env) for name, p in BUILT_IN.items()} == {
        "local": ("http://127.0.0.1:8080/v1", None),
        "deepseek": ("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        "ollama": ("http://127.0.0.1:11434/v1", None),
    }
    assert {name for name, p in BUILT_IN.items() if not p.keep_alive} == {"local"}


def test_a_key_is_asked_for_where_one_is_needed() -> None:
    assert read_key(BUILT_IN["ollama"], {}) is None
    assert read_key(BUILT_IN["openrouter"], {"OPENROUTER_API_KEY": " k\n"}) == "k"
    with pytest.raises(LlmFailure, match="set OPENROUTER_API_KEY"):
        read_key(BUILT_IN["openrouter"], {})


def test_a_configured_provider_replaces_a_built_in_one_whole() -> None:
    mine = Provider("local", "chat/1", base_url="http://127.0.0.1:9000/v1")
    assert find_provider("local", [mine]) is mine
    with pytest.raises(UnknownProvider, match=r"refold\.toml"):
        find_provider("nobody", [mine])


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        *((text, "white space or a control character") for text in ("\r", "\n", "\0", " ", "\x7f")),
        *(
            (text, "a query (?) or a fragment (#)")
            for text in ("?key=SECRET", "?", "#x", "/v1?a=1")
        ),
    ],
)
@pytest.mark.parametrize("before", ["http://host/v1", "https://host:8080"])
def test_what_a_path_cannot_follow_is_refused_in_a_base_url(
    before: str, rest: str, said: str
) -> None:
    for url in (before + rest, before + rest + "/v1"):
        with pytest.raises(InvalidProvider) as refused:
            Provider("mine", "chat/1", base_url=url)
        assert said in str(refused.value)
        assert "SECRET" not in str(refused.value)
