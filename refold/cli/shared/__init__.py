"""What commands share: logs by their names, states, findings, and what is printed of them."""
