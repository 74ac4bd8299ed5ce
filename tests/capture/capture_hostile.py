"""Generates hostile stage files: good ones with one fault that a loader must refuse."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from ravnest.capture import operators

Graph = dict[str, Any]


@dataclass(frozen=True)
class Good:
    """The files of a stage that may be loaded; hostile ones are made from them."""

    graph: bytes = field(repr=False)
    weights: bytes = field(repr=False)


class Hostile:
    """The files of a stage of which one must be refused, and what kind of fault it has."""

    def __init__(self, graph: bytes, weights: bytes, family: str, fault: str) -> None:
        self.graph, self.weights, self.family, self.fault = graph, weights, family, fault

    def __repr__(self) -> str:
        return f"{self.family}: {self.fault}"


def every_operator() -> set[str]:
    """Names of all operators that this torch has, as a file would write them."""
    schemas = torch._C._jit_get_all_schemas()
    return {f"{schema.name}.{schema.overload_name or 'default'}" for schema in schemas}


REFUSED_OPERATORS = sorted(name for name in every_operator() if operators.find(name) is None)
DANGEROUS = [
    *("aten::from_file", "aten::from_file.default", "aten::from_file.out", "aten::set_.default"),
    *("aten::set_.source_Storage", "aten::set_.source_Tensor", "aten::resize_.default"),
    *("aten::resize_as_.default", "aten::as_strided_.default", "aten::data_ptr", "aten::save"),
    *("aten::_unsafe_index.Tensor", "aten::empty_strided.default", "aten::_sparse_coo_tensor"),
    *("aten::add.out", "aten::mm.out", "aten::empty.names", "aten::empty.out", "aten::warn"),
    *("aten::get_gradients.default", "aten::pin_memory.default", "aten::_cudnn_init_dropout_state"),
    *("aten::__class__.default", "aten::__init__.default", "aten::__dict__", "aten::name.default"),
    *("aten::add.__class__", "aten::add.__call__", "aten::add.overloads", "aten::add._schema"),
    *("aten::add.", "aten::.Tensor", "aten::", "::", "", ".", "aten", "aten.add.Tensor", "add"),
    *("canary::sing.default", "canary::sing", "prim::PythonOp", "prim::CallFunction.default"),
    *("prims::add.default", "quantized::add.default", "rvn::leaf.default", "c10d::send.default"),
    *("torchvision::nms.default", "higher_order::cond", "torch::jit.load", "profiler::_record"),
    *("operator::attrgetter", "operator::methodcaller", "operator::itemgetter", "operator::call"),
    *("operator::setitem", "operator::iadd", "operator::__import__", "operator.add", "operator::"),
    *("builtins::eval", "builtins::exec", "builtins::__import__", "builtins::open", "eval"),
    *("builtins::getattr", "builtins::compile", "__builtins__::eval", "os::system", "os.system"),
    *(
        "subprocess::Popen",
        "pickle::loads",
        "torch::load",
        "torch.load",
        "torch::save",
        "sym::eval",
    ),
    *("math::__loader__", "math::pow", "sym::sym_int.__globals__", "sym::__class__", "math::eval"),
    *("importlib::import_module", "ctypes::CDLL", "sys::exit", "../aten::add.Tensor", "ATEN::ADD"),
    *("aten::add.Tensor\n", " aten::add.Tensor", "aten::add.Tensor\x00", "aten::\u0430dd.Tensor"),
]
TOO_LONG = "x" * 2000
TEXT = [
    *("__class__", "__import__('os').system('true')", "../../etc/passwd", "/etc/passwd", "\x00"),
    *("node", TOO_LONG, "{0.__class__}", "%s" * 50, "train.nodes[0]", "'); import os; ('", "😀"),
]
NUMBERS = [2**63, -(2**63) - 1, 10**40, -1, 2**31, 2**62, 10**308]
WRONG_KINDS = [
    *(None, True, 0, 1.5, "", "x", [], {}, [[]], {"a": 1}, [None] * 3, {"tuple": [0]}),
    *(
        {"node": 1},
        {"node": None},
        {"state": ["a"]},
        {"eval": "1+1"},
        {"call": "f"},
        {"dtype": "O"},
    ),
    *({"device": "cuda:0"}, {"device": "/dev/mem"}, {"layout": "jagged"}, {"float": "1e9"}),
    *(
        {"slice": [1, 2]},
        {"slice": "abc"},
        {"complex": ["1", "2"]},
        {"complex": [1]},
        {"object": 1},
    ),
    *({"memory_format": "__class__"}, {"dtype": "__class__"}, {"node": "a", "input": "b"}),
]


def nested(depth: int, kind: str) -> Any:
    """A one in so many lists, or slices."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"slice": [value, None, None]}
    return value


