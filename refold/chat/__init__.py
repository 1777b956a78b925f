"""Talking to an agent: `refold chat` on a terminal and in a pipe."""
