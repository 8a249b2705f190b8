"""A schedule replayed: what waits for what, and for how long."""

import dataclasses

import pytest

from vit_jax.tpu.cost import Machine, replay
from vit_jax.tpu.hlo import parse
from vit_jax.train.chips import V5E

# A second is 1000 cycles; a device sends 1 kB a second in its slice and 100 B to other slices.
CHIP = dataclasses.replace(V5E, clock=1e-6, ici=1e-6, dcn=1e-7)
LINE = Machine(CHIP, [(0, 0), (1, 0)])
GROUP = "channel_id=1, replica_groups={{0,1}}"


def cycles(count):
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


def cost(*lines, before="", machine=LINE):
    text = "\n".join(f"  {line}" for line in lines)
    return replay(
        parse(f"HloModule m\n\n{before}\n\nENTRY %main (x: f32[]) -> f32[] {{\n{text}\n}}\n"),
        machine,
    )


WORK = f"%work = f32[10] fusion(%x), kind=kLoop, calls=%nothing, {cycles(2000)}"
NOTHING = "%nothing (p: f32[10]) -> f32[10] {\n  ROOT %p = f32[10] parameter(0)\n}"


def test_cycles_are_summed_and_turned_into_seconds():
    found = cost(WORK, f"ROOT %copy = f32[10] copy(%work), {cycles(500)}", before=NOTHING)
    assert (found.cycles, found.seconds, found.waiting) == (2500, 2.5, 0)
    assert found.collectives == ()


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [("all-gather", 0.5), ("all-reduce", 1), ("all-to-all", 0.5), ("collective-permute", 1)],
)
def test_a_collective_takes_its_bytes_over_its_links(kind, seconds):
    found = cost(f"ROOT %c = f32[250] {kind}(%x), {GROUP}")
    [collective] = found.collectives
    assert (collective.kind, collective.network, collective.bytes) == (kind, "ICI", 1000)
    assert (collective.count, collective.seconds) == (1, seconds)
    assert found.seconds == found.waiting == seconds


def test_what_is_reduced_and_scattered_is_the_whole():
    found = cost(f"ROOT %c = f32[250] reduce-scatter(%x), {GROUP}")
    assert found.collectives[0].bytes == 2000 and found.seconds == 1
    # The compiler also writes it as an all-reduce that is cut, in a fusion of that name.
    before = (
        "%all-reduce-scatter.1 (p: f32[500]) -> f32[250] {\n  %p = f32[500] parameter(0)\n"
        f"  %all-reduce = f32[500] all-reduce(%p), {GROUP}\n"
        "  ROOT %slice = f32[250] slice(%all-reduce), slice={[0:250]}\n}"
    )
    fused = cost(
        "ROOT %c = f32[250] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1", before=before
    )
    assert fused == found


def test_a_group_has_the_links_of_the_axes_that_it_spans():
    square = Machine(CHIP, [(0, 0), (1, 0), (0, 1), (1, 1)])
    assert square.ici_bandwidth([0, 1, 2, 3]) == 1000
    assert square.ici_bandwidth([0, 2]) == square.ici_bandwidth([0, 1]) == 500
    assert LINE.ici_bandwidth([0, 1]) == 1000


def test_what_was_started_early_runs_beside_the_rest():
    start = f"%start = (f32[125], f32[250]) all-gather-start(%x), {GROUP}"
    done = "ROOT %done = f32[250] all-gather-done(%start)"
    hidden = cost(start, WORK, done, before=NOTHING)
    assert (hidden.seconds, hidden.waiting) == (2, 0)
    assert hidden.collectives[0].seconds == 0.5
    seen = cost(start, done, WORK, before=NOTHING)
    assert (seen.seconds, seen.waiting) == (2.5, 0.5)


def test_transfers_share_their_links():
    found = cost(
        "%a = (f32[500], f32[1000]) all-gather-start(%x), channel_id=1, replica_groups={{0,1}}",
        "%b = (f32[500], f32[1000]) all-gather-start(%x), channel_id=2, replica_groups={{0,1}}",
        "%a.done = f32[1000] all-gather-done(%a)",
        "ROOT %b.done = f32[1000] all-gather-done(%b)",
    )
    assert found.seconds == 4 and found.collectives[0].count == 2