@st.composite
def hostile_nodes(draw: st.DrawFn, good: Good) -> Graph:
    """A node with an operator, an argument or a field that must be refused."""
    graph = json.loads(good.graph)
    mode = draw(st.sampled_from(["train", "eval"]))
    nodes = graph[mode]["nodes"]
    at = draw(st.integers(0, len(nodes) - 1))
    node = nodes[at]
    what = draw(st.sampled_from(["operator", "argument", "keyword", "name", "field", "count"]))
    if what == "operator":
        pool = st.sampled_from(DANGEROUS) | st.sampled_from(REFUSED_OPERATORS)
        node["op"] = draw(pool | st.sampled_from(WRONG_KINDS))
        if draw(st.booleans()):
            node["args"] = ["/etc/passwd", True, 64]
    elif what == "argument":
        bad = [*NUMBERS[:3], TOO_LONG, *(w for w in WRONG_KINDS if type(w) is dict and w)]
        bad += [nested(draw(st.integers(17, 400)), draw(st.sampled_from(["list", "slice"])))]
        later = [n["name"] for n in nodes[at:]]  # itself, or one that comes after it
        bad += [{"node": draw(st.sampled_from(later))}, {"input": node["name"]}, {"state": "no"}]
        bad += [{"node": "__class__"}, {"node": "seed_operator"}, {"state": "state_0"}]
        node["args"] = [draw(st.sampled_from(bad)), *node["args"][1:]]
    elif what == "keyword":
        node["kwargs"] = draw(
            st.sampled_from([w for w in WRONG_KINDS if w != {} and not _may_be_keyword(w)])
            | st.dictionaries(st.sampled_from([*TEXT, "out", "**", "a=1"]), st.none(), min_size=1)
        )
    elif what == "name":
        others = [n["name"] for n in nodes if n is not node]
        node["name"] = draw(st.sampled_from([*others[:5], TOO_LONG, None, 1, ["a"], {}]))
    elif what == "field":
        node[draw(st.sampled_from(["code", "target", "module", "__class__", "meta", ""]))] = 1
    else:
        node["args"] = node["args"] + [None] * draw(st.sampled_from([40, 1000, 100_001]))
    return graph


def _may_be_keyword(value: Any) -> bool:
    """Whether some operator has a parameter of that name."""
    names = ("dtype", "device", "layout", "memory_format")
    return isinstance(value, dict) and any(name in value for name in names)


