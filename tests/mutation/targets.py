"""What the mutation run changes, and which tests are to notice; mend it when files move."""

from __future__ import annotations

import attrs


@attrs.frozen
class Target:
    """Modules that belong together, and the tests (files or folders) that are to notice."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


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
            "runtime.rules",
            "runtime.rules.inbox",
            "runtime.rules.pairing",
            "runtime.rules.soundness",
            "runtime.rules.table",
            "runtime.standing",
        ),
        RULES,
    ),
    "folds": Target(
        ("runtime.surface", "runtime.session", "runtime.projection", "runtime.closing"), FOLDS
    ),
    "audit": Target(("runtime.audit",), (*FOLDS, "tests/actors/test_invariants.py")),
    "recovery": Target(
        ("runtime.storage.recovery", "runtime.storage.tail"),
        ("tests/runtime/storage", "tests/refold/test_cli_repair.py"),
    ),
    "fencing": Target(
        ("runtime.storage.takeover", "runtime.storage.owners", "runtime.storage.locks"), STORES
    ),
    "jsonl": Target(
        ("runtime.storage.jsonl", "runtime.storage.log", "runtime.storage.batches"), STORES
    ),
    "sqlite": Target(
        (
            "runtime.storage.sqlite.file",
            "runtime.storage.sqlite.log",
            "runtime.storage.sqlite.rows",
            "runtime.storage.sqlite.database",
        ),
        STORES,
    ),
    "writer": Target(
        ("actors.log_writer",),
        _actors("effects", "folding", "inbox", "log_writer", "recovery", "writer_opening"),
    ),
    "invariants": Target(
        ("actors.invariants",), _actors("clearance", "effects", "invariants", "recovery", "retries")
    ),
    "dispatch": Target(
        ("actors.dispatch", "actors.retries", "actors.answer_writer"),
        _actors(
            "agent", "cancel", "clearance", "effects", "invariants", "retries", "what_is_written"
        ),
    ),
    "committer": Target(
        (
            "actors.stores.committer",
            "actors.stores.embedded",
            "actors.stores.files",
            "actors.stores.rows",
        ),
        _actors(
            "committer",
            "committer_rounds",
            "embedded_grant",
            "log_writer",
            "sqlite_agents",
            "store_contract",
        ),
    ),
}
"""Each by its name on the command line; the first is CI's, the others are run by hand."""
