"""Limits: every number that bounds something that could grow, with the reason for it.

Owns: the defaults. Settings override the ones that users may differ about. And the unit in which times are counted.
"""

SECOND = 1_000_000
"""Instants and durations are microseconds."""

EMITTED_KEPT = 1_000
"""Values that a live body has shown with ctx.emit and that are kept for those who begin to watch later."""

HTTP_SECONDS = 30.0
"""How long a request of `http` may take with its response, unless its config says otherwise."""

HTTP_BYTES_MAX = 900_000
"""Bytes of a response, which becomes an output: with its headers it must fit into an event (INLINE_LIMIT_BYTES)."""

HTTP_PROBLEM_LENGTH = 2_000
"""Characters of the body of a refused request that its error has: a person reads them."""

HTTP_REDIRECTS_MAX = 10
"""Redirects that a config may allow."""

LLM_SECONDS = 300.0
"""How long a completion of `llm` may take, unless its config says otherwise: long ones take minutes."""

LLM_STREAM_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a streamed completion; each token comes in some hundred bytes of JSON."""

SHELL_SECONDS = 60.0
"""How long a program of `shell` may run, unless its config says otherwise."""

SHELL_BYTES_MAX = 200_000
"""Bytes of each of the two outputs of a program: they become an output of the node."""

SECRET_LENGTH_MIN = 4
"""Characters of a secret: a shorter value would be found in every text, and hiding it would make texts unreadable."""

SECRET_BYTES_MAX = 65_536
"""Bytes of a secret: a key or a certificate, no more."""

SECRET_PREFIX_HIDDEN = 8
"""Texts are cut, perhaps in the middle of a secret: so many of its first characters are hidden wherever they stand."""

INLINE_LIMIT_BYTES = 1_000_000
"""A value up to this size lives in its event; reading a journal page must stay quick."""

CAPTURED_BYTES_MAX = 4_096
"""What rules may keep of one node's output; RunState of a wide run must fit in memory."""

ERROR_BYTES_MAX = 16_384
"""Type, message and the user's frames of one failure; more is cut, so that a loop of failures cannot fill the disk."""

ERROR_DETAILS_BYTES_MAX = 16_384
"""JSON of the arguments and attributes of one failure, by which it is raised again; larger ones are left out, so that
an exception that carries a whole response does not fill the journal with it."""

ERROR_KINDS_BYTES_MAX = 4_096
"""The names of a failure's class and its bases; longer ones are cut."""

MAP_LIMIT_DEFAULT = 100
"""Items of one map in flight; enough to hide latency, small enough not to overload the called service."""

LOOP_VISITS_MAX = 1_000
"""Rounds of a loop without an explicit `max_visits`; a runaway loop ends with a clear failure."""

NODE_VISITS_MAX = 1_000
"""How often `hf.goto` or a ticket may lead to one node again, unless a workflow sets another limit; a run that goes in
circles ends with a clear failure."""

CHILD_DEPTH_MAX = 20
"""Children of children; a workflow that starts itself ends with a clear failure."""

REMEMBERED_CALLS_WARN = 10_000
"""Remembered calls since the last checkpoint at which the run warns: replay begins to be felt."""

REMEMBERED_CALLS_MAX = 200_000
"""Remembered calls since the last checkpoint at which the node fails with the hint to checkpoint."""

TASK_SCOPE_LENGTH_MAX = 200
"""Characters by which tasks in tasks may lengthen the scope that is stored with each of their calls; beyond it the path
is stored as a digest, so that a chain of a thousand tasks does not fill the journal with names."""

REHEARSAL_SECONDS = 30.0
"""How long a body is replayed to find out what a change of its code would reuse; the replay only runs its own code."""

BUFFERED_EVENTS_MAX = 1_000
"""Events a `lazy` or `interval` run may hold back; bounds what a crash repeats and what memory holds."""