@st.composite
def hostile_declarations(draw: st.DrawFn, good: Good) -> Graph:
    """Tensors, stage numbers, outputs or inputs that must be refused."""
    graph = json.loads(good.graph)
    what = draw(st.sampled_from(["shape", "dtype", "twice", "lost", "top", "results", "specs"]))
    tensors = graph["parameters"]
    each = draw(st.sampled_from(tensors))
    if what == "shape":
        huge = st.lists(st.sampled_from([2**40, 2**62, 2**63, -1]), min_size=1, max_size=70)
        each["shape"] = draw(huge | st.sampled_from([*WRONG_KINDS[:6], [1.5], [True], ["1"]]))
    elif what == "dtype":
        wrong = ["object", "int8", "__class__", "torch.float32", "qint8", None, 1, ["float32"]]
        each["dtype"] = draw(st.sampled_from(wrong))
    elif what == "twice":
        tensors.append(copy.deepcopy(each))
    elif what == "lost":
        tensors.remove(each)
    elif what == "top":
        key = draw(st.sampled_from([*sorted(graph), "code", "__reduce__", "version", ""]))
        bad = [*WRONG_KINDS, *NUMBERS, *TEXT]
        graph[key] = draw(
            st.sampled_from([v for v in bad if v is not None and v != [] and not _fits(key, v)])
        )
    elif what == "results":
        mode = graph[draw(st.sampled_from(["train", "eval"]))]
        bad = [[], [{"node": "no"}] * len(mode["outputs"]), mode["results"] * 40_000, None, "x", {}]
        mode["results"] = draw(st.sampled_from(bad))
    else:
        mode = graph[draw(st.sampled_from(["train", "eval"]))]
        specs = mode[draw(st.sampled_from(["inputs", "outputs"]))]
        bad = [None, "x", {}, {**specs[0], "code": 1}, {**specs[0], "name": 1}]
        bad += [copy.deepcopy(specs[0]), {**specs[0], "dtype": "O"}]
        specs.append(draw(st.sampled_from(bad)))
    return graph


def _fits(key: str, value: Any) -> bool:
    """Whether a field of the whole file may have this value."""
    return key in ("stage", "num_stages", "schema") and value in (0, 1) and value is not True


@st.composite
def hostile_signatures(draw: st.DrawFn, good: Good) -> Graph:
    """Structures, guards or leaves that must be refused."""
    graph = json.loads(good.graph)
    signature = graph["signature"]
    what = draw(st.sampled_from(["structure", "guard", "leaf", "argument"]))
    if what == "structure":
        deep: Any = 0
        for _ in range(draw(st.sampled_from([66, 400]))):
            deep = {draw(st.sampled_from(["list", "tuple"])): [deep]}
        bad = [
            deep,
            10**9,
            -1,
            True,
            "0",
            {"set": [0]},
            {"__class__": []},
            {"dict": [[0]]},
            [0],
            {},
        ]
        bad += [{"record": "x"}, {"list": [0], "tuple": [0]}, {"dict": [[["a"], 0]]}]
        graph["train"]["structure"] = draw(st.sampled_from(bad))
    elif what == "guard":
        bad = [["os", 1], ["==", 1], ["__import__", "os"], ["%", "d0", "d999"], [], {}, None, True]
        bad += [["**", 10**9, 10**9], ["<<", 1, 10**9], ["lambda"], 1.5, "import os"]
        deep = 1
        for _ in range(draw(st.sampled_from([40, 400]))):
            deep = ["+", deep, 1]
        signature["guards"].append(draw(st.sampled_from([*bad, deep])))
    elif what == "leaf":
        bad = [None, 1, "x", {}, {"constant": []}, {"constant": {"float": "1e9"}}]
        bad += [{"tensor": "a", "dtype": "O", "shape": []}, {"constant": 1, "code": 1}]
        bad += [{"tensor": "a", "dtype": "int8", "shape": [["s", 1]]}, {"constant": {"a": 1}}]
        bad += [{"tensor": "a", "dtype": "int8", "shape": [-1]}]
        signature["leaves"].append(draw(st.sampled_from(bad)))
    else:
        argument = draw(st.sampled_from(signature["arguments"]))
        key = draw(st.sampled_from(["name", "kind", "value"]))
        argument[key] = draw(
            st.sampled_from([10**9, -1, ["x"], {"set": []}, {"a": {}}, 1.5, TOO_LONG])
        )
    return graph


