"""FDCC: feedback driven congestion control, for a site in which no broker has capacity left [ePEER §5.2].

`plan(snapshot, params) -> plan` returns a rate limit per publisher, or no limits. The driver calls it each second. It
depends on the snapshot alone, which contains the limits in force. In this order:

1. When all offered messages fit, all limits are lifted.
2. Publishers without subscribers stop [§5.1]. If the other messages fit now, no other publisher is limited.
3. PROTECTED topics get their guaranteed rates.
4. Topics are admitted by importance while brokers have capacity for them, each publisher at the rate of its class of
   utility (§5.2.1). Of a topic that does not fit whole, publishers are admitted by utility (§5.2.2).
5. The capacity that is left is divided among all useful publishers that offer more: weighted max-min by utility.

Where the thesis leaves the choice open, or ours departs from it:

- It budgets one output bandwidth. Here each broker on a topic's route (its head, its edges) has its own input, output
  and matching, and a topic must fit all of them; otherwise one broker or metric would stay overloaded.
- The rate of a class is a floor, not a ceiling: a ceiling discards messages for which there is capacity
  (`CongestionParams.shares_the_rest` offers it). The thesis also lets a topic be published at less than its full speed
  (§5.2.2), which step 5 uses.
- Capacity is filled to TH_high, or to `CongestionParams.fill`, not completely: a completely filled broker would stay
  overloaded.
- Importance (equation 4) is U·S ÷ R. If R is output, it includes the fan-out, so S(t) cancels and topics are ordered by
  utility per byte, whatever their audience. That order delivers most utility where output is scarce. R is therefore the
  scarcest metric of each overloaded broker. `CongestionParams.resource` offers the thesis' example, matching: then S(t)
  counts.
- A stopped publisher gets no feedback: the snapshot contains its last known utility. A publisher that no subscriber has
  rated counts as `unrated_utility`; a new one counts at least as much during its grace time.
- Feedback is noisy: a class, a selection and a limit change only by a margin.
"""

from __future__ import annotations

from tocsin.policies.sites.budget import Budget, Columns
from tocsin.policies.sites.congestion_types import (
    DEFAULT_PARAMS,
    CongestionParams,
    CongestionPlan,
    CongestionSnapshot,
    PublisherView,
)
from tocsin.policies.topics.types import TopicName


def plan(snapshot: CongestionSnapshot, params: CongestionParams = DEFAULT_PARAMS) -> CongestionPlan:
    if not snapshot.limited or fits_without_limits(snapshot, params):
        return CongestionPlan(snapshot.generation, {}, tuple(topic.topic for topic in snapshot.topics), (), ())
    unheard = [topic for topic in snapshot.topics if not topic.subscribers]
    heard = [topic for topic in snapshot.topics if topic.subscribers]
    budget = Budget(snapshot, params)
    for topic in snapshot.topics:
        budget.protect(topic)
    # Limits in force end below TH_low; otherwise a load near TH_high would set and lift them in turns.
    if budget.all_fit(heard, has_limits=any(_is_cut(view) for topic in heard for view in topic.publishers)):
        limits = {view.publisher: budget.limit(view, 0.0) for topic in unheard for view in topic.publishers}
        silent = tuple(topic.topic for topic in unheard)
        return CongestionPlan(snapshot.generation, limits, tuple(topic.topic for topic in heard), (), silent)
    worth = {topic.topic: budget.importance(topic) for topic in heard}
    ordered = sorted(heard, key=lambda topic: (-worth[topic.topic], topic.topic))
    for topic in ordered:
        budget.admit(topic)
    if params.shares_the_rest:
        budget.share_the_rest(heard)
    outcome: dict[str, list[TopicName]] = {"selected": [], "marginal": [], "stopped": []}
    for topic in (*ordered, *unheard):
        outcome[budget.outcome(topic)].append(topic.topic)
    limits = {view.publisher: budget.limit(view) for topic in heard for view in topic.publishers}
    limits |= {view.publisher: budget.limit(view, 0.0) for topic in unheard for view in topic.publishers}
    return CongestionPlan(snapshot.generation, limits, *(tuple(topics) for topics in outcome.values()))


def _is_cut(view: PublisherView) -> bool:
    return view.limit_per_s is not None and view.limit_per_s < view.offered_per_s


def fits_without_limits(snapshot: CongestionSnapshot, params: CongestionParams = DEFAULT_PARAMS) -> bool:
    """Whether all offered messages would leave every broker below TH_low: the lost resources have returned."""
    columns = Columns(snapshot)
    needed = columns.needed(snapshot.topics)
    return bool(((needed < params.thresholds.low * columns.whole) | (needed == 0.0)).all())
