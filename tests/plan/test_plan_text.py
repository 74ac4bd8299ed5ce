"""The text that clusterize prints, letter for letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ravnest.plan.model import Plan
from ravnest.plan.parts import RingPlan

PUBLISHED = """\
Node(0, Cluster(1))
self.IP(0.0.0.0:8080)
Ring IDs({0: 'conv2d_1.weight'})
Address2Param({'0.0.0.0:8081': 'conv2d_1.weight'})


Node(1, Cluster(0))
self.IP(0.0.0.0:8081)
Ring IDs({0: 'conv2d_1.weight'})
Address2Param({'0.0.0.0:8080': 'conv2d_1.weight'})


Node(2, Cluster(0))
self.IP(0.0.0.0:8082)
Ring IDs({1: 'dense_1.weight'})
Address2Param({'0.0.0.0:8083': 'dense_1.weight'})


Node(3, Cluster(1))
self.IP(0.0.0.0:8083)
Ring IDs({1: 'dense_1.weight'})
Address2Param({'0.0.0.0:8082': 'dense_1.weight'})


Node(4, Cluster(1))
self.IP(0.0.0.0:8084)
Ring IDs({2: 'bn_3.weight'})
Address2Param({'0.0.0.0:8085': 'bn_3.weight'})


Node(5, Cluster(0))
self.IP(0.0.0.0:8085)
Ring IDs({2: 'bn_3.weight'})
Address2Param({'0.0.0.0:8084': 'bn_3.weight'})


Cluster 0 : Node(1) -> Node(2) -> Node(5)
Cluster 1 : Node(0) -> Node(3) -> Node(4)


Node(0) -> Root
Node(1) -> Root
Node(2) -> Stem
Node(3) -> Stem
Node(4) -> Leaf
Node(5) -> Leaf"""


def test_the_published_example_reads_as_published(published_plan: Plan) -> None:
    assert str(published_plan) == PUBLISHED


def test_one_cluster_exchanges_nothing_and_names_who_is_left_over(
    plan_of: Callable[..., Plan],
) -> None:
    blocks = str(plan_of(((4, 0, 2),), spare=1)).split("\n\n\n")
    assert blocks[0] == (
        "Node(0, Cluster(0))\nself.IP(0.0.0.0:8080)\n"
        "Ring IDs({1: 'dense_1.weight'})\nAddress2Param({})"
    )
    assert blocks[-3:] == [
        "Cluster 0 : Node(4) -> Node(0) -> Node(2)",
        "Node(0) -> Stem\nNode(2) -> Leaf\nNode(4) -> Root",
        "Node(5) unused: it would slow its cluster down",
    ]


def test_a_lone_node_is_shown_as_root(plan_of: Callable[..., Plan]) -> None:
    whole = plan_of(((0, 1, 2),))
    ring = RingPlan(0, (0,), ("a.weight",), ())
    lone = replace(whole, clusters=((0,),), stages=whole.stages[:1], rings=(ring,))
    assert str(lone).split("\n\n\n")[1:] == ["Cluster 0 : Node(0)", "Node(0) -> Root"]


def test_a_node_in_several_rings_lists_each_with_its_partner(published_plan: Plan) -> None:
    # Cluster 1 is cut earlier: its middle node holds what is split over nodes 1 and 2.
    rings = (
        RingPlan(0, (1, 0), ("conv2d_1.weight",), ()),
        RingPlan(1, (1, 3), ("conv2d_1.bias",), ()),
        RingPlan(2, (2, 3), ("dense_1.weight",), ()),
        RingPlan(3, (5, 4), (), ("bn_3.mean",)),
        RingPlan(4, (1, 3), ("late.weight",), ()),
    )
    blocks = {text[:7]: text for text in str(replace(published_plan, rings=rings)).split("\n\n\n")}
    assert blocks["Node(1,"].split("\n")[2:] == [
        "Ring IDs({0: 'conv2d_1.weight', 1: 'conv2d_1.bias', 4: 'late.weight'})",
        "Address2Param({'0.0.0.0:8080': 'conv2d_1.weight', '0.0.0.0:8083': 'conv2d_1.bias'})",
    ]
    assert "Ring IDs({3: 'bn_3.mean'})" in blocks["Node(5,"]