@st.composite
def hostile_bytes(draw: st.DrawFn, good: Good) -> bytes:
    """Bytes that are no graph."""
    text = json.dumps(json.loads(good.graph)).encode()
    cut = draw(st.integers(0, len(text) - 1))
    deep = draw(st.sampled_from([10_000, 200_000]))
    return draw(
        st.sampled_from(
            [
                *(text[:cut], text + b"{}", b"[" * deep, b'{"a":' * deep, text + b"\x00", b""),
                *(b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.", b"PK\x03\x04" + text, b"\xff" + text),
                *(text[:-1] + b',"schema":1}', text.replace(b'"schema": 1', b'"schema": NaN')),
                *(text.replace(b'"schema": 1', b'"schema": 1e400'), text.decode().encode("utf-16")),
                text.replace(b'"schema": 1', b'"schema": ' + b"9" * 5000),
            ]
        )
    )


def _header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


@st.composite
def hostile_weights(draw: st.DrawFn, good: Good) -> bytes:
    """Weights files that do not match their graph, or are none."""
    weights = good.weights
    (length,) = struct.unpack("<Q", weights[:8])
    entries = json.loads(weights[8 : 8 + length])
    data = weights[8 + length :]
    name = draw(st.sampled_from([key for key in entries if key != "__metadata__"]))
    entry = entries[name]
    what = draw(st.sampled_from(["bytes", "shape", "dtype", "offsets", "lost", "more", "huge"]))
    if what == "bytes":
        cut = draw(st.integers(0, len(weights) - 1))
        size = draw(st.sampled_from([0, 2**63, 2**64 - 1, len(weights) * 2, 10**8]))
        pickled = b"\x80\x04\x95cos\nsystem\n(S'true'\ntR."
        bad = [weights[:cut], struct.pack("<Q", size) + weights[8:], b"", pickled, weights + b"x"]
        return draw(st.sampled_from(bad))
    if what == "shape":
        bad = [s for s in ([2**62, 4], [2**63], [-1], [1], [], [2**40] * 3) if s != entry["shape"]]
        entry["shape"] = draw(st.sampled_from(bad))
    elif what == "dtype":
        entry["dtype"] = draw(st.sampled_from(["F64", "OBJECT", "", None, "I8", "F16", "F8_E5M2"]))
    elif what == "offsets":
        begin, end = entry["data_offsets"]
        bad = [[end, begin], [0, 2**63], [begin, end + 4], [begin + 1, end + 1], [-4, end], [0]]
        entry["data_offsets"] = draw(st.sampled_from(bad))
    elif what == "lost":
        del entries[name]
    elif what == "more":
        size = len(data)
        entries["more"] = {"dtype": "U8", "shape": [1], "data_offsets": [size, size + 1]}
        data += b"\x00"
    else:
        entry["shape"] = [2**31, 2**31]
        entry["data_offsets"] = [0, 2**62]
    return _header(entries, data)


FAMILIES: dict[str, Callable[[Good], st.SearchStrategy[Any]]] = {
    "nodes": hostile_nodes,
    "declarations": hostile_declarations,
    "signatures": hostile_signatures,
    "bytes": hostile_bytes,
}


@st.composite
def hostile_files(draw: st.DrawFn, goods: dict[str, Good]) -> Hostile:
    """The two files of a stage, one of them hostile."""
    good = goods[draw(st.sampled_from(sorted(goods)))]
    family = draw(st.sampled_from([*FAMILIES, "weights"]))
    if family == "weights":
        weights = draw(hostile_weights(good))
        return Hostile(good.graph, weights, family, str(weights[:500]))
    changed = draw(FAMILIES[family](good))
    data = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    return Hostile(data, good.weights, family, _first_change(good.graph, data))


def _first_change(good: bytes, hostile: bytes) -> str:
    """Where a hostile graph differs first, for the report of a failure."""
    text = json.dumps(json.loads(good)).encode()
    at = next((i for i, (a, b) in enumerate(zip(text, hostile, strict=False)) if a != b), 0)
    return str(hostile[max(at - 200, 0) : at + 200])
