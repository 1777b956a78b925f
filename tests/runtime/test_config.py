"""From a parsed `refold.toml` to records, and what is refused on the way."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from refold.runtime.config import Config, InvalidConfig, parse_config
from refold.runtime.wire.providers import Provider

PATH = Path("folder/refold.toml")
BASE = '[providers.mine]\nbase_url = "http://127.0.0.1:1/v1"\n'
SECRET = "sk-1234567890"


def parsed(text: str) -> Config:
    return parse_config(tomllib.loads(text), PATH)


def refusal(text: str) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        parsed(text)
    assert str(caught.value).startswith(f"{PATH}: {caught.value.key} ")
    return caught.value


def test_an_empty_file_sets_nothing() -> None:
    assert parsed("") == Config(PATH)


def test_every_setting_becomes_a_record() -> None:
    config = parsed(
        """
        store = "sessions"
        model = "mine/big/model"
        system = "Be brief."
        tools = ["notes:read", "package.module:write"]

        [providers.mine]
        base_url = "https://host/v1"
        key_env = "MINE_KEY"
        codec = "chat/1"
        keep_alive = false
        defaults = { seed = 7, nested = { list = [1, "two"] } }
        quirks = { replayReasoning = false }

        [providers.other]
        base_url = "http://127.0.0.1:1"
        """
    )
    assert config == Config(
        path=PATH,
        store="sessions",
        model="mine/big/model",
        system="Be brief.",
        tools=("notes:read", "package.module:write"),
        providers=(
            Provider(
                "mine",
                "chat/1",
                base_url="https://host/v1",
                key_env="MINE_KEY",
                keep_alive=False,
                defaults={"seed": 7, "nested": {"list": [1, "two"]}},
                quirks={"replayReasoning": False},
            ),
            Provider("other", "chat/1", base_url="http://127.0.0.1:1"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "key", "known"),
    [
        (
            'modle = "a/b"',
            "modle",
            "store, model, system, max_tokens, temperature, tools, providers",
        ),
        (BASE + 'url = "x"', "providers.mine.url", "base_url, key_env, codec, keep_alive"),
        ("[provider.mine]", "provider", "providers"),
    ],
)
def test_an_unknown_key_is_refused_with_the_known_ones(text: str, key: str, known: str) -> None:
    refused = refusal(text)
    assert refused.key == key
    assert known in str(refused)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("store = 3", "store"),
        ('store = ""', "store"),
        ('store = "a\\u0000b"', "store"),
        ('model = "nameless"', "model"),
        ("model = true", "model"),
        ("system = ['x']", "system"),
        ('tools = "notes:read"', "tools"),
        ('tools = ["a:b", "no function"]', "tools[1]"),
        ('tools = ["a-b:c"]', "tools[0]"),
        ('tools = ["a:b.c"]', "tools[0]"),
        ("tools = [1]", "tools[0]"),
        ("providers = 1", "providers"),
        ("[providers]\nmine = 1", "providers.mine"),
        ('[providers."a/b"]', "providers.a/b"),
        ("[providers.mine]", "providers.mine"),
        ('[providers.mine]\nbase_url = "ftp://x"', "providers.mine"),
        ('[providers.mine]\nbase_url = "http://x:99999"', "providers.mine"),
        (BASE + 'codec = "script"', "providers.mine.codec"),
        (BASE + 'keep_alive = "no"', "providers.mine.keep_alive"),
        (BASE + "defaults = 1", "providers.mine.defaults"),
        (BASE + "defaults = { a = [nan] }", "providers.mine.defaults.a[0]"),
        (BASE + "defaults = { a = 1979-05-27 }", "providers.mine.defaults.a"),
        (BASE + "defaults = { max_tokens = 1 }", "providers.mine.defaults.max_tokens"),
        (BASE + "quirks = { unheard = 1 }", "providers.mine.quirks"),
        (BASE + "quirks = { maxTokensKey = 1 }", "providers.mine.quirks.maxTokensKey"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_key(text: str, key: str) -> None:
    assert refusal(text).key == key


@pytest.mark.parametrize(
    "text",
    [
        f'api_key = "{SECRET}"',
        f'{BASE}key = "{SECRET}"',
        f'{BASE}API-Key = "{SECRET}"',
        f'{BASE}token = "{SECRET}"',
        f'{BASE}key_env = "{SECRET}"',
        f'{BASE}defaults = {{ headers = {{ Authorization = "{SECRET}" }} }}',
        f'{BASE}defaults = {{ list = [{{ openai_api_key = "{SECRET}" }}] }}',
        f'{BASE}quirks = {{ password = "{SECRET}" }}',
        f'[providers.mine]\nbase_url = "http://user:{SECRET}@host"',
    ],
)
def test_a_key_in_the_file_is_refused_and_never_quoted(text: str) -> None:
    refused = str(refusal(text))
    assert SECRET not in refused
    assert "key_env" in refused


def test_body_fields_whose_names_only_speak_of_keys_and_tokens_pass() -> None:
    text = f"{BASE}[providers.mine.defaults]\nprompt_cache_key = 'x'\nmax_completion_tokens = 9\n"
    (provider,) = parsed(text).providers
    assert provider.defaults == {"prompt_cache_key": "x", "max_completion_tokens": 9}
