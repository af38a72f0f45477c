"""A loop and a route in a graph.

    python examples/refine.py
    holdfast run examples/refine.py:refine --input '{"topic": "tides", "kind": "tweet"}'

Shows `hf.loop`, whose rounds are paths of their own (`.attempt.0.`, `.attempt.1.`, ...), and `hf.route`, of whose
branches exactly one runs. Every line of a traced function runs once, also in the branches that will not be taken: give
each branch its own name, and join them with `hf.first`. The nodes only compute, so that repeating them is harmless:
`idempotent=True`.
"""

from dataclasses import dataclass

import holdfast as hf


@dataclass
class Text:
    topic: str
    kind: str
    body: str
    score: int = 0


@hf.node(idempotent=True)
async def draft(topic: str, kind: str) -> Text:
    return Text(topic, kind, f"{topic.title()} are interesting")


@hf.node(idempotent=True)
async def improve(text: Text) -> Text:
    return Text(text.topic, text.kind, f"{text.body} indeed", text.score)


@hf.node(idempotent=True)
async def judge(text: Text) -> Text:
    """Three points for every word more."""
    return Text(text.topic, text.kind, text.body, score=3 * text.body.count("indeed"))


@hf.node(idempotent=True)
async def typeset(text: Text) -> str:
    return f"# {text.topic.title()}\n\n{text.body}."


@hf.node(idempotent=True)
async def shorten(text: Text) -> str:
    return f"{text.body[:20]}..."


@hf.node(idempotent=True)
async def archive(text: Text) -> str:
    return f"archived a {text.kind} about {text.topic}"


def attempt(text: Text) -> Text:
    """One round of the loop: a plain function, traced into the loop's body."""
    return judge(improve(text))


@hf.workflow
def refine(topic: str = "tides", kind: str = "article") -> str:
    """Improve a text until it is good enough, then give it the form that its kind asks for."""
    best = hf.loop(attempt, start=draft(topic, kind), until=lambda r: r.score >= 8, max_visits=5, at_limit="take")
    with hf.route(best.kind) as kinds:
        with kinds("article"):
            article = typeset(best)
        with kinds("tweet"):
            tweet = shorten(best)
        with kinds.otherwise():
            other = archive(best)
    return hf.first(article, tweet, other)


if __name__ == "__main__":
    for kind in ("article", "tweet", "poem"):
        print(hf.run(refine, topic="tides", kind=kind))
