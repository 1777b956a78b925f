"""What the mutation run changes, and which tests are to notice; mend it when files move."""

from __future__ import annotations

import attrs


@attrs.frozen
class Target:
    """Modules that belong together, and the tests (files or folders) that are to notice."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Parts of names of tests that take time and notice nothing that others do not."""


def _actors(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/actors/test_{name}.py" for name in names)


RULES = (
    "tests/actors/test_foreign_logs.py",
    "tests/runtime/rules",
    "tests/runtime/test_closing.py",
    "tests/runtime/test_pairing.py",
    "tests/runtime/test_standing.py",
    "tests/actors/test_log_writer.py",
    "tests/runtime/test_golden.py",
)
FOLDS = (
    "tests/runtime/rules",
    "tests/runtime/test_audit.py",
    "tests/runtime/test_closing.py",
    "tests/runtime/test_golden.py",
    "tests/runtime/test_request.py",
    "tests/runtime/test_session.py",
    "tests/runtime/test_session_properties.py",
)
STORES = (
    "tests/runtime/storage",
    "tests/actors/test_store_contract.py",
    "tests/actors/test_committer.py",
    "tests/actors/test_sqlite_agents.py",
)

TARGETS: dict[str, Target] = {
    "rules": Target(
        (
            "refold.runtime.rules",
            "refold.runtime.rules.inbox",
            "refold.runtime.rules.pairing",
            "refold.runtime.rules.soundness",
            "refold.runtime.rules.table",
            "refold.runtime.standing",
        ),
        RULES,
        without=("sqlite", "test_most_of_those_replacements"),  # the store; a test of a test
    ),
    "folds": Target(
        (
            "refold.runtime.surface",
            "refold.runtime.history",
            "refold.runtime.projection",
            "refold.runtime.closing",
        ),
        FOLDS,
    ),
    "audit": Target(
        ("refold.runtime.audit",), (*FOLDS, *_actors("clearance", "codec_change", "invariants"))
    ),
    "recovery": Target(
        (
            "refold.runtime.storage.beside",
            "refold.runtime.storage.scan",
            "refold.runtime.storage.jsonl.torn_tail",
            "refold.runtime.storage.jsonl.whole_log",
        ),
        ("tests/runtime/storage", "tests/refold/test_cli_repair.py"),
    ),
    "fencing": Target(
        (
            "refold.runtime.storage.durable_mark",
            "refold.runtime.storage.locks",
            "refold.runtime.storage.owners",
            "refold.runtime.storage.writer_state",
            "refold.runtime.storage.jsonl.takeover",
        ),
        STORES,
    ),
    "jsonl": Target(
        (
            "refold.runtime.storage.batches",
            "refold.runtime.storage.jsonl.file_log",
            "refold.runtime.storage.jsonl.folder",
            "refold.runtime.storage.jsonl.log_files",
        ),
        STORES,
    ),
    "sqlite": Target(
        (
            "refold.runtime.storage.sqlite.database",
            "refold.runtime.storage.sqlite.file",
            "refold.runtime.storage.sqlite.row_log",
            "refold.runtime.storage.sqlite.row_rounds",
            "refold.runtime.storage.sqlite.rows",
        ),
        STORES,
    ),
    "writer": Target(
        ("refold.actors.log.log_writer", "refold.actors.log.live_log"),
        _actors(
            "codec_change",
            "effects",
            "ends",
            "folding",
            "inbox",
            "log_writer",
            "passing_failures",
            "recovery",
            "shared_prefix",
            "writer_opening",
        ),
    ),
    "invariants": Target(
        ("refold.actors.request.invariants",),
        _actors(
            "clearance",
            "codec_change",
            "effects",
            "invariants",
            "leaving",
            "recovery",
            "retries",
            "second_format",
        ),
    ),
    "dispatch": Target(
        (
            "refold.actors.request.dispatch",
            "refold.actors.request.retries",
            "refold.actors.request.answer_writer",
        ),
        _actors(
            "agent",
            "cancel",
            "clearance",
            "codec_change",
            "effects",
            "invariants",
            "leaving",
            "retries",
            "second_format",
            "what_is_written",
        ),
    ),
    "committer": Target(
        (
            "refold.actors.stores.committer",
            "refold.actors.stores.local",
        ),
        _actors(
            "committer",
            "committer_rounds",
            "embedded_grant",
            "log_writer",
            "sqlite_agents",
            "store_contract",
            "torn",
        ),
    ),
}
"""Each by its name on the command line; the first is CI's, the others are run by hand."""
