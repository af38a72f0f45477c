"""Simulation: the real engine, store and executor in a world with controlled time, faults and interleavings.

Begin with world.py. What is simulated: the clock and the event loop (virtual_loop.py), what a process is and how it
dies (process.py), what can happen to a write (store.py, faults.py), and where bodies run (watched_bodies.py).
"""
