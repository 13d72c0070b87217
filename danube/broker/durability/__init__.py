"""One object for each durability."""