def test_the_compilers_own_fusions_of_compute_and_collective():
    def fused(name, target):
        call = f'%call = f32[] custom-call(%ag), custom_call_target="{target}"' if target else ""
        return (
            f"%{name} (p: f32[125]) -> f32[250] {{\n  %p = f32[125] parameter(0)\n"
            f"  %ag = f32[250] all-gather(%p), {GROUP}\n  {call}\n"
            f"  ROOT %r = f32[250] bitcast(%ag)\n}}\n"
        )

    before = (
        fused("f.start", "AsyncCollectiveStart")
        + fused("f.step", "")
        + fused("f.done", "AsyncCollectiveDone")
    )
    found = cost(
        "%a = f32[250] fusion(%x), kind=kCustom, calls=%f.start",
        f"%b = f32[250] fusion(%a), kind=kOutput, calls=%f.step, {cycles(300)}",
        "ROOT %c = f32[250] fusion(%b), kind=kCustom, calls=%f.done",
        before=before,
    )
    assert found.collectives[0].count == 1  # not three
    assert found.seconds == 0.5 and found.waiting == pytest.approx(0.2)


def test_slices_talk_over_the_data_centres_network():
    attributes = (
        "is_host_transfer=true, frontend_attributes={"
        '_xla_host_transfer_handler_name="xla_megascale_runtime",'
        '_xla_host_transfer_rendezvous="all-reduce.1_0",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    found = cost(
        f"%send = (f32[25], u32[], token[]) send(%x, %after), channel_id=2, {attributes}",
        f"%recv = (f32[25], u32[], token[]) recv(%after), channel_id=1, {attributes}",
        "%send-done = token[] send-done(%send), channel_id=2",
        "ROOT %recv-done = (f32[25], token[]) recv-done(%recv), channel_id=1",
        machine=dataclasses.replace(LINE, slices=4),
    )
    [collective] = found.collectives
    assert (collective.kind, collective.network) == ("all-reduce", "DCN")
    assert collective.seconds == found.waiting == pytest.approx(1.5, rel=0.1)


LOOPS = """
%inner.condition (p: (s32[])) -> pred[] {
  %p = (s32[]) parameter(0)
  %limit = s32[] constant(3)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%inner (p: (s32[])) -> (s32[]) {
  %p = (s32[]) parameter(0)
  %c = f32[250] all-gather(%p), channel_id=1, replica_groups={{0,1}}
  ROOT %r = (s32[]) copy(%p), WORK
}

%outer (p: (s32[])) -> (s32[]) {
  %p = (s32[]) parameter(0)
  ROOT %w = (s32[]) while(%p), condition=%inner.condition, body=%inner
}
""".replace("WORK", cycles(100))


def test_a_loop_is_its_body_so_many_times_and_so_is_a_loop_in_it():
    loop = "%w = (s32[]) while(%x.1), condition=%inner.condition, body=%outer"
    found = cost("%x.1 = (s32[]) tuple(%x)", loop, "%x = s32[] constant(1)", before=LOOPS)
    assert found.cycles == 2 * 3 * 100  # the outer one starts at 1, the inner one at 0
    assert found.collectives[0].count == 6
    assert found.seconds == pytest.approx(6 * (0.1 + 0.5)) and found.unknown_loops == 0


def test_calls_and_branches():
    before = LOOPS + NOTHING
    call = "%c = (s32[]) call(%x), to_apply=%inner"
    choice = "%d = (s32[]) conditional(%i, %x, %x), branch_computations={%inner, %nothing}"
    assert cost(call, before=before).cycles == cost(choice, before=before).cycles == 100


def test_kernels_of_our_own_are_counted_not_estimated():
    found = cost('ROOT %k = f32[10] custom-call(%x), custom_call_target="tpu_custom_call"')
    assert found.without_estimate == 1 and found.cycles == 0
