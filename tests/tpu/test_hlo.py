"""Reading the text of compiled programs."""

import numpy as np
import pytest

from vit_jax.tpu.hlo import device_groups, parse, type_bytes

# The forms that the TPU compiler writes: layouts with tiles, tuples, comments between operands.
PROGRAM = """HloModule jit_step, is_scheduled=true

%condition (p.1: (s32[], bf16[8,128])) -> pred[] {
  %limit = s32[]{:T(128)} constant(24)
  %p.1 = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

%body (p.2: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %p.2 = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %i.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  %one = s32[]{:T(128)} constant(STEP)
  %next = s32[]{:T(128)} add(%i.2, %one)
  %x.2 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%p.2), index=1
  ROOT %pair = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) tuple(%next, /*index=1*/%x.2)
}

ENTRY %main (x: bf16[8,128]) -> bf16[8,128] {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %start = s32[]{:T(128)} constant(START)
  %start.copy = s32[]{:T(128)} copy(%start)
  %tuple = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) tuple(%start.copy, %x)
  %while = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) while(%tuple), condition=%condition, body=%body
  ROOT %out = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%while), index=1
}
"""  # noqa: E501


def program(start=0, step=1):
    return parse(PROGRAM.replace("START", str(start)).replace("STEP", str(step)))


def test_instructions_are_taken_apart():
    module = program()
    assert module.entry.name == "main" and set(module.computations) == {
        "condition", "body", "main",
    }  # fmt: skip
    pair = module.computations["body"].root
    assert (pair.opcode, pair.operands) == ("tuple", ["next", "x.2"])
    assert pair.bytes == 4 + 8 * 128 * 2
    loop = module.entry.by_name["while"]
    assert (loop.called("body"), loop.called("condition")) == ("body", "condition")


@pytest.mark.parametrize(("start", "step", "trips"), [(0, 1, 24), (4, 1, 20), (0, 5, 5)])
def test_rounds_of_a_loop(start, step, trips):
    module = program(start, step)
    assert module.trips(module.entry.by_name["while"], module.entry) == trips


def test_rounds_that_the_compiler_tells():
    told = PROGRAM.replace(
        "body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}\n'
    )
    module = parse(told.replace("START", "0").replace("STEP", "1"))
    assert module.trips(module.entry.by_name["while"], module.entry) == 7


def test_a_limit_that_is_not_known():
    module = parse(PROGRAM.replace("constant(24)", "parameter(1)").replace("START", "0"))
    assert module.trips(module.entry.by_name["while"], module.entry) is None


def test_what_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("hello")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", 2048),
        ("f32[]{:T(128)}", 4),
        ("pred[10]", 10),
        ("s4[3]", 2),
        ("(f32[2]{0}, u8[3], token[])", 11),
        ("f8e4m3fn[16]", 16),
    ],
)
def test_bytes_of_types(text, size):
    assert type_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, to_apply=%add", [[0, 2], [1, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, dimensions={0}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        (
            "replica_groups=mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'b'}",
            [[0, 1], [2, 3]],
        ),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
        ("source_target_pairs={{0,1},{1,2}}", [[0, 1], [1, 2]]),
        ("replica_groups={}", [[0, 1, 2, 3]]),
    ],
)
def test_groups_of_devices(text, groups):
    np.testing.assert_array_equal(device_groups(text, 4), groups)
