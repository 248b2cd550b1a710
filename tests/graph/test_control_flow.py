"""If, Loop, Scan and sequences: what is folded, selected, written out, looped; what is refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator
from onnx_backend import compiled
from onnx_cases import check_stages

from ansorlite.errors import ModelError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.target import Target

X = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)


def model(text: str) -> onnx.ModelProto:
    """A model in ONNX's own text form, of opset 17."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def check(proto: onnx.ModelProto, *inputs: Any) -> None:
    """All stages and the native network against onnx's reference."""
    names = [v.name for v in proto.graph.input]
    wanted = ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))
    check_stages(proto, list(inputs), wanted)
    got = compiled(partition(optimize(load_onnx(proto))), Target.detect())(*inputs)
    for y, want in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def ops(proto: onnx.ModelProto) -> set[str]:
    return {n.op for n in load_onnx(proto).nodes}


def refused(proto: onnx.ModelProto, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_onnx(proto)


# ---- If -----------------------------------------------------------------------------------------

ON_SHAPES = """g (float[3,4] x) => (float[N,M] y) {
  s = Shape(x)  zero = Constant<value = int64 {0}>()  n = Gather(s, zero)
  three = Constant<value = int64 {3}>()  c = Equal(n, three)
  y = If(c) <then_branch = a () => (float[N,M] u) { t = Relu(x)  u = Neg(t) },
             else_branch = b () => (float[N,M] v) { v = Unknown(x) }>
}"""
ON_DATA = """g (float[3,4] x, bool c) => (float[3,4] y, float[3,4] z) {
  y, z = If(c) <then_branch = a () => (float[3,4] u, float[3,4] w) { u = Exp(x)  w = Abs(x) },
                else_branch = b () => (float[3,4] v, float[3,4] r) { v = Neg(x)  r = Abs(v) }>
}"""


def test_a_condition_on_shapes_takes_one_branch() -> None:
    """The other one may hold what is not supported."""
    proto = model(ON_SHAPES)
    assert ops(proto) == {"relu", "neg"}
    (y,) = evaluate(load_onnx(proto), [X])
    np.testing.assert_array_equal(y, -np.maximum(X, 0))


@pytest.mark.parametrize("flag", [True, False])
def test_a_condition_on_data_selects(flag: bool) -> None:
    infinite = np.where(X > 1, np.float32(np.inf), X)  # of the branch that is not taken
    check(model(ON_DATA), infinite, np.asarray(flag))


def test_branches_of_two_shapes_are_refused() -> None:
    text = ON_DATA.replace("v = Neg(x)", "v = Transpose(x)")
    refused(model(text), r"\(If\): output 0 is float32\[3, 4\] or float32\[4, 3\]")


def test_computed_indices_in_a_branch_are_refused() -> None:
    text = ON_DATA.replace(
        "u = Exp(x)",
        "t = Cast<to = 7>(x)  f = Flatten<axis = 0>(t)  k = Squeeze(f)"
        "  g = Gather(x, k)  u = Exp(x)  w2 = Identity(g)",
    )
    refused(model(text), "a branch takes elements at computed indices")


ONE_FITS = """g (float[3,4] x, bool c) => (float[3,3] y) {
  y = If(c) <then_branch = a () => (float[3,3] u) { u = MatMul(x, x) },
             else_branch = b () => (float[3,3] v) { t = Transpose(x)  v = MatMul(x, t) }>
}"""


def test_a_branch_that_the_sizes_rule_out_is_an_error_of_the_call() -> None:
    """As one network for two sampling rates, whose sizes differ."""
    proto = model(ONE_FITS)
    check(proto, X, np.asarray(False))
    module = compiled(partition(optimize(load_onnx(proto))), Target.detect())
    with pytest.raises(ModelError, match="whose other branch does not fit the sizes"):
        module(X, np.asarray(True))


def test_an_unsupported_operator_in_a_branch_is_named() -> None:
    text = ON_DATA.replace("u = Exp(x)", "u = Unheard(x)")
    refused(model(text), "^node Unheard_0 is of the unsupported operator Unheard$")


def test_two_branches_that_do_not_fit_are_refused() -> None:
    refused(model(ONE_FITS.replace("t = Transpose(x)", "t = Identity(x)")), "inner extents differ")


# ---- Loop ---------------------------------------------------------------------------------------

LOOP = """g (float[4] x) => (float[4] y, float[T,4] ys) {
  m = Constant<value = int64 {COUNT}>()  t = Constant<value = bool {1}>()
  half = Constant<value = float {0.5}>()
  y, ys = Loop(m, t, x) <body = b (int64 i, bool c, float[4] s)
      => (bool d, float[4] n, float[4] o) {
    d = Identity(c)  k = Cast<to = 1>(i)  a = Mul(s, half)  n = Add(a, x)  o = Add(n, k)
  }>
}"""


@pytest.mark.parametrize("count", [1, 3, 100])
def test_loops_of_known_length(count: int) -> None:
    proto = model(LOOP.replace("COUNT", str(count)))
    check(proto, X[0])
    assert ("loop" in ops(proto)) == (count == 100)


def test_a_loop_without_steps() -> None:
    y, ys = evaluate(load_onnx(model(LOOP.replace("COUNT", "0"))), [X[0]])
    np.testing.assert_array_equal(y, X[0])
    assert ys.shape == (0, 4) and ys.dtype == np.float32


def test_a_condition_that_is_known_ends_a_loop() -> None:
    """It depends on the number of the step alone."""
    text = LOOP.replace("COUNT", "20").replace(
        "d = Identity(c)", "five = Constant<value = int64 {5}>()  d = Less(i, five)"
    )
    (_, ys) = evaluate(load_onnx(model(text)), [X[0]])
    assert ys.shape == (6, 4)


def test_a_condition_on_data_is_refused() -> None:
    text = LOOP.replace("COUNT", "3").replace(
        "d = Identity(c)", "e = ReduceMax<keepdims = 0>(s)  d = Less(e, half)"
    )
    refused(model(text), r"\(Loop\): its condition depends on the input")


def test_a_count_on_data_is_refused() -> None:
    text = LOOP.replace("COUNT", "3").replace("(m, t, x)", "(q, t, x)")
    text = text.replace(
        "y, ys = Loop", "e = ReduceMax<keepdims = 0>(x)  q = Cast<to = 7>(e)  y, ys = Loop"
    )
    refused(model(text), r"\(Loop\): its trip count q depends on the input")


def test_indices_by_the_number_of_the_step() -> None:
    """They are known where steps are written out."""
    text = """g (float[5,4] x) => (float[4] y) {
      m = Constant<value = int64 {5}>()  t = Constant<value = bool {1}>()
      z = Constant<value = float[4] {0, 0, 0, 0}>()
      y = Loop(m, t, z) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] n) {
        d = Identity(c)  r = Gather(x, i)  p = Mul(s, r)  n = Add(p, r)
      }>
    }"""
    proto = model(text)
    check(proto, np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32))
    assert "take" not in ops(proto)


