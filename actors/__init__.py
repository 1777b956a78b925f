"""Who runs: Trio actors that may change history only by asking the log writer."""
