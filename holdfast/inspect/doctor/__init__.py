"""The doctor: whether a store keeps its promises, and what to do where it does not."""
