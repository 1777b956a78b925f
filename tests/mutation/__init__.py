"""The mutation run: one condition of the product is changed at a time, and a test must turn red.

    python -m tests.mutation rules       # what CI runs
    python -m tests.mutation --list      # the targets
    python -m tests.mutation writer dispatch --jobs 2
    python -m tests.mutation rules --only brackets. --verbose

Everything is imported and collected once; each mutant is a fork of that process in which the code
of one function is exchanged, so that a mutant costs its tests and nothing else. Which tests those
are is measured first: the ones that ran the changed line, those that found most before them first.

A mutant that no test notices survives. Survivors are accepted in `survivors.toml`, each with the
reason why no test can or need tell it; any other is an error, and so is an accepted one that is
not there any more.
"""