def test_loops_in_loops_and_branches_in_loops() -> None:
    text = """g (float[4] x) => (float[4] y) {
      m = Constant<value = int64 {2}>()  t = Constant<value = bool {1}>()
      one = Constant<value = int64 {1}>()
      y = Loop(m, t, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] n) {
        d = Identity(c)
        u = Loop(m, t, s) <body = e (int64 j, bool f, float[4] q) => (bool h, float[4] r) {
          h = Identity(f)  r = Add(q, x)
        }>
        k = Equal(i, one)
        n = If(k) <then_branch = a () => (float[4] v) { v = Neg(u) },
                   else_branch = o () => (float[4] w) { w = Exp(u) }>
      }>
    }"""
    check(model(text), X[0])


# ---- Scan ---------------------------------------------------------------------------------------

SCAN = """g (float[4] h, float[3,4,7] x) => (float[4] y, float[A,B] ys, float[C,D,E] zs) {
  y, ys, zs = Scan(h, x) <num_scan_inputs = 1, scan_input_axes = [AXIS],
      scan_input_directions = [BACK], scan_output_axes = [1, 0], scan_output_directions = [0, BACK],
      body = b (float[4] s, float[3,4] r) => (float[4] n, float[4] o, float[3,4] p) {
    a = ReduceSum<keepdims = 0>(r, axes)  n = Add(s, a)  o = Identity(n)  p = Tanh(r)
  }>
}""".replace("y, ys, zs = Scan", "axes = Constant<value = int64[1] {0}>()  y, ys, zs = Scan")


