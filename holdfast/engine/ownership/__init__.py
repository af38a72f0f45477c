"""Ownership: which engine may act on a run, from the moment it has no owner until it has none again.

    unowned ──claim──▶ claimed ──load──▶ loaded ──first commit──▶ driven ──▶ ended
       ▲                  │                 │                        │
       │                  ├── hold ─────────┴──────── hold ──────────┼──▶ held ──resume──▶ unowned
       └──── release ─────┴──────────────── release ◀────────────────┘

| state   | stored as                               | who moves it on                                                  |
|---------|-----------------------------------------|------------------------------------------------------------------|
| unowned | `engine` is null, no hold               | any engine that has room and the code: claim.py                  |
| claimed | `engine` set, `token` raised by one     | the claimer reads it: load.py. Not driven yet: rows could be     |
|         |                                         | damaged, a branch may be asked for, its code may have changed    |
| loaded  | the same; an actor in memory            | custody.py adopts it; its first turn commits the takeover        |
| driven  | every commit names `engine` and `token` | the actor (run/actor.py); evicted and released when suspended    |
| held    | `hold` says why, `engine` is null       | an operator: recovering.py (`resume`), run_requests.py (`cancel`)|
| ended   | a terminal status, `engine` is null     | nothing; a branch makes it unowned again (branching.py)          |

Who may move what: only the engine whose id and token are in the row may commit, hold or release it, and the statement
itself checks both. Any engine may release the runs of another one that is dead (lease.py says how it knows), which
raises their tokens: what a replaced owner still sends is refused. An operator lifts a hold; no engine does.

What a crash leaves: in every state the row alone. claimed and loaded look the same to the next owner, as nothing was
written; a driven run stands after its last commit. The lease goes with the process (its lock is free at once) or
expires; poll.py finds it, claim.py claims the runs again. A hold outlives every engine.

Modules: lease (this engine's row and lock, which engines are dead), claim (which runs, how many, in which order), load
(rows to an actor, or hold, or yield), custody (the driven runs: room, eviction, release, hold), poll (the loop). Each
receives the runtime and the parts it uses, never the engine.
"""
