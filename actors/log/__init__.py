"""The log of a live session: its only writer, the handle on it, who follows it."""
