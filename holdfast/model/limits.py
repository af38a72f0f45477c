"""Limits: every number that bounds something that could grow, with the reason for it.

Owns: the defaults. Settings override the ones that users may differ about.
"""

INLINE_LIMIT_BYTES = 1_000_000
"""A value up to this size lives in its event; reading a journal page must stay quick."""

CAPTURED_BYTES_MAX = 4_096
"""What rules may keep of one node's output; RunState of a wide run must fit in memory."""

ERROR_BYTES_MAX = 16_384
"""Type, message and the user's frames of one failure; more is cut, so that a loop of failures cannot fill the disk."""

MAP_LIMIT_DEFAULT = 100
"""Items of one map in flight; enough to hide latency, small enough to be kind to whoever is called."""

LOOP_VISITS_MAX = 1_000
"""Rounds of a loop without an explicit `max_visits`; a runaway loop ends with a clear failure."""

NODE_VISITS_MAX = 1_000
"""How often `hf.goto` or a ticket may lead to one node again, unless a workflow says otherwise; a journey that runs in
circles ends with a clear failure."""

CHILD_DEPTH_MAX = 20
"""Children of children; a workflow that starts itself ends with a clear failure."""

REMEMBERED_CALLS_WARN = 10_000
"""Remembered calls since the last checkpoint at which the run warns: replay begins to be felt."""

REMEMBERED_CALLS_MAX = 200_000
"""Remembered calls since the last checkpoint at which the node fails with the hint to checkpoint."""

BUFFERED_EVENTS_MAX = 1_000
"""Events a `lazy` or `interval` run may hold back; bounds what a crash repeats and what memory holds."""

BUFFERED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes a `lazy` or `interval` run may hold back, for the same reason."""

LEASE_SECONDS = 10.0
"""How long an engine on another host may be silent before its runs are taken over."""

LEASE_SECONDS_MIN = 0.2
"""A lease must outlive a few commits on a slow disk and the pauses of a busy machine; engines with shorter ones take
runs from each other and nobody gets anything done."""

LOOP_STALL_SECONDS = 60.0
"""An engine whose event loop has not ticked for this long stops renewing: a stuck process must not keep runs."""

GRACE_SECONDS = 10.0
"""How long bodies may clean up after a cancel, a timeout or a shutdown."""

IDLE_SECONDS = 5.0
"""How long a suspended run stays in memory; a quick answer then costs no reload."""

RETRY_IN_MEMORY_SECONDS = 1.0
"""A retry due sooner keeps its run running; a later one suspends it on a timer."""

DELAY_SECONDS_MAX = 1_000 * 365.25 * 86_400
"""A thousand years, for delays, sleeps and deadlines: beyond the year 9999 an instant cannot be shown any more."""

SWEEP_SECONDS = 30.0
"""How often an engine looks for orphaned work by itself; notifications make it quicker, this makes it certain."""

POLL_SECONDS = 0.05
"""How often an engine asks SQLite whether another process has written."""

MAX_RECOVERIES = 10
"""Consecutive recoveries without progress before a run is put on hold."""

SUSPECT_RECOVERIES = 3
"""From this recovery in a row on a run goes on alone: two crashes may have been anybody's."""

SUSPECT_PATIENCE_SECONDS = 1.0
"""How long a suspect waits for a moment when nothing else runs, before new bodies have to wait for it."""

SUSPECT_PATIENCE_SECONDS_MAX = 60.0
"""How long new bodies wait for those that run, at most, so that a suspect gets its turn."""

ISOLATION_SECONDS_MAX = 600.0
"""How long one body may keep all others waiting; beyond that it may itself be waiting for one of them."""

SYNC_THREADS = 32
"""Threads for sync bodies; they mostly wait for something, and each costs about 100 KiB."""

GIVEN_UP_THREADS_MAX = 16
"""Threads lost to bodies that ignore their timeout before an engine takes no more sync bodies."""

VALUE_CACHE_BYTES = 64 * 1024 * 1024
"""Outputs kept in memory for their consumers, over all runs of an engine."""

NAME_LENGTH_MAX = 200
"""Names of nodes, workflows, variables, runs, people, baskets and signals; they are index keys and stand in paths."""

PRIORITY_MAX = 1_000_000_000
"""Priorities are between minus this and this: databases compare them as numbers of 64 bits, also multiplied."""

TEXT_LENGTH_MAX = 10_000
"""Characters of a question or a reason: they are read by people, in lists. What is longer belongs into `about`."""

EXPRESSION_NODES_MAX = 20_000
"""Parts of one expression. A join may list thousands of nodes; beyond this a map is the better way."""

EXPRESSION_DEPTH_MAX = 50
"""Nesting of one expression; evaluation recurses."""

JSON_DEPTH_MAX = 200
"""Nesting of values from outside; decoders recurse."""

ORPHAN_SECONDS = 300.0
"""How long begun work may be without an owner before the doctor calls it left alone; an engine that starts takes over
within seconds."""

DOCTOR_PATIENCE_SECONDS = 60.0
"""How long a run may not know that another one it waits for has ended; a sweep finds it within 30 s."""

ANSWER_PROBLEMS_MAX = 20
"""Problems of one answer that are told; whoever has more than that has sent something else altogether."""

ANSWER_PROBLEM_LENGTH_MAX = 300
"""Characters of one such problem; it is one line for a person."""

ANSWER_SEARCHED_BYTES_MAX = 65_536
"""Of a longer answer only the first problem is told: finding all of 100,000 takes a second."""

SCHEMAS_COMPILED_MAX = 256
"""JSON Schemas kept ready to check answers by; compiling one costs several times what checking by it does."""