BUFFERED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes a `lazy` or `interval` run may hold back, for the same reason."""

LEASE_SECONDS = 10.0
"""How long an engine on another host may be silent before its runs are taken over."""

LEASE_SECONDS_MIN = 0.2
"""A lease must outlive a few commits on a slow disk and the pauses of a busy machine; engines with shorter ones claim
runs from each other and make no progress."""

LOOP_STALL_SECONDS = 60.0
"""An engine whose event loop has not ticked for this long stops renewing: a stuck process must not keep its runs."""

GRACE_SECONDS = 10.0
"""How long bodies may clean up after a cancel, a timeout or a shutdown."""

IDLE_SECONDS = 5.0
"""How long a suspended run stays in memory; a quick answer then costs no reload."""

RETRY_IN_MEMORY_SECONDS = 1.0
"""A retry due sooner keeps its run running; a later one suspends it on a timer."""

DELAY_SECONDS_MAX = 1_000 * 365.25 * 86_400
"""A thousand years, for delays, sleeps and deadlines: beyond the year 9999 an instant cannot be shown."""

SWEEP_SECONDS = 30.0
"""How often an engine polls for runs without an owner; notifications make it quicker, polling makes it certain."""

POLL_SECONDS = 0.05
"""How often an engine asks SQLite whether another process has written."""
OUTCOME_POLL_SECONDS = 0.5
"""How often the store is queried for the outcome of a request whose run another process owns: a person or a program
waits for it."""

MAX_RECOVERIES = 10
"""Consecutive recoveries without progress before a run is put on hold."""

SUSPECT_RECOVERIES = 3
"""From this recovery in a row on the bodies of a run execute in spawned processes: two crashes may be coincidence."""

ISOLATED_PROCESSES = 16
"""Spawned processes for bodies of suspects, per engine. Each costs about 40 MiB; most suspects are innocent and wait
for something else than the processor."""

SYNC_THREADS = 32
"""Threads for sync bodies; they mostly wait for something, and each costs about 100 KiB."""

GIVEN_UP_THREADS_MAX = 16
"""Threads lost to bodies that ignore their timeout before an engine starts no more sync bodies."""

VALUE_CACHE_BYTES = 64 * 1024 * 1024
"""Outputs kept in memory for their consumers, over all runs of an engine."""

NAME_LENGTH_MAX = 200
"""Names of nodes, workflows, variables, runs, people, baskets and signals; they are index keys and stand in paths."""

PRIORITY_MAX = 1_000_000_000
"""Priorities are between minus this and this: databases compare them as numbers of 64 bits."""

UNDO_PORTION = 10_000
"""Steps to compensate that are read at once: a run that made a million is undone in portions, each of which reads its
journal once."""

TEXT_LENGTH_MAX = 10_000
"""Characters of a question or a reason: they are read by people, in lists. What is longer belongs into `about`."""

EXPRESSION_NODES_MAX = 20_000
"""Parts of one expression. A join may list thousands of nodes; beyond this a map is the better way."""

EXPRESSION_DEPTH_MAX = 50
"""Nesting of one expression; evaluation recurses."""

EXPRESSION_CHARS_MAX = 1_000_000
"""Characters of the text of one expression or template in a document: enough for EXPRESSION_NODES_MAX parts."""

NUMBER_BITS_MAX = 1024
"""Bits of a whole number that an expression computes: what a floating-point number can hold, roughly. Multiplying again
and again would fill the memory."""

JSON_DEPTH_MAX = 200
"""Nesting of values from outside; decoders recurse."""

ORPHAN_SECONDS = 300.0
"""How long a started run may be without an owner before the doctor reports it; an engine that starts claims it within
seconds."""

DOCTOR_PATIENCE_SECONDS = 60.0
"""How long a run may wait for another one that has ended; a sweep finds it within 30 s."""

ANSWER_PROBLEMS_MAX = 20
"""Problems of one answer that are reported; an answer with more of them was meant for something else."""

ANSWER_PROBLEM_LENGTH_MAX = 300
"""Characters of one such problem; it is one line for a person."""

ANSWER_SEARCHED_BYTES_MAX = 65_536
"""Of a longer answer only the first problem is reported: finding all of 100,000 takes a second."""

TRUSTED_FILES_MAX = 10_000
"""Files of code that a user has allowed, over all databases; the oldest are forgotten, which costs a question."""

SCHEMA_PARTS_MAX = 2_000
"""Parts of a JSON Schema that apply to one place of a value; checking by them takes tens of milliseconds. 2 KB of
definitions that name each other twice would be half a billion, and keep the event loop for seconds."""

SCHEMA_STEPS_MAX = 200_000
"""Parts that are followed to find that out; a schema of 1 MB has about 20,000."""

SCHEMAS_COMPILED_MAX = 256
"""JSON Schemas kept ready to check answers by; compiling one costs several times what checking by it does."""

# --- reading: pages that keep one read short, and what a person can read -------------------------------------------

DOCTOR_RUNS_AT_ONCE = 5_000
"""Runs of one survey of the doctor: a few hundred milliseconds."""

DOCTOR_EVENTS_AT_ONCE = 10_000
"""Events that an audit reads at once; 10,000 are a few megabytes."""

CLOCK_SLACK_MICROSECONDS = 1_000_000
"""How much too early a timer may seem to have fired: wall clocks are set back by a little all the time."""

WAITS_AT_ONCE = 500
"""Runs whose waits are read at once."""

UNDRIVEN_COUNTED_MAX = 1_000
"""Unfinished runs that are read to count those without an engine: an operator learns nothing more from a larger
number."""

PROBLEMS_LISTED_MAX = 50
"""Problems of a definition, or members of a cycle, that one message lists; `DefinitionError.problems` has all."""

INSTANCES_LISTED_MAX = 20
"""Instances that an error lists; a map can have any number."""

QUOTED_LENGTH_MAX = 60
"""Characters of a value that a message quotes."""

WHY_NAMED_MAX = 3
"""Nodes and waits that the paragraph of `why` names; the view of the run has all of them."""

LOG_BYTES = 4 * 1024 * 1024
"""How long the write-ahead log of a SQLite file is made when the file is opened. To overwrite a log in place is quicker
than to make it longer, because the new length has to be written as well: without this, steps took 1.3 to 1.4 times as
long until the first checkpoint. Making it takes some milliseconds."""

CHOSEN_COUNTER_MIN = 1 << 30
"""Change counters of SQLite files that Holdfast chooses at random are between this and twice as much: a database that
counts its commits from 1 does not come there."""

BACKUP_COUNTER_STEP = 1024
"""Those of backups are multiples of it: a million different ones, and of other files that have such a counter by chance
one in so many is taken for a backup, which costs a write."""

WAITING_READ_MAX = 100
"""Suspended runs, the newest, that an opening engine reads to warn of code that is not loaded: reading all of a million
would delay it, and the others are warned of when they wake."""

BODY_CHECK_SECONDS = 0.25
"""How often a step that waits for a thread, or for a slot of its node, checks whether its body is still wanted."""

ERROR_CAUSES_MAX = 5
"""Causes of an exception that are recorded with it: each further one adds little, and they may form a circle."""

PROCESS_REAP_SECONDS = 5.0
"""How long the caller of a killed body waits for its process to be gone; only a hanging disk makes it longer."""

PROCESS_END_SECONDS = 1.0
"""How long a process may take to end after its pipe has: the kernel closes that just before."""

FRAME_BYTES_MAX = 1 << 32
"""No frame between an engine and its processes is as long. What user code writes into a pipe by accident, such as text,
would be a length far beyond it."""

ISOLATED_DEATH_SECONDS = 0.25
"""How long an engine must outlive the process of a quarantined body before that death counts against the body: a signal
to a whole group or container ends the engine as well, a moment later."""

ISOLATED_SPAWN_SECONDS = 1.0
"""How soon a process for a quarantined body is spawned again where the system refused it."""

ISOLATED_OVERDUE_SECONDS = 2.0
"""How much longer than its grace time such a process may take to cancel or time out its body before it is killed."""

ISOLATED_IDLE_SECONDS = 10.0
"""How long such a process is kept for the next quarantined body."""

ISOLATED_READY_SECONDS = 0.1
"""How long such a process may take, after its body has ended, to be ready for another one; else it is killed."""

ISOLATED_THREADS_SECONDS = 0.05
"""How long threads of a quarantined body may take to end before its process counts as used up."""

ISOLATED_PROGRESS_SECONDS = 0.25
"""How often such a process reports the progress of its body to the engine."""

DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
"""A file with workflows; 100,000 nodes are about 20 MB."""

DOCUMENT_VALUES_MAX = 3_000_000
"""Values and keys in one document: they are in memory at once, and 100,000 nodes have about two million."""

DOCUMENT_DEPTH_MAX = 100
"""Nesting of values in a document; compilers recurse over it."""

DOCUMENT_INTEGER_MAX = 2**63 - 1
"""The largest whole number that every reader of a journal can hold."""

BUCKETS = 10_000
"""Buckets that the starts of a workflow fall into, by key: a share of an alias is a number of them, hundredths of a per
cent, which is finer than a roll-out needs and coarse enough to be written."""

DOCUMENT_PROBLEMS_MAX = 1_000
"""Problems of one document that are reported; a document with more of them is of another kind."""

TITLE_LENGTH_MAX = 255
"""Characters of the id that an author gives to a node of a document; its internal name is derived from it."""

MIGRATED_AT_ONCE_MAX = 8
"""Runs whose migration to another version is under way at once: each reads and folds a whole journal in a thread."""