@pytest.mark.parametrize("back", [0, 1])
def test_scans(back: int) -> None:
    """Against numpy: onnx's reference knows axes and directions only by halves."""
    proto = model(SCAN.replace("AXIS", "-1").replace("BACK", str(back)))
    x = np.random.default_rng(1).standard_normal((3, 4, 7)).astype(np.float32)
    rows = np.moveaxis(x, -1, 0)[:: -1 if back else 1]
    sums = X[0] + np.cumsum(rows.sum(axis=1), axis=0)
    wanted = [sums[-1], sums.T, np.tanh(rows)[:: -1 if back else 1]]
    check_stages(proto, [X[0], x], [np.asarray(w, np.float32) for w in wanted])
    assert "loop" in ops(proto)
    got = compiled(partition(optimize(load_onnx(proto))), Target.detect())(X[0], x)
    for y, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a_scan_of_one_dtype_by_step_is_written_out_otherwise() -> None:
    """A loop's result has one dtype; here states are float32 and rows are conditions."""
    text = """g (float[4] h, float[3,4] x) => (float[4] y, bool[3,4] ys) {
      y, ys = Scan(h, x) <num_scan_inputs = 1,
          body = b (float[4] s, float[4] r) => (float[4] n, bool[4] o) {
        n = Add(s, r)  o = Less(s, r)
      }>
    }"""
    proto = model(text)
    check(proto, X[0], X)
    assert "loop" not in ops(proto)


# ---- sequences ----------------------------------------------------------------------------------

SEQUENCES = {
    "construct": "s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 0>(s)",
    "stack": "s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 1, new_axis = 1>(s)",
    "at": "s = SequenceConstruct(x, z)  k = Constant<value = int64 {-1}>()  y = SequenceAt(s, k)",
    "insert": "e = SequenceEmpty()  a = SequenceInsert(e, x)  k = Constant<value = int64 {0}>()"
    "  s = SequenceInsert(a, z, k)  y = ConcatFromSequence<axis = 0>(s)",
    "erase": "a = SequenceConstruct(x, z, x)  k = Constant<value = int64 {0}>()"
    "  s = SequenceErase(a, k)  y = ConcatFromSequence<axis = 0>(s)",
    "split": "k = Constant<value = int64 {2}>()  s = SplitToSequence<axis = 1>(x, k)"
    "  n = SequenceLength(s)  f = Cast<to = 1>(n)  i = Constant<value = int64 {1}>()"
    "  p = SequenceAt(s, i)  y = Add(p, f)",
    "loop": """e = SequenceEmpty()  m = Constant<value = int64 {3}>()
      t = Constant<value = bool {1}>()
      s = Loop(m, t, e) <body = b (int64 i, bool c, seq(float[3,4]) q)
          => (bool d, seq(float[3,4]) r) {
        d = Identity(c)  k = Cast<to = 1>(i)  v = Add(x, k)  r = SequenceInsert(q, v)
      }>  y = ConcatFromSequence<axis = 0>(s)""",
}


@pytest.mark.parametrize("nodes", SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_fold_away(nodes: str) -> None:
    proto = model(f"g (float[3,4] x) => (float y) {{ z = Neg(x)  {nodes} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    check_stages(proto, [X])


def test_a_sequence_as_output_is_refused() -> None:
    proto = model("g (float[3,4] x) => (seq(float[3,4]) s) { s = SequenceConstruct(x, x) }")
    refused(proto, "output s of g is a sequence")


def test_a_tensor_operator_refuses_a_sequence() -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { s = SequenceConstruct(x, x)  y = Relu(s) }"
    refused(model(text), r"\(Relu\): operand 0 \(X\) may not be a sequence")


def test_positions_outside_are_refused() -> None:
    nodes: Sequence[str] = ("s = SequenceConstruct(x)", "k = Constant<value = int64 {1}>()")
    text = f"g (float[3,4] x) => (float[3,4] y) {{ {' '.join(nodes)} y = SequenceAt(s, k) }}"
    refused(model(text), "position 1 is outside of a sequence of 1")
