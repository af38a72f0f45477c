"""Validation: every problem at once, each with its code, node and field."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import ordering, validation
from holdfast.model import problems as problems_module
from holdfast.model.definition import Body, Definition, NodeDef, Param, Phase, Settings, decode
from holdfast.model.errors import DefinitionError
from holdfast.model.handlers import CodeLocation, Handler, Parameter
from holdfast.model.policies import Retry
from holdfast.model.validation import Problem, check, load, topological_order


def call(node_id: str, *needs: str, **fields: Any) -> NodeDef:
    args = {f"x{i}": ["node", n] for i, n in enumerate(needs)} | fields.pop("args", {})
    return NodeDef(id=node_id, uses=fields.pop("uses", "shop.work"), args=args, **fields)


def flow(*nodes: NodeDef, **fields: Any) -> Definition:
    return Definition(name=fields.pop("name", "flow"), nodes=nodes, **fields)


def mapped(node_id: str, *inner: NodeDef, **fields: Any) -> NodeDef:
    body = Body(nodes=inner, result=fields.pop("result", None))
    return NodeDef(id=node_id, kind="map", over=fields.pop("over", ["const", [1]]), item="item", body=body, **fields)


def looped(node_id: str, *inner: NodeDef, **fields: Any) -> NodeDef:
    body = Body(nodes=inner, result=fields.pop("result", None))
    until = fields.pop("until", True)
    return NodeDef(id=node_id, kind="loop", start=1, until=until, item="value", body=body, **fields)


def found(definition: Definition, **options: Any) -> list[tuple[str, str, str]]:
    return [(p.code, p.node, p.field) for p in check(definition, **options)]


VALID = flow(
    call("a", phase="one", args={"o": ["get", ["input", "order"], "id"]}),
    call("b", "a", when=["gt", ["size", ["node", "m"]], 1], after=("a",)),
    mapped(
        "m",
        call("m", args={"i": ["param", "m", "item"], "k": ["param", "m", "extra"], "o": ["node", "a"]}),
        call("inner", "m"),
        looped(
            "l",
            call("l", args={"v": ["param", "l", "value"], "i": ["param", "m", "item"]}),
            until=["gt", ["node", "l"], 3],
        ),
        args={"extra": ["var", "seen"]},
        over=["get", ["node", "a"], "items"],
        result=["node", "inner"],
    ),
    call("c", lane="route_1.eu.", retry=Retry(attempts=2), timeout=1.5),
    params=(Param(name="order"),),
    variables={"seen": {"type": "integer"}},
    phases=(Phase(name="one"), Phase(name="two", after="one")),
    result=["first", ["node", "b"], None],
)


def test_a_valid_definition_has_no_problems_and_survives_json() -> None:
    assert check(VALID) == []
    assert check(VALID, known={"shop.work"}) == []
    assert load(VALID.encode()) == VALID
    assert load(VALID.encode()).content_hash() == VALID.content_hash()


def test_a_description_makes_no_new_version_and_anything_else_does() -> None:
    assert msgspec.structs.replace(VALID, doc="new words").content_hash() == VALID.content_hash()
    assert msgspec.structs.replace(VALID, result=None).content_hash() != VALID.content_hash()


def test_an_empty_workflow_is_valid() -> None:
    assert check(flow()) == []


def nested(depth: int) -> NodeDef:
    node = call("inmost")
    for number in range(depth):
        node = mapped(f"m{number}", node)
    return node


BAD = [
    (flow(call("a", "b")), ("unknown_node", "a", "args.x0")),
    (flow(call("a", after=("b",))), ("unknown_node", "a", "after")),
    (flow(call("a", when=["skipped", ["node", "b"]])), ("unknown_node", "a", "when")),
    (flow(call("a"), result=["node", "b"]), ("unknown_node", "", "result")),
    (flow(call("a", "a")), ("self_loop", "a", "")),
    (flow(call("a"), call("a")), ("duplicate_id", "a", "id")),
    (flow(call("a", args={"x": ["input", "o"]})), ("unknown_input", "a", "args.x")),
    (flow(call("a", args={"x": ["var", "v"]})), ("unknown_variable", "a", "args.x")),
    (flow(call("a", args={"x": ["param", "m", "item"]})), ("unknown_param", "a", "args.x")),
    (flow(mapped("m", call("i", args={"x": ["param", "m", "itme"]}))), ("unknown_param", "m/i", "args.x")),
    (flow(call("a", args={"x": ["nope"]})), ("bad_expression", "a", "args.x")),
    (flow(call("a", when=["eq", 1])), ("bad_expression", "a", "when")),
    (flow(call("a", args={"x": {"y": 1}})), ("bad_expression", "a", "args.x")),
    (flow(call("a", phase="p")), ("unknown_phase", "a", "phase")),
    (flow(phases=(Phase(name="p", after="q"),)), ("unknown_phase", "", "phases")),
    (flow(phases=(Phase(name="p"), Phase(name="p"))), ("duplicate_id", "", "phases")),
    (flow(phases=(Phase(name="p", after="p"),)), ("phase_cycle", "", "phases")),
    (flow(params=(Param(name="p"), Param(name="p"))), ("duplicate_id", "", "params")),
    (flow(call("a.b")), ("bad_name", "a.b", "id")),
    (flow(call("")), ("bad_name", "", "id")),
    (flow(call("x" * 201)), ("bad_name", "x" * 201, "id")),
    (flow(name="a@b"), ("bad_name", "", "name")),
    (flow(call("a", lane="route..")), ("bad_name", "a", "lane")),
    (flow(call("a", timeout=0)), ("bad_timeout", "a", "timeout")),
    (flow(call("a", timeout=float("inf"))), ("bad_timeout", "a", "timeout")),
    (flow(call("a", heartbeat=-1)), ("bad_timeout", "a", "heartbeat")),
    (flow(call("a", concurrency=0)), ("bad_limit", "a", "concurrency")),
    (flow(call("a", retry=Retry(attempts=0))), ("bad_retry", "a", "retry")),
    (flow(call("a", retry=Retry(jitter=1.5))), ("bad_retry", "a", "retry")),
    (flow(call("a", retry=Retry(backoff=-1))), ("bad_retry", "a", "retry")),
    (flow(call("a", retry=Retry(max_delay=1e300))), ("bad_retry", "a", "retry")),
    (flow(call("a", retry=Retry(factor=0.5))), ("bad_retry", "a", "retry")),
    (flow(call("a", compensate_retry=Retry(attempts=-1))), ("bad_retry", "a", "compensate_retry")),
    (flow(mapped("m", call("i"), limit=0)), ("bad_limit", "m", "limit")),
    (flow(mapped("m", call("i"), over=None)), ("bad_node", "m", "over")),
    (flow(looped("l", call("i"), max_visits=0)), ("bad_max_visits", "l", "max_visits")),
    (flow(looped("l", call("i"), until=None)), ("bad_node", "l", "until")),
    (flow(NodeDef(id="m", kind="map", over=["const", []], item="i")), ("bad_node", "m", "body")),
    (flow(call("a", over=["const", []])), ("bad_node", "a", "kind")),
    (flow(call("a", uses="")), ("unknown_handler", "a", "uses")),
    (flow(mapped("m", call("i"), result=["node", "j"])), ("unknown_node", "m", "body.result")),
    (flow(mapped("m", call("i", "m"))), ("self_loop", "m/i", "args.x0")),
    (flow(looped("l", call("i"), until=["node", "j"])), ("unknown_node", "l", "until")),
    (flow(mapped("m", call("i")), call("a", "i")), ("inside_scope", "a", "args.x0")),
    (flow(mapped("m", call("i")), mapped("k", call("j", "i"))), ("inside_scope", "k/j", "args.x0")),
    (
        flow(mapped("m", call("i")), call("a", when=["eq", ["get", ["node", "m"], 0], 1])),
        ("map_condition", "a", "when"),
    ),
    (flow(mapped("m", call("i")), call("a", when=["contains", ["node", "m"], 1])), ("map_condition", "a", "when")),
    (
        flow(looped("l", mapped("m", call("i")), until=["size", ["get", ["node", "m"], 0]])),
        ("map_condition", "l", "until"),
    ),
    (flow(settings=Settings(persistence="interval")), ("bad_setting", "", "persistence")),
    (flow(settings=Settings(persistence="interval:0s")), ("bad_setting", "", "persistence")),
    (flow(settings=Settings(on_failure="pend:")), ("bad_setting", "", "on_failure")),
    (flow(settings=Settings(timeout=0)), ("bad_setting", "", "timeout")),
    (flow(settings=Settings(on_failure="panic")), ("bad_setting", "", "on_failure")),
    (flow(settings=Settings(on_code_change="panic")), ("bad_setting", "", "on_code_change")),
    (flow(settings=Settings(concurrency=0)), ("bad_setting", "", "concurrency")),
    (flow(settings=Settings(queue="")), ("bad_setting", "", "queue")),
    (flow(settings=Settings(max_recoveries=0)), ("bad_setting", "", "max_recoveries")),
    (flow(settings=Settings(max_visits=0)), ("bad_setting", "", "max_visits")),
    (flow(settings=Settings(priority="high")), ("bad_setting", "", "priority")),
    (flow(settings=Settings(priority=10**12)), ("bad_setting", "", "priority")),
    (flow(call("a", phase="p"), phases=(Phase(name="other"),)), ("unknown_phase", "a", "phase")),
    (flow(*(call(f"n{i}") for i in range(9)), result=["node", "b"]), ("unknown_node", "", "result")),
    (flow(call("a", priority="high")), ("bad_priority", "a", "priority")),
    (flow(call("a", priority=True)), ("bad_priority", "a", "priority")),
    (flow(call("a", priority=-(10**12))), ("bad_priority", "a", "priority")),
    (flow(call("a", compensate="undo", compensate_inputs=("b",))), ("bad_compensation", "a", "compensate_inputs")),
    (flow(call("a", secrets={"/token": "TOKEN"})), ("bad_secret", "a", "secrets")),
    (flow(call("a", args={"token": None}, secrets={"/token": "NO NAME"})), ("bad_secret", "a", "secrets")),
    (flow(call("a", delay=-1)), ("bad_delay", "a", "delay")),
    (flow(mapped("m", call("i"), delay=1)), ("bad_delay", "m", "delay")),
    (flow(mapped("m", call("i"), uses="shop.work")), ("bad_node", "m", "uses")),
    (flow(NodeDef(id="m", kind="map", over=["const", []], body=Body(nodes=()))), ("bad_name", "m", "item")),
    (flow(nested(52)), ("bad_node", "/".join(f"m{i}" for i in range(51, 0, -1)), "body")),
    (flow(call("a", "b"), call("b", "a"), call("c", "b")), ("unreachable", "c", "")),
    (flow(call("a", "b"), call("b", "a")), ("cycle", "a", "")),
    (flow(call("a", "b"), call("b", "a")), ("no_entry", "", "")),
    (flow(call("a", "b"), call("b", "a")), ("no_exit", "", "")),
    (flow(tickets={"back": "a"}), ("bad_target", "", "tickets.back")),
]


@pytest.mark.parametrize(("definition", "expected"), BAD)
def test_each_problem_is_found_where_it_is(definition: Definition, expected: tuple[str, str, str]) -> None:
    problems = check(definition)
    assert expected in [(p.code, p.node, p.field) for p in problems]
    assert [p for p in problems if not p.hint or p.hint == p.message] == []


def test_every_code_that_validation_reports_is_among_them() -> None:
    source = "".join(map(inspect.getsource, (validation, ordering, problems_module)))
    reported = set(re.findall(r'\b(?:add|count)\(\s*"(\w+)"|Problem\(code="(\w+)"', source))
    elsewhere = {
        "type_mismatch",  # needs handlers: test_obvious_type_mismatches_between_known_types_are_found
        "bad_milestone",  # test_journey_shape.py
    }
    assert {a or b for a, b in reported} == {code for _, (code, _, _) in BAD} | elsewhere


def test_a_name_that_is_like_no_other_gets_what_there_is_as_a_hint() -> None:
    (problem,) = check(flow(*(call(f"n{i}") for i in range(9)), result=["node", "charge"]))
    assert problem.hint == "the nodes here are 'n0', 'n1', 'n2', 'n3', 'n4' and 4 more"
    (problem,) = check(flow(result=["node", "charge"]))
    assert problem.hint == "there are no nodes here"


@pytest.mark.parametrize("persistence", ["aggressive", "lazy", "interval:10s", "interval:1m30s"])
def test_persistence_as_people_write_it(persistence: str) -> None:
    assert check(flow(settings=Settings(persistence=persistence))) == []


def test_a_cycle_is_reported_once_with_its_members_in_the_direction_of_the_values() -> None:
    problems = check(flow(call("a", "c"), call("b", "a"), call("c", "b"), call("behind", "c"), call("free")))
    assert [(p.code, p.node) for p in problems] == [("cycle", "a"), ("unreachable", "behind")]
    assert "a -> b -> c -> a" in problems[0].message


def test_two_cycles_are_two_problems() -> None:
    problems = check(flow(call("a", "b"), call("b", "a"), call("c", "d", "a"), call("d", "c")))
    assert [p.message for p in problems if p.code == "cycle"] == [
        "the nodes wait for each other: a -> b -> a",
        "the nodes wait for each other: c -> d -> c",
    ]
    assert {"no_entry", "no_exit"} <= {p.code for p in problems}


def test_a_cycle_through_a_map_body_is_a_cycle_of_the_map() -> None:
    problems = check(flow(mapped("m", call("i", "after_m")), call("after_m", "m")))
    assert ("cycle", "after_m") in [(p.code, p.node) for p in problems]


def test_a_cycle_inside_a_body_is_found_there() -> None:
    assert ("cycle", "m/i", "") in found(flow(mapped("m", call("i", "j"), call("j", "i"))))


def test_a_body_may_use_an_id_of_the_outside_for_its_own_node() -> None:
    assert check(flow(call("a"), mapped("m", call("a"), call("b", "a")))) == []


def test_all_problems_come_at_once_and_the_error_lists_them() -> None:
    broken = flow(call("a", "x", timeout=-1), call("b.c", "b.c"), call("a"), settings=Settings(on_failure="panic"))
    with pytest.raises(DefinitionError) as raised:
        load(broken.encode())
    codes = [p.code for p in raised.value.problems]
    assert {"unknown_node", "bad_timeout", "bad_name", "self_loop", "duplicate_id", "bad_setting"} <= set(codes)
    assert all(p.code in raised.value.message and p.message in raised.value.message for p in raised.value.problems)


def test_a_misspelled_name_gets_a_hint() -> None:
    (problem,) = check(flow(call("charge"), call("ship", "chrage")))
    assert problem.hint == "did you mean 'charge'?"
    assert str(problem) == "node 'ship'.args.x0: there is no node 'chrage' (did you mean 'charge'?)"


def test_handlers_are_checked_where_they_are_known() -> None:
    definition = flow(call("a", uses="shop.gone", compensate="shop.undo"), call("s", uses="holdfast.sleep"))
    assert found(definition) == []
    assert found(definition, known={"shop.undo"}) == [("unknown_handler", "a", "uses")]
    assert found(definition, known=()) == [("unknown_handler", "a", "uses"), ("unknown_handler", "a", "compensate")]
    assert len(check(definition, find=lambda name: None)) == 2


def test_a_compensation_must_be_callable_with_the_inputs_that_the_definition_names() -> None:
    def handler(name: str, *params: str) -> Handler:
        listed = tuple(Parameter(param, Any, True) for param in params)
        code = CodeLocation(kind="process")
        return Handler(
            name=name, fn=print, kind="sync", takes_ctx=False, params=listed, returns=Any, fingerprint="", code=code
        )

    there = {"shop.book": handler("shop.book", "city"), "undo": handler("undo", "booking", "city")}
    there["odd"] = handler("odd", "booking", "town")
    book = NodeDef(id="a", uses="shop.book", args={"city": ["const", "Oslo"]}, compensate="undo")
    fits = msgspec.structs.replace(book, compensate_inputs=("city",))
    assert check(flow(fits), find=there.get) == []
    (problem,) = check(flow(book), find=there.get)
    assert (problem.code, problem.hint) == ("bad_compensation", "set compensate_inputs=['city']")
    (problem,) = check(flow(msgspec.structs.replace(book, compensate="odd")), find=there.get)
    assert "nothing gives it a value for town" in problem.message


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"name": 1}', b'{"name": "x", "nodes": [{"id": 3}]}', b"\xff", b"[" * 10_000]
)
def test_what_is_no_definition_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(DefinitionError, match="this is not a workflow definition"):
        load(data)


# --- types ---


def handler(**params: Any) -> Handler:
    return Handler(
        name="shop.work",
        fn=print,
        kind="sync",
        takes_ctx=False,
        params=tuple(Parameter(name=n, annotation=a, required=True) for n, a in params.items()),
        returns=Any,
        fingerprint="",
        code=CodeLocation(kind="process"),
    )


class Order(msgspec.Struct):
    id: str
    amount: int
    tags: list[str]


ORDER = {"$ref": "#/$defs/Order", "$defs": msgspec.json.schema(Order)["$defs"]}


@pytest.mark.parametrize(
    ("annotation", "expr", "message"),
    [
        (int, "text", "takes integer, and gets string"),
        (str, ["node", "source"], "takes string, and gets object"),
        (int, ["get", ["node", "source"], "id"], "takes integer, and gets string"),
        (str, ["get", ["get", ["input", "order"], "tags"], 0], None),
        (int, ["get", ["get", ["input", "order"], "tags"], 0], "takes integer, and gets string"),
        (list[str], ["node", "source"], "takes array, and gets object"),
        (Order, ["node", "source"], None),
        (Order, ["const", {"id": "a"}], None),
        (float, ["get", ["node", "source"], "amount"], None),
        (int | None, None, None),
        (int, None, "takes integer, and gets null"),
        (Any, ["node", "source"], None),
        (int, ["get", ["node", "source"], "unknown"], None),
        (bool, ["gt", 1, 2], None),
        (str, ["eq", 1, 2], "takes string, and gets boolean"),
        (int, ["text", "x"], "takes integer, and gets string"),
        (int, ["first", ["node", "source"], 1], None),
        (list[int], ["node", "m"], None),
        (str, ["node", "m"], "takes string, and gets array"),
    ],
)
def test_obvious_type_mismatches_between_known_types_are_found(annotation: Any, expr: Any, message: str | None) -> None:
    definition = flow(
        NodeDef(id="source", uses="shop.source", returns=ORDER),
        mapped("m", NodeDef(id="i", uses="shop.source")),
        NodeDef(id="work", uses="shop.work", args={"x": expr}),
        params=(Param(name="order", schema=ORDER),),
    )
    known = {"shop.work": handler(x=annotation), "shop.source": handler()}
    problems = check(definition, find=known.get)
    assert [p.message for p in problems] == ([] if message is None else [message])
    if message is not None:
        assert (problems[0].code, problems[0].node, problems[0].field) == ("type_mismatch", "work", "args.x")
        assert problems[0].hint == "convert it in a node between them"


# --- order ---


@st.composite
def graphs(draw: st.DrawFn) -> Definition:
    """A random acyclic graph whose nodes stand in random order."""
    size = draw(st.integers(1, 30))
    needs = [draw(st.sets(st.integers(0, i - 1), max_size=4)) if i else set() for i in range(size)]
    nodes = [
        call(
            f"n{i}",
            *(f"n{n}" for n in sorted(refs)),
            when=draw(st.sampled_from([None, True, ["eq", ["input", "p"], "x"]])),
            timeout=draw(st.none() | st.floats(0.1, 1e6)),
            retry=draw(st.none() | st.builds(Retry, attempts=st.integers(1, 9), on=st.just((ValueError,)))),
            phase=draw(st.sampled_from([None, "one"])),
            args={"c": ["const", draw(st.lists(st.integers() | st.text(), max_size=3))]},
        )
        for i, refs in enumerate(needs)
    ]
    order = draw(st.permutations(nodes))
    return flow(*order, params=(Param(name="p", default=draw(st.integers())),), phases=(Phase(name="one"),))


@given(graphs())
def test_a_random_graph_is_valid_ordered_and_survives_json(definition: Definition) -> None:
    assert check(definition) == []
    order = topological_order(definition)
    place = {node: i for i, node in enumerate(order)}
    assert sorted(order) == sorted(n.id for n in definition.nodes)
    for node in definition.nodes:
        assert all(place[e[1]] < place[node.id] for e in node.args.values() if e[0] == "node")
    again = decode(definition.encode())
    assert again == definition
    assert again.encode() == definition.encode()


@given(graphs(), st.data())
def test_an_edge_back_makes_a_cycle_that_is_found(definition: Definition, data: st.DataObject) -> None:
    order = topological_order(definition)
    late = data.draw(st.sampled_from(order))
    needs = {n.id: [e[1] for e in n.args.values() if e[0] == "node"] for n in definition.nodes}
    upstream, stack = {late}, [late]
    while stack:
        for ref in needs[stack.pop()]:
            if ref not in upstream:
                upstream.add(ref)
                stack.append(ref)
    early = data.draw(st.sampled_from(sorted(upstream)))
    nodes = [msgspec.structs.replace(n, after=(late,)) if n.id == early else n for n in definition.nodes]
    broken = msgspec.structs.replace(definition, nodes=tuple(nodes))
    problems = check(broken)
    assert {p.code for p in problems} & {"cycle", "self_loop"}
    if early != late:
        with pytest.raises(DefinitionError, match="cycle among"):
            topological_order(broken)


LARGE = [10_000, pytest.param(100_000, marks=pytest.mark.soak)]
"""More nodes than Python has frames; a check that compares each node with each other one does not end in time."""


@pytest.mark.parametrize("count", LARGE)
def test_a_large_graph_is_validated(count: int) -> None:
    nodes = [call(f"n{i}", *(f"n{i - j}" for j in (1, 2) if i >= j)) for i in range(count)]
    definition = flow(*nodes)
    assert check(definition, known={"shop.work"}) == []
    assert len(topological_order(definition)) == count


@pytest.mark.parametrize("count", LARGE)
def test_a_large_ring_does_not_recurse(count: int) -> None:
    nodes = [call(f"n{i}", f"n{(i - 1) % count}") for i in range(count)]
    codes = [p.code for p in check(flow(*nodes))]
    assert codes == ["cycle", "no_entry", "no_exit"]


def test_problems_are_plain_values() -> None:
    problem = Problem(code="x", node="n", field="f", message="m", hint="h")
    assert msgspec.json.decode(msgspec.json.encode(problem), type=Problem) == problem


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gone", "there is no node 'gone'"),
        ("inner", "'inner' is inside the body of 'm'"),
        ("deep", "'deep' is inside the body of 'l'"),
        ("eu", "'eu' is in a branch of a parallel route"),
    ],
)
def test_tickets_lead_to_nodes_outside_every_scope(target: str, message: str) -> None:
    nodes = (call("a"), mapped("m", call("inner"), looped("l", call("deep"))), call("eu", lane="route_1.eu."))
    assert check(flow(*nodes, tickets={"back": "a", "over": "m"})) == []
    (problem,) = check(flow(*nodes, tickets={"bad": target}))
    assert (problem.code, problem.field) == ("bad_target", "tickets.bad")
    assert message in problem.message


def test_durable_code_has_no_tickets() -> None:
    definition = flow(call("a"), kind="code", tickets={"back": "a"})
    assert [p.message for p in check(definition)] == ["durable code has no nodes to go to"]


def test_a_ticket_has_a_name() -> None:
    assert found(flow(call("a"), tickets={"no.dots": "a"})) == [("bad_name", "", "tickets")]
