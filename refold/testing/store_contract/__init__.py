"""What every store must hold, as checks that a store of your own can be put to.

A check is an async function that is given `Stores` and raises `ContractBroken` with what the store
did. It needs no test framework:

    import pytest, trio
    from refold.testing.store_contract import CHECKS, Stores

    @pytest.mark.parametrize("name", CHECKS)
    def test_my_store(name, tmp_path):
        trio.run(CHECKS[name], Stores(lambda: MyStore(tmp_path)))

Each check wants sessions of its own, so give each an empty place. `check_history` can be driven by
any `random.Random`, that of hypothesis (`hypothesis.strategies.randoms()`) included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from refold.testing.store_contract import appending, owning, reading
from refold.testing.store_contract.history import check_histories, check_history
from refold.testing.store_contract.stores import ContractBroken, Stores

__all__ = ["CHECKS", "ContractBroken", "Stores", "check_history"]

_ALL: list[Callable[[Stores], Awaitable[None]]] = [
    appending.batches_are_whole_and_contiguous,
    appending.an_empty_batch_is_refused,
    appending.a_batch_for_another_place_is_refused,
    appending.a_new_session_leaves_no_trace,
    appending.an_id_is_taken_once,
    appending.progress_only_grows,
    appending.sessions_side_by_side_keep_apart,
    appending.a_cancelled_sync_leaves_no_doubt,
    owning.taking_a_grant_again_counts_terms,
    owning.a_grant_that_was_given_back_takes_nothing,
    owning.a_takeover_fences,
    owning.one_of_many_wins,
    owning.a_cancelled_acquire_holds_nothing,
    owning.a_held_session_is_not_deleted,
    reading.a_reader_started_anywhere_misses_nothing,
    reading.pages_of_every_size_make_the_same_log,
    reading.a_hole_is_corruption,
    reading.sessions_are_listed_while_they_come_and_go,
    reading.a_fork_is_its_parent_up_to_a_turn_s_end,
    check_histories,
]

CHECKS: dict[str, Callable[[Stores], Awaitable[None]]] = {check.__name__: check for check in _ALL}
"""Every check by its name."""
