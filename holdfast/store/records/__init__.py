"""Records: the rows of a store as objects of the model, and back.

What the engine, which writes, and `inspect`, which only reads, share: the journal checked event by event, its history
with branches, a run's state from its rows, stored values, compiled definitions. Imports `model` and the store's
contract; the drivers do not import it.
"""
